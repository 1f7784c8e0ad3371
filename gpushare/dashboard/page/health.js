// Health: the node, its ledger and walls, the audit's findings.

import { el, name, once, tag } from "./dom.js";
import { clock, count, duration } from "./format.js";
import { sentences } from "./sentences.js";

const state = (good, text, otherwise = "bad") => el("span", { class: good ? "good" : otherwise, text: `${good ? "\u2713" : "\u2717"} ${text}` });

function facts(rows) {
  return el("dl", { class: "facts" }, ...rows.filter(Boolean).flatMap(([title, value]) => [el("dt", { text: title }), el("dd", {}, value)]));
}

const card = (title, ...content) => el("div", { class: "card" }, el("h3", { text: title }), ...content);

function nodeCard(found) {
  return card("Node", facts([
    ["devices", state(found.working === found.devices, `${found.working} of ${found.devices} work`)],
    ["guarantees", state(!found.degraded, found.degraded ? "degraded: a tenant has less than it is guaranteed" : "all kept")],
    ["daemon", `${found.version}, process ${found.pid}, run ${found.epoch}, since ${clock(found.started_ns)}`],
    ["driver", found.simulated ? tag("simulated devices", "warn") : found.driver],
    ["longest turn", `${duration(found.loop_ns)} in the last minute`],
  ]));
}

function ledgerCard({ ledger }) {
  return card("Ledger", facts([
    ["writes", state(ledger.healthy, ledger.healthy ? "yes" : ledger.reason)],
    ["waiting rows", String(ledger.waiting)],
    ["lost, set aside", `${ledger.lost}, ${ledger.set_aside}`],
    ledger.damaged.length ? ["damaged", name(ledger.damaged.join(", "))] : null,
  ]));
}

function wallsCard({ walls, enforce }) {
  const rows = walls.map((wall) => [wall.name, el("span", {}, state(wall.holds, wall.holds ? `keeps ${wall.keeps}` : `${wall.why}: ${wall.lost}`, "lacks"))]);
  return card(`Walls (enforce: ${enforce})`, rows.length ? facts(rows) : el("p", { class: "none", text: "None were tried." }));
}

const list = (title, rows, none) =>
  card(title, rows.length ? sentences(rows.map((text) => ({ text }))) : el("p", { class: "none", text: none }));

export function show(node) {
  const { facts: found, observed } = node;
  once(document.getElementById("health-list"), [found ?? null, observed ?? null], () => [
    ...(found ? [nodeCard(found), ledgerCard(found), wallsCard(found)] : []),
    ...(observed ? [
      list(`Findings of the audit (${count(observed.open, "open one")})`, observed.findings, "None: nobody uses a device past a share."),
      list("Attempts without a share", observed.attempts, "None: no container asked for a GPU in another way."),
    ] : []),
  ]);
}
