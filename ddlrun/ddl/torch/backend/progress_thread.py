"""The thread of a process group, which starts its works, moves its messages and completes the works."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddlrun.ddl.torch.backend.errors import GroupError, as_group_error
from ddlrun.ddl.torch.backend.late_ranks import Inquiry
from ddlrun.ddl.torch.backend.operation_records import MOST_RECENT, name_call
from ddlrun.ddl.torch.backend.works import LONGEST_LEAVE, Exclusive, Limit, Start, Work
from ddlrun.errors import LostRankError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.futures import Future

    from ddlrun.ddl.group.engine import Engine
    from ddlrun.ddl.group.operation import Chunk
    from ddlrun.ddl.torch.backend.works import Call
    from ddlrun.ddl.transports.tcp.communicator import TcpTransport
    from ddlrun.ddl.transports.tcp.endpoint import Endpoint

    # Starts a collective or message; returns a function that returns whether it is complete.
    Starter = Callable[[], Callable[[], bool]]

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
        # What is to be started: collectives, and messages, which need not wait for an exclusive collective.
        self._waiting_collectives: deque[Start] = deque()
        self._waiting_messages: deque[Start] = deque()
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

    def submit(self, call: Call, start: Starter, done: Callable[[], None]) -> Future[Any]:
        """Hand a work to the thread; return a future, which gets the call's result after `done` was called."""
        future: Future[Any] = torch.futures.Future()
        seconds = self.seconds if call.seconds is None else call.seconds
        limit = Limit(seconds, time.monotonic() + seconds, 0)

        def command(limit: Limit) -> Work:
            return Work(
                call=call,
                is_complete=start(),
                done=partial(_finish, future, done, call.result),
                future=future,
                limit=limit,
            )

        with self._lock:
            if self._closed or not self._thread.is_alive():
                end = "has ended" if self._closed else "is that of the parent process; create another one here"
                future.set_exception(self._failure or GroupError(f"{self._endpoint.job}: the process group {end}"))
            else:
                if not call.missing:
                    self.collectives += 1
                    self._endpoint.progress.own = self.collectives
                    self.recent.append((time.time_ns(), self.collectives, call.name))
                    limit = limit._replace(number=self.collectives)
                waiting = self._waiting_messages if call.missing else self._waiting_collectives
                waiting.append(Start(call, limit, partial(self._try_start, partial(command, limit), future)))
        self._endpoint.wake()
        return future

    def list_pending(self) -> list[tuple[Limit, Call]]:
        """Return the calls that are not complete, collectives first. Raises RuntimeError if they change meanwhile."""
        with self._lock:
            works: list[Work | Start] = [*self._collectives, *self._waiting_collectives]
            works += [*self._messages, *self._waiting_messages]
        pending = {id(work.call): (work.limit, work.call) for work in works}
        return sorted(pending.values(), key=lambda item: (item[0].number == 0, item[0].number))

    def end(self) -> None:
        """Complete what is in progress and close the connections. A second call does nothing."""
        self._ends = True
        self._endpoint.wake()
        self._thread.join()
        atexit.unregister(self._leave)

    def abort(self) -> None:
        """Let all works fail, and close the connections."""
        self._failure = self._failure or GroupError(f"{self._endpoint.job}: the process group was aborted")
        self._endpoint.until = -math.inf  # ends the wait of an exclusive collective
        self.end()

    def _leave(self) -> None:
        """End the thread before Python does: Python would kill it in C++ code, which aborts the process."""
        self._ends = True
        self._endpoint.wake()
        self._thread.join(LONGEST_LEAVE)

    def _try_start(self, command: Callable[[], Work], future: Future[Any]) -> None:
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        try:
            work = command()
        except Exception as error:  # noqa: BLE001 - see `_run`
            self._break_off(error)
            future.set_exception(self._failure)
            return
        (self._messages if work.call.missing else self._collectives).append(work)
        self._next_limit = min(self._next_limit, work.limit.until)

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
        """Start what is waiting; collectives only while no exclusive one is in progress."""
        # The start of a work may take long: until then, `list_pending` finds it here.
        while self._waiting_messages:
            self._waiting_messages[0].begin()
            self._waiting_messages.popleft()
        while self._waiting_collectives and not self._is_held():
            self._waiting_collectives[0].begin()
            self._waiting_collectives.popleft()
        if self._waiting_collectives:
            self._next_limit = min([self._next_limit, *(limit.until for limit in self._waiting_limits())])

    def _waiting_limits(self) -> list[Limit]:
        """Return the limits of the collectives that wait until an exclusive one is over."""
        return [start.limit for start in list(self._waiting_collectives)] if self._is_held() else []

    def _is_held(self) -> bool:
        latest = self._collectives[-1].is_complete if self._collectives else None
        return isinstance(latest, Exclusive) and not latest.over

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
                if oldest is None or isinstance(oldest, Exclusive) or oldest():
                    return
                if self._are_waiting or time.monotonic() >= self._next_limit:
                    return

    def _complete(self) -> None:
        while self._collectives and self._is_complete(self._collectives[0]):
            self._collectives.popleft().done()
        if not self._messages:
            return
        complete, pending = list[Work](), list[Work]()
        for work in self._messages:
            (complete if work.is_complete() else pending).append(work)
        self._messages = pending
        for work in complete:
            work.done()

    def _is_complete(self, work: Work) -> bool:
        """Advance a collective and return whether it is complete; an exclusive one may wait as long as limits allow."""
        if not isinstance(work.is_complete, Exclusive) or work.is_complete.over:
            return work.is_complete()
        # The limits of messages are those of single ranks, and need not end the group.
        self._endpoint.until = min([work.limit.until, *(limit.until for limit in self._waiting_limits())])
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
        works = (*self._collectives, *self._messages)
        work = next((work for work in works if work.limit.until <= now), None)
        for limit in self._waiting_limits():
            if work is None and limit.until <= now:  # the exclusive collective has used up its time
                latest = self._collectives[-1]
                work = latest._replace(limit=latest.limit._replace(seconds=limit.seconds))
        if work is None:
            self._inquiry = None
            limits = [*(work.limit for work in works), *self._waiting_limits()]
            self._next_limit = min((limit.until for limit in limits), default=math.inf)
        elif work.call.missing:
            raise self._timeout(work, work.call.missing)
        elif self._inquiry is None:
            self._inquiry = Inquiry(self._endpoint, work.limit.number, self._arrived)
        elif self._inquiry.is_over():
            raise self._timeout(work, self._inquiry.explain())

    def _timeout(self, work: Work, reason: str) -> GroupError:
        limit = f"the timeout of {work.limit.seconds:g} s"
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


def _finish(future: Future[Any], done: Callable[[], None], result: Any) -> None:  # noqa: ANN401
    try:
        done()
    except Exception as error:  # noqa: BLE001 - that of this work alone: all of its messages are complete
        future.set_exception(error)
    else:
        future.set_result(result)
