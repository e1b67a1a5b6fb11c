"""A page in headless Chromium, driven over its debugging pipe (the Chrome DevTools Protocol), without a driver."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

# The smallest of Debian's first.
PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe"
).split()
PATIENCE = 120.0


def find_browser() -> str | None:
    """Return the path of a browser, None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A page that is open inside `with`; `console` has the messages on its console, including errors."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._number = 0
        self._text = b""
        self._session: str | None = None
        self.console: list[str] = []
        self.events: list[str] = []

    def __enter__(self) -> "Browser":  # noqa: PYI034 - typing.Self came with 3.11
        program = find_browser()
        assert program, f"none of {', '.join(PROGRAMS)} is installed"
        self._profile = tempfile.mkdtemp(prefix="ddlb")
        browser_in, self._to = os.pipe()
        self._from, browser_out = os.pipe()
        argv = ["sh", "-c", 'exec "$@" 3</dev/fd/$IN 4>/dev/fd/$OUT', "sh", program, *FLAGS]
        self._process = subprocess.Popen(
            [*argv, f"--user-data-dir={self._profile}", "about:blank"], pass_fds=(browser_in, browser_out),
            env={**os.environ, "IN": str(browser_in), "OUT": str(browser_out)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(browser_in)
        os.close(browser_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.open(self._url)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        while os.read(self._from, 65536):  # to its end: all processes of the browser have ended
            pass
        os.close(self._from)
        shutil.rmtree(self._profile)

    def open(self, url: str) -> None:
        """Open a URL, and wait until the page is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self.events:
            self._record(self._read_message(time.monotonic() + PATIENCE))

    def call(self, method: str, **params: object) -> Mapping[str, Any]:
        """Call a method of the protocol; return its result."""
        self._number += 1
        call: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            call["sessionId"] = self._session
        os.write(self._to, json.dumps(call).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self._read_message(deadline)
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: Mapping[str, Any] = message["result"]
                return result
            self._record(message)

    def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript; return its value, which must be JSON."""
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def click(self, selector: str) -> None:
        """Click on the first element of a CSS selector with the mouse."""
        quoted = json.dumps(selector)
        self.evaluate(f"document.querySelector({quoted}).scrollIntoView({{block: 'center'}})")
        x, y = self.evaluate(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector({quoted}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def set_view(self, width: int, scheme: str = "light", *, script: bool = True) -> None:
        """Set the width of the page in pixels, its colour scheme, and whether it runs JavaScript."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write the whole page, or its visible part, as PNG."""
        reply = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(reply["data"]))

    def _record(self, message: Mapping[str, Any]) -> None:
        method = str(message.get("method"))
        self.events.append(method)
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(json.dumps(message["params"]))

    def _read_message(self, deadline: float) -> Mapping[str, Any]:
        while b"\0" not in self._text:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            chunk = os.read(self._from, 1 << 16)
            assert chunk, "the browser has ended"
            self._text += chunk
        line, _, self._text = self._text.partition(b"\0")
        message: Mapping[str, Any] = json.loads(line)
        return message
