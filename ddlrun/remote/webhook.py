"""The user's web address for the events of a run."""

import signal
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

POST_SECONDS = 10.0


class Webhook:
    """An address to which each event is posted, in the background."""

    def __init__(self, url: str) -> None:
        """Take the address."""
        self._url = url
        self._name = repr(urllib.parse.urlsplit(url).hostname)  # the rest may be a secret
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
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # in this thread; it would end the job
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310 - http or https
        try:
            urllib.request.urlopen(request, timeout=POST_SECONDS).close()  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            self._problems.append(f"{self._name} replied with status {error.code}")
        except (OSError, ValueError) as error:
            self._problems.append(f"cannot post to {self._name}: {getattr(error, 'reason', error)}")
