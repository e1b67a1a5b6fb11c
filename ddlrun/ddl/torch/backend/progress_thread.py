"""The thread of a process group, which starts its works, moves its messages and completes the works."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl.torch.backend.errors import GroupError, as_group_error
from ddlrun.ddl.torch.backend.late_ranks import Inquiry
from ddlrun.ddl.torch.backend.operation_records import MOST_RECENT, name_call
from ddlrun.ddl.torch.backend.works import LONGEST_LEAVE, MeasuringAllreduce, Work
from ddlrun.errors import LostRankError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.futures import Future

    from ddlrun.ddl.group.engine import Engine
    from ddlrun.ddl.group.operation import Chunk
    from ddlrun.ddl.torch.backend.works import Call, Starter
    from ddlrun.ddl.transports.tcp.communicator import TcpTransport
    from ddlrun.ddl.transports.tcp.endpoint import Endpoint

# The longest wait in seconds: works that are submitted end it.
LONGEST_WAIT = 3600.0


class ProgressThread:
    """A thread that uses an endpoint alone. Works are started in the order in which they were submitted."""

    def __init__(
        self,
        endpoint: Endpoint,
        engine: Engine,
        transport: TcpTransport[Chunk],
        seconds: float,
        arrived: Callable[[int], bool],
    ) -> None:
        """Start the thread.

        Args:
            endpoint: The endpoint.
            engine: Carries out the collectives.
            transport: That of the engine.
            seconds: The time limit of a work without one of its own.
            arrived: arrived(rank) returns whether a rank has created its endpoint.
        """
        self._endpoint, self._engine, self._transport = endpoint, engine, transport
        self.seconds, self._arrived = seconds, arrived
        # What is to be started: collectives, and messages, which need not wait for measurements.
        self._waiting_collectives: deque[Work] = deque()
        self._waiting_messages: deque[Work] = deque()
        # Collectives complete in the order of their calls, or nearly so; only the oldest one is looked at.
        self._collectives: deque[Work] = deque()
        self._messages: list[Work] = []
        self._next_limit = math.inf
        """No work runs out of time before (time.monotonic)."""
        self._failure: Exception | None = None
        self._inquiry: Inquiry | None = None
        self._lock = threading.Lock()
        self._ends = self._closed = False
        self.collectives = 0
        """The number of collectives that were submitted."""
        self.recent: deque[tuple[int, int, str]] = deque(maxlen=MOST_RECENT)
        """The time in ns, number and name of the last ones."""
        self._thread = threading.Thread(target=self._run, name="ddl process group", daemon=True)
        self._thread.start()
        atexit.register(self._leave)

    def submit(self, call: Call, start: Starter, done: Callable[[], None] | None) -> Future[Any]:
        """Hand a work to the thread; return a future, which gets the call's result after `done` was called."""
        work = Work(call, start, done, self.seconds if call.seconds is None else call.seconds)
        with self._lock:
            if self._closed or not self._thread.is_alive():
                end = "has ended" if self._closed else "is that of the parent process; create another one here"
                work.future.set_exception(self._failure or GroupError(f"{self._endpoint.job}: the process group {end}"))
            elif call.missing:
                self._waiting_messages.append(work)
            else:
                work.number = self.collectives = self._endpoint.progress.own = self.collectives + 1
                self.recent.append((time.time_ns(), work.number, call.name))
                self._waiting_collectives.append(work)
        self._endpoint.wake()
        return work.future

    def list_pending(self) -> list[Work]:
        """Return the works that are not complete, collectives first. Raises RuntimeError if they change meanwhile."""
        with self._lock:
            works = [*self._collectives, *self._waiting_collectives, *self._messages, *self._waiting_messages]
        return sorted(dict.fromkeys(works), key=lambda work: (work.number == 0, work.number))

    def end(self) -> None:
        """Complete what is in progress and close the connections. A second call does nothing."""
        self._ends = True
        self._endpoint.wake()
        self._thread.join()
        atexit.unregister(self._leave)

    def abort(self) -> None:
        """Let all works fail, and close the connections."""
        self._failure = self._failure or GroupError(f"{self._endpoint.job}: the process group was aborted")
        self._endpoint.until = -math.inf  # ends the wait of measurements
        self.end()

    def _leave(self) -> None:
        """End the thread before Python does: Python would kill it in C++ code, which aborts the process."""
        self._ends = True
        self._endpoint.wake()
        self._thread.join(LONGEST_LEAVE)

    def _start(self, work: Work, works: list[Work] | deque[Work]) -> None:
        """Start a work, and add it to those in progress."""
        if self._failure is None:
            try:
                work.is_complete = work.start()
            except Exception as error:  # noqa: BLE001 - see `_run`
                self._break_off(error)
        if self._failure is not None:
            work.future.set_exception(self._failure)
            return
        works.append(work)
        self._next_limit = min(self._next_limit, work.until)

    def _run(self) -> None:
        """Start works, move messages, and complete works, until the group ends."""
        while self._collectives or self._messages or self._are_waiting or not self._ends:
            try:
                self._advance()
            except Exception as error:  # noqa: BLE001 - whatever it is: callers wait for this thread alone
                self._break_off(error)
        with self._lock:
            self._closed = True
        self._failure = self._failure or GroupError(f"{self._endpoint.job}: the process group has ended")
        self._start_all()
        self._endpoint.close()

    @property
    def _are_waiting(self) -> bool:
        return bool(self._waiting_collectives or self._waiting_messages)

    def _start_all(self) -> None:
        """Start what is waiting; collectives only while none measures."""
        # The start of a work may take long: until then, `list_pending` finds it here.
        while self._waiting_messages:
            self._start(self._waiting_messages[0], self._messages)
            self._waiting_messages.popleft()
        while self._waiting_collectives and not self._is_held():
            self._start(self._waiting_collectives[0], self._collectives)
            self._waiting_collectives.popleft()
        if self._waiting_collectives:
            self._next_limit = min([self._next_limit, *(work.until for work in self._held())])

    def _held(self) -> list[Work]:
        """Return the collectives that wait until measurements are over."""
        return list(self._waiting_collectives) if self._is_held() else []

    def _is_held(self) -> bool:
        latest = self._collectives[-1].is_complete if self._collectives else None
        return isinstance(latest, MeasuringAllreduce) and not latest.over

    def _advance(self) -> None:
        """Start works, complete works and move messages, once; after a failure, fail all works."""
        self._start_all()
        if self._failure is None:
            self._complete()
            self._check_limits()
            if not self._waiting_messages and (not self._waiting_collectives or self._is_held()):
                self._move()
            return
        self._fail()
        if not self._ends and not self._are_waiting:
            self._endpoint.serve(LONGEST_WAIT)

    def _break_off(self, error: Exception) -> None:
        """Fail the group. Other ranks report this one as lost, unless they see the reason themselves."""
        if self._failure is not None:  # after `abort`, or if replying to others failed
            self._ends = True
            return
        self._failure = as_group_error(error, self._endpoint.job, name_call(self.list_pending()))
        if not isinstance(error, LostRankError):
            with suppress(Exception):  # such as another MemoryError
                self._endpoint.stop(self._failure)

    def _move(self) -> None:
        """Move messages until there may be something else to do."""
        oldest = self._collectives[0].is_complete if self._collectives and not self._messages else None
        with np.errstate(all="ignore"):  # for `settle`
            # The start of a work may have completed another one, by sending the rest of its data.
            while self._transport.complete or self._endpoint.poll(self._longest_wait()):
                self._engine.settle(self._transport.take_complete())
                if oldest is None or isinstance(oldest, MeasuringAllreduce) or oldest():
                    return
                if self._are_waiting or time.monotonic() >= self._next_limit:
                    return

    def _complete(self) -> None:
        while self._collectives and self._is_complete(self._collectives[0]):
            self._collectives.popleft().finish()
        if not self._messages:
            return
        complete, pending = list[Work](), list[Work]()
        for work in self._messages:
            (complete if work.is_complete() else pending).append(work)
        self._messages = pending
        for work in complete:
            work.finish()

    def _is_complete(self, work: Work) -> bool:
        """Advance a collective, which may wait while it measures; return whether it is complete."""
        if not isinstance(work.is_complete, MeasuringAllreduce) or work.is_complete.over:
            return work.is_complete()
        # The limits of messages are those of single ranks, and need not end the group.
        self._endpoint.until = min(item.until for item in (work, *self._held()))
        try:
            return self._failure is None and work.is_complete()
        except TimeoutError:
            return False
        finally:
            self._endpoint.until = math.inf

    def _longest_wait(self) -> float:
        """Return the seconds to the next limit of a work."""
        if self._inquiry is not None:
            return max(self._inquiry.until - time.monotonic(), 0)
        if self._collectives or self._messages:
            return max(self._next_limit - time.monotonic(), 0)
        return 0 if self._ends else LONGEST_WAIT

    def _check_limits(self) -> None:
        """Raise GroupError if a work has run out of time; that of a collective names the ranks that are late."""
        now = time.monotonic()
        if now < self._next_limit:
            return
        held = self._held()
        works = (*self._collectives, *self._messages, *held)
        late = next((work for work in works if work.until <= now), None)
        if late is None:
            self._inquiry = None
            self._next_limit = min((work.until for work in works), default=math.inf)
            return
        work = self._collectives[-1] if late in held else late  # the measurements have used up its time
        if work.call.missing:
            raise self._timeout(work, late.seconds, work.call.missing)
        if self._inquiry is None:
            self._inquiry = Inquiry(self._endpoint, work.number, self._arrived)
        elif self._inquiry.is_over():
            raise self._timeout(work, late.seconds, self._inquiry.explain())

    def _timeout(self, work: Work, seconds: float, reason: str) -> GroupError:
        limit = f"the timeout of {seconds:g} s"
        return GroupError(f"{self._endpoint.job}: {work.call.name} was not complete at {limit}: {reason}")

    def _fail(self) -> None:
        try:
            self._engine.give_up()
            self._endpoint.give_up()
        finally:
            for work in (*self._collectives, *self._messages):
                work.future.set_exception(self._failure)
            self._collectives.clear()
            self._messages.clear()
