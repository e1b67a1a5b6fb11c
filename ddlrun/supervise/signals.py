"""Signals that ddlrun or its ranks receive while a job runs."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from ddlrun.keeper.signals import WARNING_SECONDS
from ddlrun.wire.loop import NEVER

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)
# A scheduler's warning reaches the ranks of all hosts within this time; then the other ranks get it from ddlrun.
PASS_ON_SECONDS = 0.5
# More than are ever queued: Python writes a byte for each to `wake`.
MOST_SIGNALS = 1 << 16


class SignalWarnings:
    """Signals that reached ranks from outside; times are those of time.monotonic()."""

    def __init__(self) -> None:
        self._reached: dict[int, tuple[float, set[int]]] = {}
        """Signal -> the time at which the first rank got it, and the ranks."""
        self._due: dict[int, float] = {}
        """Signal that is to be passed on -> the time of that."""

    def add(self, number: int, rank: int, now: float) -> None:
        """Record that a rank has received a signal."""
        if number not in self._reached or now > self._reached[number][0] + WARNING_SECONDS:
            self._reached[number] = now, set()
            self._due[number] = now + PASS_ON_SECONDS
        self._reached[number][1].add(rank)

    def deadline(self) -> float:
        """Return the time at which a signal is to be passed on, infinity if none is."""
        return min(self._due.values(), default=NEVER)

    def take_due(self, now: float) -> list[tuple[int, set[int]]]:
        """Return the signals to pass on now, each once, with the ranks that have received them."""
        due = [number for number, at in self._due.items() if now >= at]
        for number in due:
            del self._due[number]
        return [(number, self._reached[number][1]) for number in due]


class Signals:
    """A context in which signals are queued, from `queue` on, instead of ending ddlrun.

    `wake` becomes readable after each.
    """

    def __init__(self, forward: Sequence[int] = ()) -> None:
        """Prepare the context; the signals to forward are queued, too."""
        self._pending: list[int] = []
        self._forward = forward
        self._interruptible = False
        self.request: int | None = None
        """The first signal that asked for the end of the job, before or after that."""
        self.urgent = False
        """Whether another one has followed."""
        self.wake, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._earlier: dict[int, object] = {}

    def __enter__(self) -> "Signals":  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def queue(self) -> None:
        """Queue signals from now on."""
        self._earlier_fd = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        # A ddlrun that is stopped, as by SIGTSTP, would neither read output nor send heartbeats.
        for number in {*ENDING, signal.SIGTSTP, signal.SIGWINCH, *self._forward}:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and `&` in a script ignore some
                self._earlier[number] = signal.signal(number, self._receive)
        # Python ignores it. The kernel sends it for a stream that is no longer read, which ends the job anyway.
        self._earlier[signal.SIGPIPE] = signal.signal(signal.SIGPIPE, self._receive)
        self._earlier[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._earlier:
            signal.set_wakeup_fd(self._earlier_fd)
        os.close(self.wake)
        os.close(self._wake_writer)

    @contextmanager
    def interruptible(self, *, at_once: bool = False) -> Iterator[None]:
        """Let the next signal that asks for the end raise KeyboardInterrupt; at once: one that is queued, too."""
        self._interruptible = True
        try:
            if at_once and any(map(self._is_request, self._pending)):
                raise KeyboardInterrupt
            yield
        finally:
            self._interruptible = False

    def take(self) -> list[int]:
        """Return the queued signals, oldest first, and empty the queue."""
        with suppress(BlockingIOError):
            os.read(self.wake, MOST_SIGNALS)
        pending, self._pending = self._pending, []
        return pending

    def _is_request(self, number: int) -> bool:
        return number in ENDING and number not in self._forward

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self._pending.append(number)
        if self._is_request(number):
            self.urgent = self.request is not None
            self.request = self.request or number
            if self._interruptible:
                self._interruptible = False
                raise KeyboardInterrupt
