"""The receivers of the events of a run: the user's command, or a web address."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

POST_SECONDS = 10.0


class EventCommand:
    """A command that is started for each event, in the background."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Take the command; an empty one is never started."""
        self._argv = argv
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, event: str) -> str | None:
        """Start the command with an event as its standard input; return the problem if that is impossible."""
        if not self._argv:
            return None
        try:
            # Not a pipe, which would end ddlrun by SIGPIPE if the command does not read it.
            with open(os.memfd_create("ddlrun-event"), "w+b") as file:
                file.write(event.encode())
                file.seek(0)
                process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
                    self._argv, stdin=file, stdout=subprocess.DEVNULL, start_new_session=True
                )
        except OSError as error:
            return f"cannot start {self._argv[0]!r}: {error.strerror}"
        self._processes.append(process)
        return None

    def finish(self, seconds: float) -> str | None:
        """Wait for the commands that run; kill them after some seconds, and return that as a problem."""
        deadline = time.monotonic() + seconds
        late = 0
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                late += 1
        self._processes.clear()
        return f"{self._argv[0]!r} did not end within {seconds:g} s, and was killed" if late else None


class Webhook:
    """An address to which each event is posted, in the background."""

    def __init__(self, url: str) -> None:
        """Take the address."""
        self._url = url
        self._name = repr(urlsplit(url).hostname)  # the rest may be a secret
        self._threads: list[threading.Thread] = []
        self._problems: list[str] = []

    def start(self, event: str) -> str | None:
        """Begin to post an event, which is JSON; a problem is found later."""
        thread = threading.Thread(target=self._post, args=(event.encode(),), daemon=True)
        thread.start()
        self._threads.append(thread)
        return None

    def finish(self, seconds: float) -> str | None:
        """Wait up to some seconds for the posts; return the first problem."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        late = any(thread.is_alive() for thread in self._threads)
        self._threads.clear()
        if late:
            return f"{self._name} did not reply within {seconds:g} s"
        return self._problems[0] if self._problems else None

    def _post(self, body: bytes) -> None:
        import urllib.request  # noqa: PLC0415 - 15 ms, for addresses alone

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # in this thread; it would end the job
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310 - http or https
        try:
            urllib.request.urlopen(request, timeout=POST_SECONDS).close()  # noqa: S310 - as above
        except urllib.request.HTTPError as error:
            self._problems.append(f"{self._name} replied with status {error.code}")
        except (OSError, ValueError) as error:
            self._problems.append(f"cannot post to {self._name}: {getattr(error, 'reason', error)}")
