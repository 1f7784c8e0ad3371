// One grant: its facts, the decisions about it, its receipts and, if this dashboard may, buttons to release or resize.

import { el, name, once, table } from "./dom.js";
import { clock, duration, percent, size } from "./format.js";
import { sentences } from "./sentences.js";
import { ask, change } from "./stream.js";

const dialog = document.getElementById("detail");
let now = null; // what is shown: { node, id }

dialog.addEventListener("close", () => (now = null));
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());

export async function open(store, id) {
  const node = store.node;
  const grant = node.grants.get(id);
  if (grant === undefined) return;
  now = { node: node.place, id };
  const story = el("div", {}, el("p", { class: "none", text: "Asking the daemon." }));
  const close = el("button", { type: "button", text: "Close", on: { click: () => dialog.close() } });
  const facts = el("div");
  dialog.replaceChildren(
    el("h2", { id: "detail-title" }, el("span", {}, "Grant ", name(id)), close),
    facts,
    ...(store.hello.changes ? [changes(node, id, store.hello.user)] : []),
    story,
  );
  dialog.facts = facts;
  update(store);
  dialog.showModal();
  try {
    const found = await ask(`api/grant?${new URLSearchParams({ node: node.place, id })}`);
    story.replaceChildren(...history(found));
  } catch (error) {
    story.replaceChildren(el("p", { class: "bad", text: error.message }));
  }
}

// Updates the facts while the grant is shown.
export function update(store) {
  if (now === null || store.node.place !== now.node) return;
  const grant = store.node.grants?.get(now.id);
  once(dialog.facts, grant ?? null, (found) => (found === null ? [el("p", { class: "bad", text: "It has ended." })] : facts(found)));
}

function facts(grant) {
  const rows = [
    ["tenant", name(grant.tenant)], ["phase", grant.phase], ["class", grant.class_],
    ["runs in it", runs(grant)], ["owner", `user ${grant.uid ?? 0}`],
    ["made", clock(grant.created_ns)],
    grant.key && ["key", name(grant.key)],
    grant.gang && ["gang", name(grant.gang)],
    grant.attached && ["attached", sentences(grant.attached.map((text) => ({ text })))],
    grant.notice && ["notice", name(grant.notice)],
    grant.open_walls && ["walls that do not hold", grant.open_walls.join(", ")],
  ].filter(Boolean);
  const columns = ["Device", "Asked", "Entitled", "Got", "Borrowed", "Lent", "Waited", "Waits", "Longest", "Memory"].map((title) => ({ title, right: true }));
  const parts = table(`Devices of grant ${grant.id}`, columns);
  parts.body.append(...(grant.devices ?? []).map((part) => el("tr", {}, ...[
    part.device ?? 0, percent(part.asked), percent(part.entitled), percent(part.got), percent(part.borrowed), percent(part.lent),
    percent(part.waited), part.waits ?? 0, part.waits ? duration(part.wait_max_ns) : "none",
    `${size(part.memory)} of ${size(part.memory_limit)}${part.memory_borrowed ? `, ${size(part.memory_borrowed)} borrowed` : ""}${part.memory_hosted ? `, ${size(part.memory_hosted)} in host memory` : ""}`,
  ].map((text) => el("td", { class: "r", text: String(text) })))));
  return [el("dl", { class: "facts" }, ...rows.flatMap(([title, value]) => [el("dt", { text: title }), el("dd", {}, value)])), parts.box];
}

function runs({ pids = 0, kind }) {
  if (pids === 0) return kind ? `a ${kind}, in which nothing has joined` : "nothing yet";
  return `${pids === 1 ? "1 process" : `${pids} processes`}${kind === "container" ? " in a container" : ""}`;
}

function history({ now: lines, decisions, receipts }) {
  const part = (title, rows, none) => [el("h3", { text: title }), rows.length ? sentences(rows) : el("p", { class: "none", text: none })];
  return [
    ...part("Now", lines.map((text) => ({ text })), "Nothing is to be said."),
    ...part("Decisions", decisions.map((one) => ({ text: `${clock(one.at_ns)}  ${one.text}` })), "None are recorded."),
    ...part("Receipts", receipts, "It has not waited in what the record has."),
  ];
}

function changes(node, id, user) {
  const answer = el("p", { role: "status" });
  const memory = el("input", { name: "memory", placeholder: "8GiB", autocomplete: "off" });
  const time = el("input", { name: "time", placeholder: "30%", autocomplete: "off" });
  const attempt = async (path, body, done) => {
    answer.className = "dim";
    answer.textContent = "Asking the daemon.";
    try {
      await change(path, { node: node.place, grant: id, ...body });
      answer.className = "good";
      answer.textContent = done;
    } catch (error) {
      answer.className = "bad";
      answer.textContent = error.message;
    }
  };
  const resize = el("form", { on: { submit: (event) => {
    event.preventDefault();
    attempt("api/resize", { memory: memory.value.trim(), time: time.value.trim() }, "It has the new share.");
  } } }, el("label", {}, "Memory", memory), el("label", {}, "Time", time), el("button", { class: "primary", text: "Resize" }));
  const sure = el("span", { hidden: true }, "This ends what runs in it. ", el("button", { type: "button", class: "danger", text: "Yes, release it", on: {
    click: () => attempt("api/release", {}, "It is released."),
  } }));
  const release = el("button", { type: "button", class: "danger", text: "Release", on: { click: () => {
    sure.hidden = !sure.hidden;
    if (!sure.hidden) sure.querySelector("button").focus();
  } } });
  return el("div", {}, el("h3", { text: `Change it, as ${user}` }), resize, el("p", {}, release, " ", sure), answer);
}
