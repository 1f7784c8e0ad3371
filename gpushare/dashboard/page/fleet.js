// All nodes on one page: what they have together, and a row for each with its devices. The chosen node is shown below.

import { tenantBar } from "./charts.js";
import { parts, whose } from "./devices.js";
import { el, keyed, name, once, setText, table } from "./dom.js";
import { about, count, size } from "./format.js";
import { sum } from "./store.js";
import { number } from "./tenants.js";

const PARTS = ["guaranteed", "borrowed", "switching", "idle"];
const COLUMNS = [
  { title: "Node" }, { title: "Devices now", hint: "by tenant; striped: borrowed" }, { title: "Used", right: true },
  { title: "Lent", right: true, hint: "used beyond a guarantee, of what others left idle" },
  { title: "Grants", right: true }, { title: "Waiting", right: true, hint: "grants that waited in the last second" },
  { title: "Memory", right: true, hint: "held, of all" },
];

const made = table("Nodes", COLUMNS);
document.getElementById("fleet-table").append(made.box);

// The mean over devices, in milli of one.
function mean(devices) {
  return PARTS.map((part) => devices.reduce((all, device) => all + (device[part] ?? 0), 0) / (devices.length || 1));
}

const waiting = (node) => [...(node.grants?.values() ?? [])].filter((grant) => sum(grant, "waited") > 0).length;

const broken = (devices) => devices.filter((device) => !device.healthy).length;

export function show(store, choose) {
  const several = store.nodes.length > 1, here = store.nodes.filter((node) => node.away === null);
  headline(several ? here : [store.node], store);
  document.getElementById("fleet").hidden = !several;
  document.getElementById("fleet-link").hidden = !several;
  document.getElementById("chosen").hidden = !several;
  if (!several) return;
  once(document.getElementById("chosen"), store.node.name, (text) => ["Node ", name(text)]);
  keyed(made.body, store.nodes, (node) => node.place, ({ place }) => row(place, store, choose));
}

function headline(nodes, store) {
  const devices = nodes.flatMap((node) => node.devices ?? []), away = store.nodes.length - nodes.length;
  const [guaranteed, borrowed, , idle] = mean(devices);
  const all = (take) => nodes.reduce((total, node) => total + take(node), 0);
  const lost = broken(devices), waits = all(waiting), facts = nodes.map((node) => node.facts).filter(Boolean);
  const known = nodes.some((node) => node.devices !== undefined);
  once(document.getElementById("summary"), [
    ...(store.nodes.length > 1 ? [["nodes", away ? `${nodes.length} of ${store.nodes.length}` : String(nodes.length), away && "bad"]] : []),
    ["devices", known ? String(devices.length) : "?"], ["used", about(guaranteed + borrowed)], ["lent", about(borrowed)],
    ["idle", about(idle)], ["grants", String(all((node) => node.grants?.size ?? 0))], ["waiting", String(waits)],
    ["not working", `${lost ? "\u2717 " : ""}${lost}`, lost && "bad"],
    ...(facts.some((one) => one.simulated) ? [["devices are", "simulated"]] : []),
    ...(facts.some((one) => one.degraded) ? [["guarantees", "degraded", "bad"]] : []),
  ], (rows) => rows.map(([title, value, state]) => el("div", {}, el("dt", { text: title }), el("dd", { class: state || null, text: value }))));
}

function row(place, store, choose) {
  const cells = COLUMNS.map((column, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: column.right ? "r" : i ? null : "name" }));
  const title = el("button", { type: "button", on: { click: () => choose(place) } }), why = el("span", { class: "sub bad" });
  const list = el("div", { class: "fleet-devices" }), asking = el("span", { class: "dim" });
  cells[0].append(title, why);
  cells[1].append(list, asking);
  const element = el("tr", {}, ...cells);
  element.update = (node) => {
    once(title, node.name, (text) => [name(text)]);
    title.setAttribute("aria-pressed", store.chosen === place);
    element.classList.toggle("chosen", store.chosen === place);
    element.classList.toggle("away", node.away !== null);
    setText(why, node.away !== null ? `\u2717 away: ${node.away}` : "");
    const devices = node.devices ?? [], [guaranteed, borrowed] = mean(devices), waits = waiting(node);
    once(asking, node.away === null && node.devices === undefined, (waits) => (waits ? ["asking"] : []));
    keyed(list, devices.map((device) => ({ device, node })), ({ device }) => device.id, cell);
    number(cells[2], node.devices ? about(guaranteed + borrowed) : "", guaranteed + borrowed);
    number(cells[3], node.devices ? about(borrowed) : "", borrowed);
    number(cells[4], node.grants ? String(node.grants.size) : "", node.grants?.size);
    number(cells[5], node.grants ? String(waits) : "", waits);
    const total = (field) => devices.reduce((all, device) => all + (device[field] ?? 0), 0);
    number(cells[6], node.devices ? `${size(total("memory"))} of ${size(total("capacity"))}` : "", total("memory"));
  };
  return element;
}

function cell() {
  const now = tenantBar(), text = el("span");
  const element = el("div", {}, now, text);
  element.update = ({ device, node }) => {
    const used = about((device.guaranteed ?? 0) + (device.borrowed ?? 0)), found = parts(device, node.grants);
    const state = !device.healthy ? "does not work" : device.state === "ready" ? "" : device.state;
    now.show(found, `Device ${device.index}: ${[state, whose(found) || `${used} used`, count(device.grants ?? 0, "grant")].filter(Boolean).join("; ")}`);
    setText(text, state && device.healthy ? state : state ? "\u2717" : used);
    element.className = !device.healthy ? "lost" : state ? "drained" : "";
  };
  return element;
}
