// The daemon's sentences: the two standing questions, and receipts.

import { el, name, once } from "./dom.js";
import { colours, named } from "./palette.js";

const sentences = (rows) => el("ul", { class: "sentences" }, ...rows.map((row) => el("li", { class: row.kind ?? null }, name(row.text))));

const none = (text) => [el("p", { class: "none", text })];

let held = false;

export function listen(redraw) {
  const hold = document.getElementById("hold");
  hold.addEventListener("click", () => {
    held = !held;
    hold.setAttribute("aria-pressed", held);
    redraw();
  });
}

export function show(node) {
  const { standing, receipts } = node;
  once(document.getElementById("idle"), standing?.idle ?? null, (rows) => answer(rows, "Nobody: every grant that holds memory has computed lately."));
  once(document.getElementById("waiting"), standing?.waiting ?? null, (rows) => answer(rows, "Nobody: no tenant that waits has less than it is entitled to."));
  if (held) return;
  once(document.getElementById("wait-list"), [node.waits ?? null, [...colours()]], ([rows]) =>
    (rows?.length ? [el("ul", { class: "sentences" }, ...rows.map((row) => el("li", {}, ...named(row.tenant), " ", name(row.text))))] : answer(rows, "Nobody has waited for a device in what the record has.")));
  once(document.getElementById("receipt-list"), receipts ?? null, (rows) => answer(rows, "Nobody has waited for a device in what the record has."));
}

function answer(rows, nobody) {
  if (rows === null) return none("Asking the daemon.");
  return rows.length ? [sentences(rows)] : none(nobody);
}

export { sentences };
