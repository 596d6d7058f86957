// A page that is opened from disk may not start a Worker; search runs in one. Here the worker's
// script runs in a hidden frame instead, and both sides see what a Worker has: postMessage and
// messages in return.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script src="${new URL(url, location.href)}"></scr` + "ipt>";
      this.ready = new Promise((resolve) => this.frame.addEventListener("load", resolve));
      document.body.append(this.frame);
      // As of a Worker, answers are copies that arrive later.
      const answer = (data) => setTimeout(
        (data) => this.onmessage?.(new MessageEvent("message", { data })), 0, structuredClone(data),
      );
      // Before the script runs, so that it never sees a window's own postMessage.
      this.frame.contentWindow.postMessage = answer;
      this.ready.then(() => { this.frame.contentWindow.postMessage = answer; });
    }
    postMessage(data) {
      const sent = new MessageEvent("message", { data: structuredClone(data) });
      this.ready.then(() => this.frame.contentWindow?.dispatchEvent(sent));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
