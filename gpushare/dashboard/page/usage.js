// What teams used and what it cost, and what nobody used. The view is in the page's address, so that it can be sent.

import { tenantBar } from "./charts.js";
import { el, name, once, setText, table } from "./dom.js";
import { percent } from "./format.js";
import { colours, named } from "./palette.js";
import { ask, askText } from "./stream.js";

const RANGES = [
  ["7d", "", "last 7 days"], ["30d", "", "last 30 days"], ["12w", "", "last 12 weeks"], ["this-month", "", "this month"],
  ["last-month", "this-month", "last month"], ["12mo", "", "last 12 months"],
];
const OWN = "own";
const AGAIN_MS = 60000;
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

const part = (id) => document.getElementById(`usage-${id}`);
const view = { since: "30d", until: "", by: "week", node: "all", tz: ZONE };
let found = null, missing = [], failed = "", asking = 0, timer = null, again = () => {}, nodes = [];

function readAddress() {
  const given = new URLSearchParams(location.search);
  for (const field of Object.keys(view)) if (given.get(field)) view[field] = given.get(field);
}

const query = (other = {}) => new URLSearchParams(Object.entries({ ...view, ...other }).filter(([, value]) => value !== ""));

function changed() {
  history.replaceState(null, "", `${location.pathname}?${query()}#usage`);
  load();
}

async function load() {
  const turn = (asking += 1);
  clearTimeout(timer);
  part("state").textContent = found === null ? "Asking the daemon." : "";
  try {
    const answer = await ask(`api/usage?${query({ node: place() })}`);
    if (turn !== asking) return;
    missing = answer.missing;
    if (answer.teams) found = answer;
    failed = "";
  } catch (error) {
    if (turn !== asking) return;
    failed = error.message;
  }
  timer = setTimeout(() => (document.hidden ? (timer = null) : load()), AGAIN_MS);
  again();
}

// The server's number of the node that the address names.
function place() {
  const at = nodes.findIndex((node) => node.name === view.node);
  return at < 0 ? "all" : String(at);
}

export function tenants() {
  return found?.teams.map((one) => one.name) ?? [];
}

export function listen(redraw) {
  again = redraw;
  readAddress();
  const range = part("range"), by = part("by"), since = part("since"), until = part("until"), node = part("node");
  range.append(...RANGES.map(([, , text], i) => el("option", { value: String(i), text })), el("option", { value: OWN, text: "other days" }));
  range.addEventListener("change", () => {
    if (range.value === OWN) {
      Object.assign(view, { since: found?.since.slice(0, 10) ?? "", until: found?.until.slice(0, 10) ?? "" });
    } else {
      [view.since, view.until] = RANGES[range.value];
    }
    changed();
  });
  by.addEventListener("change", () => { view.by = by.value; changed(); });
  node.addEventListener("change", () => { view.node = node.value; changed(); });
  since.addEventListener("change", () => { view.since = since.value || "30d"; changed(); });
  until.addEventListener("change", () => { view.until = until.value; changed(); });
  part("csv").addEventListener("click", download);
  part("link").addEventListener("click", copyLink);
  document.addEventListener("visibilitychange", () => !document.hidden && timer === null && found !== null && load());
}

// Called when the page is connected, and again after it was away.
export function start(all) {
  nodes = all;
  const node = part("node");
  node.replaceChildren(el("option", { value: "all", text: "all nodes" }), ...all.map((one) => el("option", { value: one.name, text: one.name })));
  part("node-label").hidden = all.length < 2;
  load();
}

// Called when a node is back.
export function retry() {
  if (found === null || missing.length) load();
}

