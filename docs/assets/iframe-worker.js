/* A page that is read from a file system may start no worker. The site's search then runs in a hidden frame of the page,
 * which stands for the worker: messages are events of the two. Loaded in place of the shim that the theme would fetch. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.frame.addEventListener("load", () => this.start(new URL(url, document.baseURI).href), { once: true });
      document.body.append(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          Object.assign(script, { src: address, onload: resolve, onerror: reject });
          inside.document.body.append(script);
        });
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      load(url).then(() => {
        this.tell = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
        this.waiting.splice(0).forEach(this.tell);
      }, (error) => this.dispatchEvent(new ErrorEvent("error", { error })));
    }

    postMessage(data) {
      this.tell ? this.tell(data) : this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
