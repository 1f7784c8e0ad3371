// Grants: one row each, sorted and filtered here.

import { bar, spark } from "./charts.js";
import { el, keyed, name, once, setText, table, tag } from "./dom.js";
import { about, age, count, percent, size } from "./format.js";
import { named, place } from "./palette.js";
import { sum } from "./store.js";
import { number } from "./tenants.js";

const ENDED = new Set(["released", "expired", "failed"]);
const compare = (a, b) => (a < b ? -1 : Number(a > b));
const by = (field) => (grant) => -sum(grant, field);
const LATELY = 15;
// What it got lately, in steps: rows do not change places at every look.
const lately = (grant, history = []) => {
  const looks = history.slice(-LATELY);
  return -Math.round(looks.reduce((all, one) => all + one, 0) / (looks.length || 1) / 50);
};
const COLUMNS = [
  { title: "Grant", sort: (grant) => grant.id }, { title: "Tenant", sort: (grant) => grant.tenant },
  { title: "Runs", sort: (grant) => grant.program ?? "", hint: "program, container or pod, user" },
  { title: "Age", right: true, sort: (grant) => -(grant.created_ns ?? 0) },
  { title: "Devices", sort: (grant) => grant.devices?.[0]?.device ?? 0 },
  { title: "Asked", right: true, sort: by("asked") }, { title: "Entitled", right: true, sort: by("entitled"), hint: "what it should get now" },
  { title: "Got", right: true, sort: lately, hint: "in the last second; 100% is one device" },
  { title: "Borrowed", right: true, sort: by("borrowed") }, { title: "Lent", right: true, sort: by("lent") },
  { title: "Waited", right: true, sort: by("waited"), hint: "of the last second, for its turn" },
  { title: "Memory", sort: by("memory"), hint: "held, of the limit" }, { title: "Got lately", hint: "since this page is open" },
];

const SLOW = new Set(["poor", "refused"]);
const SMALLEST_FIRST = new Set(["Grant", "Tenant", "Runs", "Age", "Devices"]);

const made = table("Grants", COLUMNS, sortBy);
const filter = document.getElementById("filter");
const box = document.getElementById("grant-table");
const none = el("p", { class: "none" });
box.append(made.box, none);

const GOT = COLUMNS.find((column) => column.title === "Got");
let order = { column: GOT, down: false };
let again = () => {};
let open = () => {};

function sortBy(column) {
  order = { column, down: order.column === column && !order.down };
  again();
}

function markSorted() {
  for (const column of COLUMNS) {
    const largestFirst = !SMALLEST_FIRST.has(column.title);
    if (column === order.column) column.cell.setAttribute("aria-sort", order.down !== largestFirst ? "descending" : "ascending");
    else column.cell.removeAttribute("aria-sort");
  }
}

function notes(grant) {
  const found = [];
  if (grant.notice) found.push(el("span", { class: "sub" }, tag("notice", "warn"), " ", name(grant.notice)));
  if (grant.gang) found.push(el("span", { class: "sub" }, "gang ", name(grant.gang)));
  if (grant.hosts) found.push(el("span", { class: "sub" }, "from ", name(grant.hosts), ...(SLOW.has(grant.link_class) ? [" ", tag(`${grant.link_class} link`, "warn")] : [])));
  if (grant.evicted) found.push(el("span", { class: "sub" }, tag("asked to give memory back", "warn")));
  if (grant.devices?.some((part) => part.lost)) found.push(el("span", { class: "sub" }, tag("a device does not work", "bad")));
  return found;
}

// What runs in a grant: its program, and where and whose it is.
function runs({ program, container, pod, phase, pids = 0, uid = 0 }) {
  const where = pod ? `pod ${pod}` : container ? `container ${container}` : "";
  const what = program || (pids ? count(pids, "process").replace("processs", "processes") : "nothing yet");
  return [what, [phase === "active" ? "" : phase, where, uid ? `user ${uid}` : "root"].filter(Boolean).join(", ")];
}

function row({ grant: { id } }) {
  const cells = COLUMNS.map((column, i) => el("td", { class: column.right ? "r" : i < 3 ? "name" : null }));
  const memory = bar(["held"], true), memoryText = el("span"), line = spark(), extra = el("span");
  cells[0].append(el("button", { type: "button", on: { click: () => open(id) } }, name(id)), extra);
  cells[11].append(memoryText, memory);
  cells[12].append(line);
  const element = el("tr", {}, ...cells);
  element.update = ({ grant, history }) => {
    once(extra, [grant.notice, grant.gang, grant.hosts, grant.link_class, grant.evicted, grant.devices?.some((part) => part.lost)], () => notes(grant));
    once(cells[1], [grant.tenant, place(grant.tenant)], () => named(grant.tenant));
    once(cells[2], runs(grant), (texts) => texts.map((text, i) => el("span", { class: i ? "sub" : null }, name(text))));
    setText(cells[3], age(grant.created_ns));
    element.classList.toggle("quiet", !sum(grant, "got") && !sum(grant, "waited"));
    const parts = grant.devices ?? [];
    setText(cells[4], parts.map((part) => part.device ?? 0).join(", "));
    const asked = parts[0]?.asked ?? 0;
    number(cells[5], parts.length > 1 ? `${parts.length} × ${percent(asked)}` : percent(asked), asked);
    ["entitled", "got", "borrowed", "lent", "waited"].forEach((field, i) => number(cells[i + 6], percent(sum(grant, field)), sum(grant, field)));
    const held = sum(grant, "memory"), limit = sum(grant, "memory_limit");
    setText(memoryText, `${size(held)} of ${size(limit)}`);
    memory.show([Math.min(1000, (1000 * held) / (limit || 1))], `${about((1000 * held) / (limit || 1))} of its limit`);
    if (history) line.show(history, 1000 * (parts.length || 1));
  };
  return element;
}

const words = (grant) => [...runs(grant), grant.id, grant.tenant, grant.gang, grant.hosts, grant.phase, grant.key, grant.class_].join("\n").toLowerCase();

export function listen(redraw, openGrant) {
  again = redraw;
  open = openGrant;
  filter.addEventListener("input", redraw);
}

export function show(node) {
  const all = [...(node.grants?.values() ?? [])].filter((grant) => !ENDED.has(grant.phase));
  const wanted = filter.value.trim().toLowerCase();
  const found = wanted ? all.filter((grant) => words(grant).includes(wanted)) : all;
  const { column, down } = order;
  found.sort((a, b) => {
    const x = column.sort(a, node.history.get(a.id)), y = column.sort(b, node.history.get(b.id));
    const first = typeof x === "number" ? x - y : compare(x ?? "", y ?? "");
    return (down ? -first : first) || compare(a.id, b.id);
  });
  markSorted();
  keyed(made.body, found.map((grant) => ({ grant, history: node.history.get(grant.id) })), ({ grant }) => grant.id, row);
  made.box.hidden = found.length === 0;
  none.hidden = found.length > 0;
  setText(none, node.grants === null ? "Asking the daemon." : all.length ? "No grant matches the filter." : "No grants. Start something in a share: gpushare run --memory 1GiB --time 30% -- CMD");
  setText(document.getElementById("grant-count"), found.length === all.length ? count(all.length, "grant") : `${found.length} of ${count(all.length, "grant")}`);
}