async function download() {
  const [text, why] = await askText(`api/usage?${query({ node: place(), format: "csv" })}`).then((text) => [text, ""], (error) => ["", error.message]);
  setText(part("said"), why);
  if (why) return;
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = el("a", { href: url, download: `gpushare-usage-${found?.since.slice(0, 10) ?? ""}-by-${view.by}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), AGAIN_MS);
}

// The link has the moments themselves, so that it shows the same tomorrow; it has no token.
async function copyLink() {
  if (found === null) return;
  Object.assign(view, { since: found.since, until: found.until });
  changed();
  const done = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  setText(part("said"), `${done ? "Copied. " : ""}It is in the address bar. Whoever opens it needs a dashboard of these nodes of their own: it has no token.`);
}


export function show() {
  controls();
  setText(part("state"), failed ? `\u2717 ${failed}` : found === null && !missing.length ? "Asking the daemon." : "");
  part("state").classList.toggle("bad", failed !== "");
  once(part("missing"), missing, (rows) => rows.map(({ node, why }) => el("li", {}, "\u2717 Without ", name(node), ": ", name(why))));
  part("body").hidden = found === null;
  if (found === null) return;
  once(part("teams"), [found.teams, found.titles, found.total, [...colours()]], teamTable);
  once(part("periods"), [found.periods, found.currency, found.by, [...colours()]], periodTable);
  once(part("idle"), [found.idle, found.currency, [...colours()]], idleCard);
  setText(part("devices"), found.devices);
  setText(part("hint"), found.hint);
  const words = ["gpushare", "usage", "--since", view.since, ...(view.until ? ["--until", view.until] : []), "--by", view.by, "--tz", view.tz];
  setText(part("command"), words.join(" "));
}

function controls() {
  const at = RANGES.findIndex(([since, until]) => since === view.since && until === view.until);
  const own = at < 0, range = part("range");
  if (range.value !== (own ? OWN : String(at))) range.value = own ? OWN : String(at);
  for (const field of ["since", "until"]) {
    part(`${field}-label`).hidden = !own;
    const day = /^\d{4}-\d\d-\d\d/.exec(view[field])?.[0] ?? "";
    if (part(field).value !== day && document.activeElement !== part(field)) part(field).value = day;
  }
  if (part("by").value !== view.by) part("by").value = view.by;
  if (part("node").value !== view.node) part("node").value = place() === "all" ? "all" : view.node;
}

function teamTable() {
  if (!found.teams.length) return [el("p", { class: "none", text: "Nothing was used in this time." })];
  const made = table("Usage by team", [{ title: "Team" }, ...found.titles.map((title) => ({ title: heading(title), right: true }))]);
  const cells = (texts) => texts.map((text) => el("td", { class: text === "-" ? "r zero" : "r", text }));
  made.body.append(...found.teams.map((one) => el("tr", {},
    el("th", { scope: "row", class: "name" }, el("span", { class: "level", text: "\u2003".repeat(one.level) }),
      ...(one.own ? [name(one.name), " itself"] : named(one.name))),
    ...cells(one.cells))));
  made.body.append(el("tr", { class: "total" }, el("th", { scope: "row", text: "All" }), ...cells(found.total)));
  return [made.box];
}

const heading = (title) => title.charAt(0) + title.slice(1).toLowerCase().replace(/ ([a-z]{3})$/, (all, code) => (title.startsWith("COST") ? ` ${code.toUpperCase()}` : all));

const PERIODS = { day: "Day", week: "Week of", month: "Month" };

function periodTable() {
  const priced = found.currency !== "";
  const made = table("Usage over time", [
    { title: PERIODS[found.by] }, { title: "By team", hint: "of the devices' time" }, { title: "Used", right: true }, { title: "", right: true },
    ...(priced ? [{ title: `Cost ${found.currency}`, right: true }] : []), { title: "Idle", right: true },
    ...(priced ? [{ title: `Idle ${found.currency}`, right: true, hint: "at the price of guaranteed time" }] : []),
  ]);
  const tops = found.teams.filter((one) => one.level === 0);
  made.body.append(...found.periods.map((one) => {
    const now = tenantBar();
    const parts = tops.map((team, i) => ({ tenant: team.name, kind: "own", milli: one.whole ? (1000 * one.used[i]) / one.whole : 0 }));
    now.show(parts, parts.filter(({ milli }) => milli >= 1).map(({ tenant, milli }) => `${tenant} ${percent(Math.round(milli))}`).join(", ") || "nobody used it");
    return el("tr", {}, el("th", { scope: "row", text: one.name }), el("td", { class: "wide" }, now), ...[
      percent(one.part), one.texts.USED, ...(priced ? [one.texts.COST] : []), one.texts.IDLE, ...(priced ? [one.texts["IDLE COST"]] : []),
    ].map((text) => el("td", { class: text === "-" ? "r zero" : "r", text })));
  }));
  return [made.box];
}

function idleCard() {
  const { idle, currency } = found;
  const money = (one) => (currency ? `, ${one.cost} ${currency}` : "");
  if (!idle.of.length) return [el("p", { class: "none", text: "Nothing was idle." })];
  return [
    el("p", {}, el("b", { text: `${idle.time}${money(idle)}` }), ` idle, ${percent(idle.part)} of all time${currency ? ", at the price of guaranteed time" : ""}. Whose guarantee it was, if guarantees were what they are now:`),
    el("ul", { class: "key" }, ...idle.of.map((one) => el("li", {}, ...(one.name ? named(one.name) : ["nobody's"]), el("b", { text: `${one.time}${money(one)}` })))),
  ];
}
