// The stream of changes, and calls. The token comes in the URL's fragment, which browsers do not send; it is kept for
// this tab, and sent in a header that pages of other sites cannot set.

const SILENT_MS = 40000; // more than two of the server's beats
const HIDDEN_MS = 60000;
const FIRST_MS = 300, LAST_MS = 5000;
const TOKEN = /^[\w-]{32,}$/;

export function takeToken() {
  const given = location.hash.slice(1);
  if (!TOKEN.test(given)) return false;
  sessionStorage.setItem("gpushare-token", given);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

const headers = () => ({ Authorization: `Bearer ${sessionStorage.getItem("gpushare-token") ?? ""}` });

async function failure(response) {
  const found = await response.json().catch(() => ({}));
  return new Error(found.error ?? `status ${response.status}`);
}

async function answer(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await failure(response);
  return response;
}

export const ask = (path) => answer(path).then((response) => response.json());

export const askText = (path) => answer(path).then((response) => response.text());

export async function change(path, body) {
  const response = await fetch(path, { method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(body) });
  if (!response.ok) throw await failure(response);
}

// Calls `onMessage(object)` for each message, and `onState("open" | "refused" | "closed", why)`. A hidden page closes
// its stream after HIDDEN_MS: a browser allows six connections to a host for all tabs together.
export class Stream {
  #abort = null;
  #hidden = null;
  #pause = FIRST_MS;
  #timer = null;

  constructor(onMessage, onState) {
    this.onMessage = onMessage;
    this.onState = onState;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(this.#hidden);
      if (document.hidden) this.#hidden = setTimeout(() => this.#abort?.abort(), HIDDEN_MS);
      else if (this.#abort === null) this.start();
    });
  }

  start() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    const abort = (this.#abort = new AbortController());
    this.#read(abort).catch((error) => error).then((error) => {
      if (this.#abort !== abort) return; // replaced by a newer connection
      this.#abort = null;
      if (error?.refused) return this.onState("refused", error.message);
      if (document.hidden) return undefined;
      this.onState("closed", error?.message ?? "");
      this.#timer = setTimeout(() => this.start(), this.#pause);
      this.#pause = Math.min(2 * this.#pause, LAST_MS);
      return undefined;
    });
  }

  async #read(abort) {
    const response = await fetch("api/stream", { headers: headers(), signal: abort.signal });
    if (!response.ok) throw Object.assign(await failure(response), { refused: response.status === 401 });
    this.#pause = FIRST_MS;
    this.onState("open", "");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const silent = setTimeout(() => abort.abort(), SILENT_MS);
      const { value, done } = await reader.read().finally(() => clearTimeout(silent));
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) if (event.startsWith("data: ")) this.onMessage(JSON.parse(event.slice(6)));
    }
  }
}
