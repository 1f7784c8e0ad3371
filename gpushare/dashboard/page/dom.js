// Makes elements from text only: names chosen by tenants are never markup.

const SVG = "http://www.w3.org/2000/svg";

// `attributes`: `text`, `on` (listeners by event), or anything that setAttribute takes; null and false are left out.
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

// A name from outside, isolated from the direction of the surrounding text.
export const name = (text) => el("bdi", { text });

export const tag = (text, kind = "") => el("span", { class: `tag ${kind}`, text });

// Sets the text only if it differs, to avoid a needless layout.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, text) {
  if (element.className !== text) element.className = text;
}

// Makes the children of `parent` match `items`, in order. `make(item)`: returns the element of a new item, which has
// `update(item)`.
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

// Replaces the children of `parent` if `value` differs from the last call's.
export function once(parent, value, build) {
  const text = JSON.stringify(value);
  if (parent.shown === text) return;
  parent.shown = text;
  parent.replaceChildren(...build(value));
}

// A table in its own box that scrolls, also by keyboard. `columns`: { title, right, hint, sort }.
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
