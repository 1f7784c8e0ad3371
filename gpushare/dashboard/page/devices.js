// Devices: the current and the recorded use of each.

import { bar, columns } from "./charts.js";
import { el, keyed, name, once, setText, tag } from "./dom.js";
import { about, count, duration, percent, size } from "./format.js";

const PARTS = ["guaranteed", "borrowed", "switching", "idle"];

function card(palette) {
  const title = el("b"), model = el("span", { class: "dim" }), state = el("span");
  const now = bar(PARTS), nowText = el("p"), memory = bar(["held", "kept"]), memoryText = el("p");
  const hour = columns("Last hour", "in columns of two minutes", palette);
  const day = columns("Last day", "in columns of an hour", palette);
  const element = el("article", { class: "card device" },
    el("div", { class: "row" }, title, model, state),
    el("div", { class: "measure" }, el("span", { text: "Now" }), now, nowText, el("span", { text: "Memory" }), memory, memoryText),
    el("div", { class: "charts" }, hour, day));
  element.update = ({ device, node }) => {
    setText(title, `Device ${device.index}`);
    once(model, [device.name, device.grants ?? 0], ([text, grants]) => [name(text), `, ${count(grants, "grant")}`]);
    once(state, [device.healthy, device.health_reason, device.state, device.drain_reason], states);
    const milli = PARTS.map((part) => device[part] ?? 0);
    const parts = PARTS.map((part, i) => `${about(milli[i])} ${part}`).filter((_, i) => milli[i] || i === 0 || i === 3).join(", ");
    now.show(milli, parts);
    setText(nowText, `${parts}; ${percent(device.promised)} promised`);
    const whole = device.capacity || 1;
    const held = (1000 * (device.memory ?? 0)) / whole;
    const kept = Math.min(1000 - held, Math.max(0, (1000 * (device.granted ?? 0)) / whole - held));
    const lent = (device.asleep ?? 0) + (device.idle_memory ?? 0);
    const text = `${size(device.memory)} held, ${size(device.granted)} granted, of ${size(device.capacity)}`
      + (lent ? `; ${size(lent)} asleep or idle` : "");
    memory.show([held, kept], text);
    setText(memoryText, text);
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

export function show(node, palette) {
  const list = document.getElementById("device-list");
  const devices = node.devices ?? [];
  keyed(list, devices.map((device) => ({ device, node })), ({ device }) => device.id, () => card(palette));
  // The day chart is refreshed only once a minute: until it has tenants, use the hour chart.
  const recorded = node.day?.tenants?.length ? node.day : node.hour;
  once(document.getElementById("device-tenants"), recorded?.tenants ?? null, (tenants) => legend(tenants, palette));
}

function legend(tenants, palette) {
  if (tenants === null) return [];
  if (tenants.length === 0) return [el("p", { class: "none", text: "No tenant has used a device in the last day. Start something: gpushare run --memory 1GiB --time 30% -- CMD" })];
  const shown = tenants.slice(0, 7), others = tenants.slice(7);
  const items = shown.map((one) => el("li", {}, palette.key(one.name), name(one.name), el("b", { text: hours(one.hours) })));
  if (others.length) items.push(el("li", {}, el("i", { class: "p7" }), `${others.length} others`, el("b", { text: hours(others.reduce((all, one) => all + one.hours, 0)) })));
  return [el("ul", { class: "key" }, el("li", { text: "Device time of the last day:" }), ...items)];
}

const hours = (number) => (number < 1 ? duration(number * 3.6e12) : `${number.toFixed(1)} h`);
