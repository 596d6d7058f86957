"""A headless Chromium for tests, by its own debugging protocol over a pipe: nothing to install.

The distribution's package is enough (`apt-get install chromium`).
"""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: --no-sandbox, because a container's root has no user namespace; pages are the tests' own.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe",
)  # fmt: skip
#: What an evaluation is answered with when the page is left meanwhile.
LEFT = {"Inspected target navigated or closed", "Execution context was destroyed."}


class Left(AssertionError):
    """The page was left before it answered."""


def found() -> str | None:
    """The browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. `requests`, `errors`: addresses that were asked for; what the console complained of.

    Example:
        with Browser() as browser:
            browser.open(path.as_uri(), width=380)
            assert browser.run("document.title") == "tritemm"
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._ids, self._unread = itertools.count(1), b""

    def __enter__(self) -> Browser:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads commands from descriptor 3, and writes to 4.
        command = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        words = ["bash", "-c", command, "bash", found(), *FLAGS]
        words.append(f"--user-data-dir={self._folder.name}")
        self._process = subprocess.Popen(
            words, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
        )
        os.close(theirs_in), os.close(theirs_out)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._in), os.close(self._out)
        self._folder.cleanup()

    def open(self, address: str, width: int = 1200, height: int = 900) -> None:
        """Load the page in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete'", seconds=60)

    def run(self, expression: str):
        """The value of a JavaScript expression on the page; promises are waited for."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 10) -> None:
        """Until the expression is true, on this page or the one that a click leads to."""

        def holds() -> bool:
            try:
                return self.run(expression)
            except Left:
                return False

        self._until(holds, expression, seconds)

    def point(self, selector: str) -> None:
        """Move the mouse over the first element of this selector."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self._middle(selector))

    def click(self, selector: str) -> None:
        where = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def type(self, selector: str, text: str) -> None:
        """Put text into a field, and let go of a key, for pages that wait for that."""
        self.click(selector)
        self.call("Input.insertText", text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp")

    def _middle(self, selector: str) -> dict[str, float]:
        return self.run(
            f"""(() => {{
              const found = document.querySelector({json.dumps(selector)});
              found.scrollIntoView({{block: "center", inline: "nearest"}});
              const box = found.getBoundingClientRect();
              return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
            }})()"""
        )

    def call(self, method: str, **params) -> dict:
        """A command of the protocol, and what it returns."""
        message = {"id": next(self._ids), "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer: list[dict] = []

        def answered() -> bool:
            answer.extend(m for m in self._messages() if m.get("id") == message["id"])
            return bool(answer)

        self._until(answered, method)
        if "error" in answer[0]:
            message = answer[0]["error"]["message"]
            kind = Left if message in LEFT else AssertionError
            raise kind(f"{method}: {message}")
        return answer[0]["result"]

    def _until(self, holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end or self._process.poll() is not None:
                raise AssertionError(f"Chromium did not come to an end with {what}: {self.errors}")

    def _messages(self) -> list[dict]:
        """What has come since, the events among it noted."""
        if select.select([self._in], [], [], 0.05)[0]:
            self._unread += os.read(self._in, 1 << 20)
        *whole, self._unread = self._unread.split(b"\0")
        found = [json.loads(text) for text in whole]
        for method, params in ((m["method"], m["params"]) for m in found if "method" in m):
            level = params.get("entry", params).get("level", params.get("type"))
            if method == "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            elif method == "Runtime.exceptionThrown" or level == "error":
                self.errors.append(json.dumps(params))
        return found
