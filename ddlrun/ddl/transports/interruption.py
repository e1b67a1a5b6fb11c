"""Calls that are interrupted by an exception, for example one raised by a signal handler.

Python may run a signal handler between any two instructions. If it raises an exception, received bytes or partial sums
may be lost, so the call can be neither completed nor repeated. The other ranks then wait for messages that never come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlrun.ddl.transports.communicators import message_errors
from ddlrun.errors import DdlrunError, LostRankError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class InterruptionGuard:
    """A context manager around each call that exchanges messages: once one is interrupted, all later ones fail.

    Otherwise they could wait for messages that never come, or return wrong results. An exception before the first
    message is not an interruption. Neither is an error of ddlrun, of a message, or of arithmetic.
    """

    def __init__(self, name: str, abandon: Callable[[LostRankError], None] | None) -> None:
        """Keep the name of this rank. `abandon` is called after an interruption; None if this rank is alone."""
        self._name, self._abandon = name, abandon
        # A signal handler may make a call while another one is in progress.
        self._depth, self._exchanges = 0, False
        self.problem = ""
        """The text of the error that all calls raise after an interruption; "" before."""

    def __enter__(self) -> None:
        """Begin a call. Raises LostRankError after an interruption."""
        self.check()
        self._depth += 1

    def check(self) -> None:
        """Raise LostRankError after an interruption."""
        if self.problem:
            self._give_up()
            raise LostRankError(self.problem)

    def begin_messages(self) -> None:
        """Note that this call exchanges messages from now on."""
        self._exchanges = self._depth > 0

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """End a call, and remember an exception that has interrupted it."""
        if error is not None and self._exchanges:
            self.remember(error)
        self._depth -= 1
        if not self._depth:
            self._exchanges = False

    def remember(self, error: BaseException) -> None:
        """Remember an exception that ends a call after its first message, unless its type is not an interruption."""
        if self._abandon is not None and not isinstance(error, (DdlrunError, ArithmeticError, *message_errors())):
            self.problem = explain_interruption(self._name, error)
            self._give_up()

    def _give_up(self) -> None:
        if self._abandon is not None:
            self._abandon(LostRankError(self.problem))


def explain_interruption(name: str, error: BaseException) -> str:
    """Return the text of the error that all calls of a rank raise after an interruption.

    >>> explain_interruption("rank 1 of 2", TimeoutError("step 3"))[:70]
    'rank 1 of 2: an earlier call was interrupted (TimeoutError: step 3) an'
    """
    what = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
    return f"{name}: an earlier call was interrupted ({what}) and cannot be completed; let this error end the process"
