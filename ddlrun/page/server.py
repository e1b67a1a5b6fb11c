"""The HTTP server of a run's page, on the loopback interface and behind a secret token."""

import hmac
import json
import secrets
import signal
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus

from ddlrun.metrics.openmetrics_server import LOOPBACK, LocalHandler, LocalServer
from ddlrun.page import html
from ddlrun.page.feed import RunFeed
from ddlrun.page.run_files import read_logs

# Pages that are open at the same time.
MOST_STREAMS = 16
POLL_SECONDS = 1.0
LONGEST_RANK = 9
# At the end, open pages have this time for the last message.
LAST_SECONDS = 2.0
POLICY = f"{html.POLICY}; connect-src 'self'; frame-ancestors 'none'"


class PageServer(LocalServer):
    """A server of the page of one run at a time."""

    def __init__(self, port: int, folder: str) -> None:
        """Listen on a port, 0: any that is free, for the page of the run of a folder. Raises OSError."""
        self.folder = folder
        self.token = secrets.token_urlsafe(16)
        self.over = threading.Event()
        self._streams = 0
        self._changed = threading.Condition()
        super().__init__(port, PageHandler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def start(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        """Serve without SIGPIPE for pages that are gone, which would end the job; further threads inherit that."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        self.serve_forever()

    def stop(self) -> None:
        """Send the last state of the run to the open pages, and end a server that has been started."""
        self.over.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._streams, LAST_SECONDS)
        self.shutdown()
        self.server_close()

    @contextmanager
    def stream(self) -> Iterator[bool]:
        """Count an open page; yield False where there are too many."""
        with self._changed:
            self._streams += 1
            allowed = self._streams <= MOST_STREAMS
        try:
            yield allowed
        finally:
            with self._changed:
                self._streams -= 1
                self._changed.notify_all()


class PageHandler(LocalHandler):
    """The handler of a request for the page."""

    server: PageServer

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        """Answer with the page, the stream of messages or a log."""
        url = urllib.parse.urlsplit(self.path)
        _, token, *rest = [*url.path.split("/", 2), ""]
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN, "the address has no valid token")
            return
        self.server.unauthenticated.remove(self.connection)
        if rest[0] == "events":
            self._send_events()
        elif rest[0] == "log":
            self._send_log(urllib.parse.parse_qs(url.query).get("rank", [""])[0])
        elif rest[0] == "" and url.path.endswith("/"):
            nonce = secrets.token_urlsafe(16)
            policy = {"Content-Security-Policy": POLICY.format(nonce)}
            self.send_text(html.render_page(nonce), "text/html; charset=utf-8", policy)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send_log(self, rank: str) -> None:
        if not (rank.isascii() and rank.isdigit() and len(rank) <= LONGEST_RANK):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        self.send_text(read_logs(self.server.folder, [int(rank)])[int(rank)], "text/plain; charset=utf-8")

    def _send_events(self) -> None:
        with self.server.stream() as allowed, suppress(OSError):
            if not allowed:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many open pages")
                return
            self.send_head("text/event-stream; charset=utf-8")
            self.wfile.write(b"retry: 1000\n\n")
            last = False
            while not last:
                last = self._send_run(self.server.folder)

    def _send_run(self, folder: str) -> bool:
        """Send the messages on a run until another one follows; return True at the end of the server."""
        with closing(RunFeed(folder)) as feed:
            while True:
                over = self.server.over.is_set()  # before reading: all that was written by then is sent
                message = feed.read()
                self.wfile.write(b":\n\n" if message is None else f"data: {json.dumps(message)}\n\n".encode())
                if over or self.server.folder != folder:
                    return over
                self.server.over.wait(POLL_SECONDS)
