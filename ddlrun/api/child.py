"""The child process of a launch from Python, which answers by lines of JSON: outcomes of attempts, and an error.

Its arguments are the pid of its parent, whether that raises the cause of a failure, the words of `ddlrun launch`, and
the descriptor for its answer. It takes words, as a run's record has them for `ddlrun rerun`.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ddlrun.cli import main
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.dependent import in_python
from ddlrun.errors import DdlrunError
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.settings import RunOptions
from ddlrun.remote.streamed_process import depend_on


class PipeReporter(ConsoleReporter):
    """A console whose reader also gets outcomes and errors as values."""

    def __init__(self, descriptor: int, words: Sequence[str], *, raises_cause: bool) -> None:
        os.set_inheritable(descriptor, False)  # the ranks may live longer
        self._pipe = open(descriptor, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed at the end
        self._words = words
        self.raises_cause = raises_cause

    def ended(self, run: RunOptions, outcome: Outcome) -> None:
        """Send the outcome of an attempt."""
        self._send({"outcome": outcome.as_dict(), "run_dir": run.run_dir.path, "restarts": run.attempt})

    def fail(self, error: DdlrunError) -> None:
        """Send an error."""
        problems = [in_python(problem, self._words) for problem in error.problems]
        self._send({"error": {"exit_code": error.exit_code, "problems": problems}})

    def _send(self, message: Mapping[str, object]) -> None:
        with suppress(OSError):  # the parent may be gone
            self._pipe.write(f"{json.dumps(message)}\n")


def _run() -> None:
    _, parent, raises_cause, *words, descriptor = sys.argv
    depend_on(int(parent))
    reporter = PipeReporter(int(descriptor), words[: words.index("--")], raises_cause=raises_cause == "True")
    main(["launch", *words], reporter.fail, reporter)


if __name__ == "__main__":
    _run()
