// One colour for each tenant, the same in every chart and row, on every node and after a reload: it follows from the
// names alone. None of the colours means a state; that something is borrowed, switching or idle is shown by a pattern.

import { el, name } from "./dom.js";

export const COLOURS = 12;
const STEPS = [1, 5, 7, 11]; // each of them leads through all colours

// FNV-1a
function hash(text) {
  let found = 0x811c9dc5;
  for (let i = 0; i < text.length; i += 1) found = Math.imul(found ^ text.charCodeAt(i), 0x01000193) >>> 0;
  return found;
}

// Colours by name. Each name has its own order of preference, and takes the first colour that those before it have left;
// the thirteenth begins again with another pattern. So a new tenant leaves the colours of nearly all others.
function given(names) {
  const found = new Map(), taken = [];
  for (const one of names) {
    const number = hash(one), step = STEPS[(number >>> 8) % STEPS.length];
    const layer = Math.floor(found.size / COLOURS);
    let colour = number % COLOURS;
    while ((taken[colour] ?? 0) > layer) colour = (colour + step) % COLOURS;
    taken[colour] = layer + 1;
    found.set(one, `c${colour} l${layer % 3}`);
  }
  return found;
}

let known = "";
let held = new Map();

// `now`: the names of the tenants that there are; `before`: of those that only the record has. Returns whether any
// colour is another one than before.
export function learn(now, before) {
  const first = [...new Set(now)].sort(), later = [...new Set(before)].filter((one) => !first.includes(one)).sort();
  const names = [...first, ...later];
  if (names.join("\n") === known) return false;
  known = names.join("\n");
  const found = given(names);
  if (names.every((one) => held.get(one) === found.get(one))) return false;
  held = found;
  return true;
}

// Changes whenever a colour does.
export const colours = () => held;

export const place = (tenant) => held.get(tenant) ?? "c0 l0";

export const key = (tenant) => el("i", { class: `key-box ${place(tenant)}` });

// A tenant's name after its colour.
export const named = (tenant) => [key(tenant), name(tenant)];
