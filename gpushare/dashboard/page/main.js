// The page: reads one stream, and draws changes once per frame.

import { Palette } from "./charts.js";
import * as detail from "./detail.js";
import * as devices from "./devices.js";
import { el, once, setClass, setText, tag } from "./dom.js";
import { about, clock, count } from "./format.js";
import * as grants from "./grants.js";
import * as health from "./health.js";
import * as nodes from "./nodes.js";
import * as sentences from "./sentences.js";
import { Store } from "./store.js";
import { Stream, takeToken } from "./stream.js";
import * as tenants from "./tenants.js";

const VIEWS = {
  devices: [devices], tick: [grants], tenants: [tenants], grants: [grants], standing: [sentences], receipts: [sentences],
  facts: [health], observed: [health], hour: [devices], day: [devices], state: [],
};
const ALL = [devices, tenants, grants, sentences, health];

const store = new Store();
const palettes = [];
const dirty = new Set();
let drawing = false;
let connection = { state: "closed", why: "" };

function draw(...views) {
  views.forEach((view) => dirty.add(view));
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const views = [...dirty];
    dirty.clear();
    showStatus();
    if (store.hello === null) return;
    nodes.show(store, choose);
    const top = `${document.querySelector("header").offsetHeight + 8}px`; // for scroll targets, below the header
    if (document.documentElement.style.scrollPaddingTop !== top) document.documentElement.style.scrollPaddingTop = top;
    const palette = (palettes[store.chosen] ??= new Palette());
    for (const view of views) view.show(store.node, palette);
    summary(store.node);
    detail.update(store);
    performance.mark("drawn");
  });
}

function choose(place) {
  store.chosen = place;
  for (const id of ["device-list", "grant-table"]) document.getElementById(id).scrollTop = 0;
  draw(...ALL);
}

function showStatus() {
  const status = document.getElementById("status"), notice = document.getElementById("notice");
  const away = store.node?.away ?? null;
  const [text, kind, why] =
    connection.state === "refused" ? ["not allowed", "away", `${connection.why}.`] :
    connection.state === "closed" && store.hello !== null ? ["dashboard away", "away", "The dashboard does not answer: gpushare dashboard was ended, or cannot be reached. What is shown is old. Trying again."] :
    connection.state === "closed" ? ["connecting", "", connection.why] :
    away !== null ? ["daemon away", "away", `${away}. ${old(store.node)}This page goes on when the daemon is back.`] :
    store.node?.state ? ["live", "live", ""] : ["connecting", "", ""];
  setText(status, text);
  setClass(status, kind);
  once(notice, why, (text) => [text]);
  notice.hidden = why === "";
  document.body.classList.toggle("stale", kind === "away");
  const title = store.nodes.length === 1 || !store.node ? "gpushare" : `${store.node.name} - gpushare`;
  if (document.title !== title) document.title = title;
}

const old = ({ grants, state }) => (grants === null ? "" : `What is shown is of ${clock(state.since_ns)}. `);

function summary(node) {
  const found = node.grants ?? new Map();
  const [guaranteed, borrowed, , idle] = nodes.mean(node);
  const waits = nodes.waiting(node);
  once(document.getElementById("summary"), [
    ["devices", node.devices?.length ?? "?"], ["used", about(guaranteed + borrowed)], ["of it borrowed", about(borrowed)],
    ["idle", about(idle)], ["grants", found.size], ["waiting", waits], ["tenants", node.tenants?.length ?? "?"],
    ...(node.facts?.simulated ? [["devices are", "simulated"]] : []),
    ...(node.facts?.degraded ? [["guarantees", "degraded"]] : []),
  ], (rows) => rows.map(([title, value]) => el("div", {}, el("dt", { text: title }), el("dd", { text: String(value) }))));
}

function hello({ changes, user, version }) {
  once(document.getElementById("who"), [changes, user, version, store.nodes.length], () => [
    `${count(store.nodes.length, "node")}, gpushare ${version}, as ${user} `, tag(changes ? "may change grants" : "read only"),
  ]);
}

function take(message) {
  const place = store.take(message);
  if (place === null) {
    hello(message.hello);
    draw(...ALL);
  } else {
    draw(...(place === store.chosen ? VIEWS[message.section] ?? [] : []));
  }
}

grants.listen(() => draw(grants), (id) => detail.open(store, id));
sentences.listen(() => draw(sentences));
const stream = new Stream(take, (state, why) => {
  connection = { state, why };
  draw();
});
takeToken();
addEventListener("hashchange", () => takeToken() && stream.start());
stream.start();
