// Devices: the current and the recorded use of each.

import { bar, columns, tenantBar } from "./charts.js";
import { el, keyed, name, once, setText, tag } from "./dom.js";
import { about, count, duration, percent, size } from "./format.js";
import { colours, named } from "./palette.js";

const PARTS = ["guaranteed", "borrowed", "switching", "idle"];

// What each tenant has of a device now, in the order of their names, then what nobody has.
export function parts(device, grants) {
  const used = new Map();
  for (const grant of grants?.values() ?? []) {
    for (const part of grant.devices ?? []) {
      if ((part.device ?? 0) !== device.index || !part.got) continue;
      const [own, borrowed] = used.get(grant.tenant) ?? [0, 0];
      used.set(grant.tenant, [own + part.got - (part.borrowed ?? 0), borrowed + (part.borrowed ?? 0)]);
    }
  }
  const all = [...used].sort(([a], [b]) => (a < b ? -1 : 1)).flatMap(([tenant, [own, borrowed]]) => [
    { tenant, kind: "own", milli: Math.max(0, own) }, { tenant, kind: "borrowed", milli: borrowed },
  ]);
  const sum = all.reduce((total, { milli }) => total + milli, 0), whole = (device.guaranteed ?? 0) + (device.borrowed ?? 0);
  for (const part of all) part.milli *= sum ? whole / sum : 0; // grants and devices are of slightly different moments
  return [...all, { kind: "switching", milli: device.switching ?? 0 }];
}

export const whose = (found) => found.filter(({ tenant, milli }) => tenant !== undefined && milli >= 1)
  .map(({ tenant, kind, milli }) => `${tenant} ${about(milli)}${kind === "borrowed" ? " borrowed" : ""}`).join(", ");

function card() {
  const title = el("b"), model = el("span", { class: "dim" }), state = el("span");
  const now = tenantBar(), nowText = el("p"), memory = bar(["held", "kept"]), memoryText = el("p");
  const hour = columns("Last hour", "in columns of two minutes");
  const day = columns("Last day", "in columns of an hour");
  const element = el("article", { class: "card device" },
    el("div", { class: "row" }, title, model, state),
    el("div", { class: "measure" }, el("span", { text: "Now" }), now, nowText, el("span", { text: "Memory" }), memory, memoryText),
    el("div", { class: "charts" }, hour, day));
  element.update = ({ device, node }) => {
    setText(title, `Device ${device.index}`);
    once(model, [device.name, device.grants ?? 0], ([text, grants]) => [name(text), `, ${count(grants, "grant")}`]);
    once(state, [device.healthy, device.health_reason, device.state, device.drain_reason], states);
    const milli = PARTS.map((part) => device[part] ?? 0);
    const text = PARTS.map((part, i) => `${about(milli[i])} ${part}`).filter((_, i) => milli[i] || i === 0 || i === 3).join(", ");
    const found = parts(device, node.grants), users = whose(found);
    now.show(found, users ? `${users}; ${text}` : text);
    setText(nowText, `${text}; ${percent(device.promised)} promised`);
    element.classList.toggle("quiet", !device.grants && milli[3] >= 999);
    const whole = device.capacity || 1;
    const held = (1000 * (device.memory ?? 0)) / whole;
    const kept = Math.min(1000 - held, Math.max(0, (1000 * (device.granted ?? 0)) / whole - held));
    const lent = (device.asleep ?? 0) + (device.idle_memory ?? 0);
    const memoryNow = `${size(device.memory)} held, ${size(device.granted)} granted, of ${size(device.capacity)}`
      + (lent ? `; ${size(lent)} asleep or idle` : "");
    memory.show([held, kept], memoryNow);
    setText(memoryText, memoryNow);
    hour.show(node.hour, device.id);
    day.show(node.day, device.id);
  };
  return element;
}

function states([healthy, reason, state, drained]) {
  const found = [];
  if (!healthy) found.push(tag("does not work", "bad"), " ", name(reason ?? ""));
  if (state !== "ready") found.push(" ", tag(state, "warn"), " ", name(drained ?? ""));
  return found;
}

export function show(node) {
  const list = document.getElementById("device-list");
  const devices = node.devices ?? [];
  keyed(list, devices.map((device) => ({ device, node })), ({ device }) => device.id, card);
  // The day chart is refreshed only once a minute: until it has tenants, use the hour chart.
  const recorded = node.day?.tenants?.length ? node.day : node.hour;
  const tenants = recorded?.tenants ?? null;
  once(document.getElementById("device-tenants"), [tenants, [...colours()]], () => legend(tenants));
}

const NAMED = 12;

function legend(tenants) {
  if (tenants === null) return [];
  if (tenants.length === 0) return [el("p", { class: "none", text: "No tenant has used a device in the last day. Start something: gpushare run --memory 1GiB --time 30% -- CMD" })];
  const shown = tenants.slice(0, NAMED), others = tenants.slice(NAMED);
  const items = shown.map((one) => el("li", {}, ...named(one.name), el("b", { text: hours(one.hours) })));
  if (others.length) items.push(el("li", {}, `${others.length} others`, el("b", { text: hours(others.reduce((all, one) => all + one.hours, 0)) })));
  return [el("ul", { class: "key" }, el("li", { text: "Device time of the last day:" }), ...items)];
}

const hours = (number) => (number < 1 ? duration(number * 3.6e12) : `${number.toFixed(1)} h`);
