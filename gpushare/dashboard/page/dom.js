// Elements, made of text alone: whatever a tenant names is text here, never markup.

const SVG = "http://www.w3.org/2000/svg";

// `attributes`: `class`, `text`, `on` (listeners by event), `hidden`, or what setAttribute takes; null is left out.
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// A name from outside, kept apart from the direction of the text around it.
export const name = (text) => el("bdi", { text });

export const tag = (text, kind = "") => el("span", { class: `tag ${kind}`, text });

// Sets it only where it is another, so that nothing is laid out anew for nothing.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, text) {
  if (element.className !== text) element.className = text;
}

// Makes the children of `parent` those of `items`, in their order: `make(item)` for one that is new, which gives an
// element with `update(item)`.
export function keyed(parent, items, key, make) {
  const known = (parent.known ??= new Map());
  const wanted = new Set(items.map(key));
  for (const [id, element] of known) {
    if (!wanted.has(id)) {
      element.remove();
      known.delete(id);
    }
  }
  let next = parent.firstElementChild;
  for (const item of items) {
    let element = known.get(key(item));
    if (element === undefined) known.set(key(item), (element = make(item)));
    element.update(item);
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
}

// Replaces what is in `parent`, where `value` is another than the last time.
export function once(parent, value, build) {
  const text = JSON.stringify(value);
  if (parent.shown === text) return;
  parent.shown = text;
  parent.replaceChildren(...build(value));
}

// A table in a box of its own that scrolls, also by keyboard. `columns`: { title, right, hint }.
export function table(label, columns, sort = null) {
  const head = el("tr");
  for (const column of columns) {
    const cell = el("th", { scope: "col", class: column.right ? "r" : null, title: column.hint });
    if (sort !== null && column.sort) cell.append(el("button", { type: "button", text: column.title, on: { click: () => sort(column) } }));
    else cell.textContent = column.title;
    column.cell = cell;
    head.append(cell);
  }
  const body = el("tbody");
  const box = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": label }, el("table", {}, el("thead", {}, head), body));
  return { box, body };
}
