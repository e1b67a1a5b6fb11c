"""Signals to ddlrun: each ends it as an exception, so that whatever it has started is ended."""

import os
import select
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from ddlrun.errors import EXIT_SIGNAL

if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType

# A dropped exception of a signal is raised again after this time.
RAISE_SECONDS = 0.001


def handle_signals() -> None:
    """Let the signals that end a process raise an exception; USR1 and USR2 are for ranks, which do not run yet."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda *_: None)
    sys.unraisablehook = _raise_again


class EndedError(BaseException):
    """A signal that ends ddlrun; whatever it has started is ended as the exception passes."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = EXIT_SIGNAL + number

    def report(self) -> int:
        """Print what has ended ddlrun, unless standard error is closed or full, and return the exit code."""
        with suppress(OSError):
            if select.select([], [2], [], 0)[1]:
                os.write(2, f"ddlrun: {self}\n".encode())
        return self.exit_code


def _end(number: int, _frame: "FrameType | None") -> NoReturn:
    raise EndedError(number)


def _raise_again(lost: "UnraisableHookArgs") -> None:
    """Raise a signal's exception again a moment later: Python drops exceptions in callbacks of os.fork."""
    error = lost.exc_value
    if not isinstance(error, (KeyboardInterrupt, EndedError)):
        # A signal interrupts logging's callback before the fork: then that after the fork cannot release the lock.
        if not isinstance(error, RuntimeError) or getattr(lost.object, "__module__", "") != "logging":
            sys.__unraisablehook__(lost)
        return

    def raise_error(_number: int, frame: "FrameType | None") -> None:
        while frame is not None:
            if (
                frame.f_code is _raise_again.__code__
            ):  # on a busy machine it has not returned, and Python would drop this
                signal.setitimer(signal.ITIMER_REAL, RAISE_SECONDS)
                return
            frame = frame.f_back
        raise error

    signal.signal(signal.SIGALRM, raise_error)
    signal.setitimer(signal.ITIMER_REAL, RAISE_SECONDS)
