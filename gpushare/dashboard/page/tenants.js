// Tenants, as a tree. Times are of the node in the last second, of each tenant and all below it.

import { el, keyed, once, setText, table, tag } from "./dom.js";
import { duration, percent, size } from "./format.js";
import { named, place } from "./palette.js";

const COLUMNS = [
  { title: "Tenant" }, { title: "State" },
  { title: "Guarantee", right: true, hint: "what it always gets when it wants it; 100% is one device" },
  { title: "Entitled", right: true, hint: "what it should get now" }, { title: "Used", right: true },
  { title: "Lent", right: true, hint: "of its guarantee, used by others" },
  { title: "Borrowed", right: true, hint: "used beyond its guarantee" },
  { title: "Waited", right: true, hint: "100% is one grant that waited for one device all the time" },
  { title: "Longest wait", right: true }, { title: "Memory", right: true, hint: "granted, of what is guaranteed" },
  { title: "Weight", right: true }, { title: "Grants", right: true },
];
const STATES = { starved: "bad", degraded: "bad", borrowing: "warn" };

const made = table("Tenants", COLUMNS);
document.getElementById("tenant-table").append(made.box);

function* tree(tenants, parent = null, level = 0) {
  for (const tenant of tenants) {
    if ((tenant.parent ?? null) !== parent) continue;
    yield { tenant, level };
    yield* tree(tenants, tenant.name, level + 1);
  }
}

function row() {
  const cells = COLUMNS.map((column, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: column.right ? "r" : "name" }));
  const element = el("tr", {}, ...cells);
  element.update = ({ tenant, level }) => {
    once(cells[0], [tenant.name, level, place(tenant.name)], () => [el("span", { class: "level", text: "\u2003".repeat(level) }), ...named(tenant.name)]);
    once(cells[1], [tenant.state, tenant.have], ([state, have]) => [
      state === "idle" ? el("span", { class: "dim", text: state }) : tag(state.replace("_", " "), STATES[state]),
      have ? ` has ${percent(have)}` : null,
    ].filter(Boolean));
    const { guarantee, entitled, used, lent, borrowed, waited } = tenant;
    [guarantee, entitled, used, lent, borrowed, waited].forEach((milli, i) => number(cells[i + 2], percent(milli), milli));
    number(cells[8], tenant.waits ? duration(tenant.wait_max_ns) : "none", tenant.waits);
    number(cells[9], tenant.memory ? `${size(tenant.allocated)} of ${size(tenant.memory)}` : size(tenant.allocated), tenant.allocated || tenant.memory);
    number(cells[10], String(Math.round((tenant.weight ?? 0) * 100) / 100), true);
    element.classList.toggle("quiet", !tenant.grants && !used && !waited);
    number(cells[11], String(tenant.grants ?? 0), tenant.grants);
  };
  return element;
}

export function number(cell, text, some) {
  setText(cell, text);
  cell.classList.toggle("zero", !some);
}

export function show(node) {
  keyed(made.body, [...tree(node.tenants ?? [])], ({ tenant }) => tenant.name, row);
}
