// A page that is opened from disk may not start a Worker; search runs in one. Here the worker's
// script runs in a hidden frame instead, and both sides see what a Worker has: postMessage and
// "message" events. Material's search looks for a parent with this name.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${new URL(url, location.href)}"></scr` + "ipt>";
      this.ready = new Promise((resolve) => {
        frame.addEventListener("load", () => resolve(frame.contentWindow));
      });
      document.body.append(frame);
      // Before the script runs, so that it never sees a window's own postMessage.
      const own = frame.contentWindow;
      const answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready.then((inner) => { inner.postMessage = answer; });
      own.postMessage = answer;
    }
    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}
