// The page's state of each node.

import { HISTORY } from "./charts.js";

export const sum = (grant, field) => (grant.devices ?? []).reduce((total, part) => total + (part[field] ?? 0), 0);

class Node {
  grants = null;
  history = new Map();

  constructor(place, { name, host }) {
    Object.assign(this, { place, name, host });
  }

  take(section, value) {
    if (section === "grants") this.#takeGrants(value);
    else if (section === "tick") this.#look();
    else this[section] = value;
  }

  #takeGrants({ all, set, gone }) {
    if (all !== undefined) this.grants = new Map(Object.entries(all));
    this.grants ??= new Map();
    for (const [id, grant] of Object.entries(set ?? {})) this.grants.set(id, grant);
    for (const id of gone ?? []) {
      this.grants.delete(id);
      this.history.delete(id);
    }
  }

  #look() {
    for (const [id, grant] of this.grants ?? []) {
      const history = this.history.get(id) ?? [];
      history.push(sum(grant, "got"));
      if (history.length > HISTORY) history.shift();
      this.history.set(id, history);
    }
  }

  get away() {
    return this.state?.away ?? null;
  }
}

export class Store {
  nodes = [];
  hello = null;
  chosen = 0;

  // Takes a message; returns the place of the node that it is about; null: all nodes.
  take(message) {
    if (message.hello) {
      this.hello = message.hello;
      const before = this.nodes;
      this.nodes = message.hello.nodes.map((node, place) => new Node(place, node));
      this.nodes.forEach((node, place) => (node.history = before[place]?.history ?? node.history));
      this.chosen = Math.min(this.chosen, this.nodes.length - 1);
      return null;
    }
    this.nodes[message.node].take(message.section, message.value);
    return message.node;
  }

  get node() {
    return this.nodes[this.chosen];
  }
}
