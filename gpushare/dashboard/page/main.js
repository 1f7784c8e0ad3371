// The page: reads one stream, and draws changes once per frame.

import * as detail from "./detail.js";
import * as devices from "./devices.js";
import { once, setClass, setText, tag } from "./dom.js";
import { clock, count } from "./format.js";
import * as fleet from "./fleet.js";
import * as grants from "./grants.js";
import * as health from "./health.js";
import * as palette from "./palette.js";
import * as sentences from "./sentences.js";
import { Store } from "./store.js";
import { Stream, takeToken } from "./stream.js";
import * as tenants from "./tenants.js";
import * as usage from "./usage.js";

const VIEWS = {
  devices: [devices], tick: [grants], tenants: [tenants], grants: [grants], standing: [sentences], receipts: [sentences], waits: [sentences],
  facts: [health], observed: [health], hour: [devices], day: [devices], state: [],
};
const ALL = [devices, tenants, grants, usage, sentences, health];

const store = new Store();
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
    if (learn()) ALL.forEach((view) => views.includes(view) || views.push(view));
    fleet.show(store, choose);
    const top = `${document.querySelector("header").offsetHeight + 8}px`; // for scroll targets, below the header
    if (document.documentElement.style.scrollPaddingTop !== top) document.documentElement.style.scrollPaddingTop = top;
    for (const view of views) view.show(store.node);
    detail.update(store);
    performance.mark("drawn");
  });
}

// The colours of all tenants that any node has or has recorded.
function learn() {
  const now = [], before = usage.tenants();
  for (const node of store.nodes) {
    now.push(...(node.tenants ?? []).map((one) => one.name));
    for (const grant of node.grants?.values() ?? []) now.push(grant.tenant);
    for (const chart of [node.hour, node.day]) before.push(...(chart?.tenants ?? []).map((one) => one.name));
  }
  return palette.learn(now, before);
}

function choose(place) {
  store.chosen = place;
  for (const id of ["device-list", "grant-table"]) document.getElementById(id).scrollTop = 0;
  draw(...ALL);
  document.getElementById("chosen").scrollIntoView({ block: "start" });
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

function hello({ changes, user, version }) {
  once(document.getElementById("who"), [changes, user, version, store.nodes.length], () => [
    `${count(store.nodes.length, "node")}, gpushare ${version}, as ${user} `, tag(changes ? "may change grants" : "read only"),
  ]);
}

function take(message) {
  const place = store.take(message);
  if (place === null) {
    hello(message.hello);
    usage.start(store.nodes);
    draw(...ALL);
  } else {
    if (message.section === "state" && message.value.away === null) usage.retry();
    draw(...(place === store.chosen ? VIEWS[message.section] ?? [] : []));
  }
}

grants.listen(() => draw(grants), (id) => detail.open(store, id));
sentences.listen(() => draw(sentences));
usage.listen(() => draw(usage));
const stream = new Stream(take, (state, why) => {
  connection = { state, why };
  draw();
});
takeToken();
addEventListener("hashchange", () => takeToken() && stream.start());
stream.start();
