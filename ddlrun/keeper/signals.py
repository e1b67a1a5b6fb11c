"""The signals that a keeper receives, queued for its event loop."""

from __future__ import annotations

from ddlrun.keeper.bare_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.wire.loop import Loop

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
# The same warning after this time is another one.
WARNING_SECONDS = 5.0
HANDLED = (*ENDING, *WARNINGS, signal.SIGCHLD)
# Those that Python ignores, which an exec would not change.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


class SignalQueue:
    """The signals since the last `take`; one that arrives wakes a loop up."""

    def __init__(self, loop: Loop) -> None:
        """Install handlers that queue signals instead of ending this process."""
        self._pending: list[int] = []
        signal.set_wakeup_fd(loop.wake_fd, warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, self._receive)

    def take(self) -> list[int]:
        """Return the queued signals, oldest first, and empty the queue."""
        pending, self._pending = self._pending, []
        return pending

    def _receive(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:  # which only has to end the wait for events
            self._pending.append(number)


class ReceivedWarnings:
    """The warnings that a program has received; times are those of time.monotonic()."""

    def __init__(self) -> None:
        self._received_at: dict[int, float] = {}

    def add(self, number: int, now: float) -> None:
        """Record that the program has received a signal."""
        self._received_at[number] = now

    def has(self, number: int, now: float) -> bool:
        """Return True if the program has this warning: ddlrun may pass it on before it knows of that."""
        return now <= self._received_at.get(number, float("-inf")) + WARNING_SECONDS


def restore_defaults() -> None:
    """Undo the handlers, in a child process that will run another program."""
    signal.set_wakeup_fd(-1)
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
