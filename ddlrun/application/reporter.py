"""The interface to which a launch reports: lines, texts and outcomes."""

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # commands without a launch need neither
    from ddlrun.plan.outcome import Outcome
    from ddlrun.plan.settings import RunOptions


class Reporter(Protocol):
    """The receiver of what a launch shows, without the output of its ranks."""

    raises_cause: bool
    """Whether it raises the traceback or the last lines of a rank that failed, so that they are not shown as well."""

    def line(self, text: str) -> None:
        """Show a line, such as a note or a warning, with options in backticks."""

    def text(self, text: str) -> None:
        """Show a text of several lines as it is, such as the plan or the report of a failure."""

    def ended(self, run: "RunOptions", outcome: "Outcome") -> None:
        """Take the outcome of an attempt, which is in the run folder, too."""


def try_line(reporter: Reporter, text: str) -> None:
    """Show a line. A reader that is gone does not raise: what follows must be done."""
    with suppress(OSError):
        reporter.line(text)
