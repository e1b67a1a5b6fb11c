"""The thread of a process group, which starts its works, moves its messages and completes the works."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ddlrun.errors import DdlrunError, LostRankError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.futures import Future

    from ddlrun.ddl.engine import Engine
    from ddlrun.ddl.tcp.endpoint import Endpoint

    # Starts a collective or message; returns a function that returns whether it is complete.
    Start = Callable[[], Callable[[], bool]]

# The longest wait in seconds: works that are submitted end it.
LONGEST_WAIT = 3600.0
# Seconds between two looks for works that were submitted after a failure.
PAUSE = 0.01


class Work(NamedTuple):
    """A collective or message in progress. `done` finishes it, `until` is its limit (time.monotonic)."""

    is_complete: Callable[[], bool]
    done: Callable[[], None]
    future: Future[Any]
    until: float


class ProgressThread:
    """A thread that uses an endpoint alone. Works are started in the order in which they were submitted."""

    def __init__(self, endpoint: Endpoint, engine: Engine, seconds: float) -> None:
        """Start the thread; `seconds` is the time limit of a work."""
        self._endpoint, self._engine, self._seconds = endpoint, engine, seconds
        self._commands: deque[Callable[[], None]] = deque()
        self._works: list[Work] = []
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._ends = self._closed = False
        self._thread = threading.Thread(target=self._run, name="ddl process group", daemon=True)
        self._thread.start()

    def submit(self, start: Start, done: Callable[[], None], result: Any) -> Future[Any]:  # noqa: ANN401
        """Hand a work to the thread; return a future, which gets `result` after the thread has called `done`."""
        future: Future[Any] = torch.futures.Future()
        until = time.monotonic() + self._seconds

        def command() -> Work:
            return Work(start(), partial(_finish, future, done, result), future, until)

        with self._lock:
            if self._closed:
                future.set_exception(self._failure or LostRankError("the process group has ended"))
            else:
                self._commands.append(partial(self._try_start, command, future))
        self._endpoint.wake()
        return future

    def end(self) -> None:
        """Complete what is in progress and close the connections. A second call does nothing."""
        self._ends = True
        self._endpoint.wake()
        self._thread.join()

    def abort(self) -> None:
        """Let all works fail, and close the connections."""
        self._failure = self._failure or LostRankError("the process group was aborted")
        self.end()

    def _try_start(self, command: Callable[[], Work], future: Future[Any]) -> None:
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        try:
            self._works.append(command())
        except (DdlrunError, RuntimeError, ValueError, TypeError) as error:
            future.set_exception(error)

    def _run(self) -> None:
        """Start works, move messages, and complete works, until the group ends."""
        while self._works or self._commands or not self._ends:
            self._start_all()
            if self._failure is None:
                self._try_advance()
            if self._failure is not None:
                self._fail()
                if not self._ends:
                    time.sleep(PAUSE)
        with self._lock:
            self._closed = True
        self._failure = self._failure or LostRankError("the process group has ended")
        self._start_all()
        self._endpoint.close()

    def _start_all(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _try_advance(self) -> None:
        """Complete works and move messages, once; an error is that of all works."""
        try:
            self._complete()
            self._check_limits()
            if not self._commands:
                self._endpoint.poll(self._longest_wait())
                self._engine.progress()
        except (DdlrunError, RuntimeError) as error:
            self._failure = self._failure or error

    def _complete(self) -> None:
        for work in [work for work in self._works if work.is_complete()]:
            self._works.remove(work)
            work.done()

    def _longest_wait(self) -> float:
        """Return the seconds to the next limit of a work."""
        if self._works:
            return max(min(work.until for work in self._works) - time.monotonic(), 0)
        return 0 if self._ends else LONGEST_WAIT

    def _check_limits(self) -> None:
        """Raise LostRankError if a work has run out of time."""
        if any(work.until <= time.monotonic() for work in self._works):
            ranks = ", ".join(map(str, self._endpoint.awaited())) or "others"
            raise LostRankError(
                f"rank {self._endpoint.rank} of {self._endpoint.size}: no message of rank {ranks} for "
                f"{self._seconds:.0f} s"
            )

    def _fail(self) -> None:
        while self._works:
            self._works.pop().future.set_exception(self._failure)


def _finish(future: Future[Any], done: Callable[[], None], result: Any) -> None:  # noqa: ANN401
    try:
        done()
    except (DdlrunError, RuntimeError, ValueError, TypeError) as error:
        future.set_exception(error)
    else:
        future.set_result(result)
