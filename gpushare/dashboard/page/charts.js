// Bars of a device's current use, columns of its recorded time, lines of a grant's recent use.

import { el, keyed, setClass, setText, svg } from "./dom.js";
import { about } from "./format.js";
import { colours, place } from "./palette.js";

export const HISTORY = 60;

// `names`: classes of the parts. The element has `show(milli by part, label)`.
export function bar(names, thin = false) {
  const parts = names.map((one) => el("span", { class: `part ${one}` }));
  const element = el("div", { class: thin ? "bar thin" : "bar", role: "img" }, ...parts);
  element.show = (milli, label) => {
    parts.forEach((part, i) => {
      const basis = `${(milli[i] ?? 0) / 10}%`;
      if (part.style.flexBasis !== basis) part.style.flexBasis = basis;
    });
    if (element.getAttribute("aria-label") !== label) element.setAttribute("aria-label", label);
  };
  return element;
}

// Who uses a device now: each tenant in its colour, what it borrows striped. The element has `show(parts, label)`;
// `parts`: { tenant, kind, milli }, where `tenant` is left out for time that nobody has.
export function tenantBar(thin = false) {
  const element = el("div", { class: thin ? "bar thin" : "bar", role: "img" });
  element.show = (parts, label) => {
    keyed(element, parts.filter(({ milli }) => milli > 0), ({ tenant = "", kind }) => `${kind} ${tenant}`, ({ tenant, kind }) => {
      const part = el("span");
      part.update = ({ milli }) => {
        setClass(part, tenant === undefined ? `part ${kind}` : `part ${kind} ${place(tenant)}`);
        const basis = `${(milli / 10).toFixed(2)}%`;
        if (part.style.flexBasis !== basis) part.style.flexBasis = basis;
      };
      return part;
    });
    if (element.title !== label) element.title = label;
    if (element.getAttribute("aria-label") !== label) element.setAttribute("aria-label", label);
  };
  return element;
}

// The element has `show(chart, device)`: the result of rows.usage (Python), and a device's id.
export function columns(title, span) {
  const plot = el("div", { class: "columns", role: "img" });
  const total = el("span");
  const element = el("figure", {}, el("figcaption", {}, el("span", { text: title }), total), plot);
  element.show = (chart, device) => {
    const found = chart?.devices?.[device];
    if (element.chart === chart && element.colours === colours()) return;
    Object.assign(element, { chart, colours: colours() });
    if (found === undefined) {
      plot.replaceChildren();
      setText(total, chart?.error ? "not known" : chart ? "no record yet" : "");
      plot.setAttribute("aria-label", `${title}: no record`);
      return;
    }
    const sums = new Map();
    plot.replaceChildren(...found.map((one) => column(one, chart.tenants, sums)));
    const recorded = found.filter((one) => one !== null).length;
    const parts = [...sums].sort((a, b) => b[1] - a[1]).map(([tenant, milli]) => `${tenant} ${about(milli / recorded)}`);
    const used = [...sums.values()].reduce((a, b) => a + b, 0) / recorded;
    setText(total, `${about(used)} used`);
    plot.setAttribute("aria-label", `${title}, ${span}: ${parts.join(", ") || "nobody used it"}; ${about(1000 - used)} unused`);
    plot.title = `${parts.slice(0, 8).join(", ") || "nobody used it"}; ${about(1000 - used)} idle or switching`;
  };
  return element;
}

function column(shares, tenants, sums) {
  if (shares === null) return el("div", { class: "void" });
  const parts = Object.entries(shares).map(([at, milli]) => ({ tenant: tenants[at].name, milli }));
  for (const { tenant, milli } of parts) sums.set(tenant, (sums.get(tenant) ?? 0) + milli);
  return stack(parts.sort((a, b) => (a.tenant < b.tenant ? -1 : 1)));
}

// A column of parts in their tenants' colours, from below. `parts`: { tenant, milli }.
export function stack(parts) {
  return el("div", {}, ...parts.map(({ tenant, milli }) => {
    const part = el("div", { class: place(tenant) });
    part.style.flexBasis = `${milli / 10}%`;
    return part;
  }));
}

// What a grant got at the last HISTORY looks, relative to the most that it can get.
export function spark() {
  const line = svg("polyline", {});
  const element = svg("svg", { class: "spark", viewBox: `0 0 ${HISTORY - 1} 18`, preserveAspectRatio: "none", role: "img" },
    svg("line", { x1: 0, x2: HISTORY - 1, y1: 17.5, y2: 17.5 }), line);
  element.show = (history, whole) => {
    const first = HISTORY - history.length;
    const points = history.map((milli, i) => `${first + i},${(17 - 16 * Math.min(1, milli / whole)).toFixed(1)}`).join(" ");
    if (element.points === points) return;
    element.points = points;
    line.setAttribute("points", points);
    element.setAttribute("aria-label", `got, in the last looks: from ${about(Math.min(...history))} to ${about(Math.max(...history))}`);
  };
  return element;
}
