"""Signals to ddlrun, taken while a job runs."""

import os
import signal
from collections.abc import Sequence
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# A scheduler's warning reaches the ranks of all hosts within so long; then the others are told.
PASS_ON_SECONDS = 0.5
ONE_WARNING_SECONDS = 5.0


class SignalWarnings:
    """Signals that came to ranks from outside: who had each, and when the others are due."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._had: dict[int, set[int]] = {}
        self._passed: set[int] = set()

    def reached(self, number: int, rank: int, now: float) -> None:
        """Take note that a rank had a signal."""
        if now > self._since.setdefault(number, now) + ONE_WARNING_SECONDS:
            self._since[number] = now
            self._had.pop(number)
            self._passed.discard(number)
        self._had.setdefault(number, set()).add(rank)

    def due(self) -> float:
        """Return when a signal is to be passed on; infinity: none is."""
        times = (since for number, since in self._since.items() if number not in self._passed)
        return min(times, default=float("inf")) + PASS_ON_SECONDS

    def pass_on(self, now: float) -> list[tuple[int, set[int]]]:
        """Return the signals that are due, each once, with the ranks that had it."""
        late = [
            number
            for number, since in self._since.items()
            if number not in self._passed and now >= since + PASS_ON_SECONDS
        ]
        self._passed.update(late)
        return [(number, self._had[number]) for number in late]


class Signals:
    """While it lasts, signals are taken instead of ending ddlrun; `wake` is readable after any."""

    def __init__(self, forward: Sequence[int] = ()) -> None:
        self._taken: list[int] = []
        self._forward = forward
        self.wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Signals":  # noqa: PYI034 - Self is not in Python 3.10
        self._fd_before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        for number in (*ENDING, *self._forward):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and `&` in a script ignore some
                self._before[number] = signal.signal(number, self._take)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # ranks would miss us
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._fd_before)
        os.close(self.wake)
        os.close(self._woken)

    def taken(self) -> list[int]:
        """Return the signals that came since the last time."""
        taken, self._taken = self._taken, []
        return taken

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._taken.append(number)
