// All nodes of the page, one button each; the chosen one is shown below.

import { bar } from "./charts.js";
import { el, keyed, name, once, setText } from "./dom.js";
import { about, count } from "./format.js";
import { sum } from "./store.js";

const PARTS = ["guaranteed", "borrowed", "switching", "idle"];

// The mean over all devices, in milli of one.
export function mean(node) {
  const devices = node.devices ?? [];
  return PARTS.map((part) => devices.reduce((all, device) => all + (device[part] ?? 0), 0) / (devices.length || 1));
}

export function waiting(node) {
  return [...(node.grants?.values() ?? [])].filter((grant) => sum(grant, "waited") > 0).length;
}

export function show(store, choose) {
  const strip = document.getElementById("nodes");
  strip.hidden = store.nodes.length < 2;
  if (strip.hidden) return;
  keyed(strip, store.nodes, (node) => node.place, ({ place }) => button(place, store, choose));
}

function button(place, store, choose) {
  const title = el("b"), state = el("span"), now = bar(PARTS, true);
  const element = el("button", { type: "button", class: "node", on: { click: () => choose(place) } }, title, now, state);
  element.update = (node) => {
    once(title, node.name, (text) => [name(text)]);
    const milli = mean(node);
    now.show(milli, `${about(milli[0] + milli[1])} used`);
    setText(state, summary(node, milli));
    state.classList.toggle("bad", node.away !== null);
    element.title = node.away ?? node.name;
    element.setAttribute("aria-pressed", store.chosen === place);
  };
  return element;
}

function summary(node, milli) {
  if (node.away !== null) return "\u2717 away";
  if (!node.devices) return "asking";
  const waits = waiting(node);
  return `${about(milli[0] + milli[1])} of ${count(node.devices.length, "device")}, ${count(node.grants?.size ?? 0, "grant")}${waits ? `, ${waits} wait` : ""}`;
}
