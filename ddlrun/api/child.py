"""The child process of a launch from Python, which answers by lines of JSON: outcomes of attempts, and an error.

Its arguments are the pid of its parent, whether that raises the cause of a failure, the words of `ddlrun launch`, and
the descriptor for its answer. It takes words because a run's record keeps words for `ddlrun rerun`.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ddlrun.cli import main
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.launch import command
from ddlrun.cli.options.argv import options_by_name
from ddlrun.errors import DdlrunError, spell_options
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.settings import RunOptions
from ddlrun.remote.streamed_process import depend_on


class PipeReporter(ConsoleReporter):
    """A console reporter that also sends outcomes and errors through a pipe."""

    def __init__(self, descriptor: int, words: Sequence[str], *, raises_cause: bool) -> None:
        os.set_inheritable(descriptor, False)  # the ranks may live longer
        self._pipe = open(descriptor, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed at the end
        self._words = words
        self.raises_cause = raises_cause

    def spell(self, names: str) -> str:
        """Return the keyword argument for an option: the one that was given, else its longest name."""
        options = options_by_name(command.params)
        name = names.partition(",")[0]
        option = options.get(name)
        if option is None:
            return _keyword(name)
        longest = _keyword(max(option.opts, key=len))
        if option.is_flag:
            return f"{longest}={name not in option.secondary_opts}"
        words = (word.partition("=")[0] for word in self._words)
        return next((_keyword(word) for word in words if options.get(word) is option), longest)

    def ended(self, run: RunOptions, outcome: Outcome) -> None:
        """Send the outcome of an attempt."""
        reason = outcome.reason and spell_options(outcome.reason, self.spell)
        self._send(
            {"outcome": {**outcome.as_dict(), "reason": reason}, "run_dir": run.run_dir.path, "restarts": run.attempt}
        )

    def fail(self, error: DdlrunError) -> None:
        """Send an error."""
        problems = [spell_options(problem, self.spell) for problem in error.problems]
        self._send({"error": {"exit_code": error.exit_code, "problems": problems}})

    def _send(self, message: Mapping[str, object]) -> None:
        with suppress(OSError):  # the parent may be gone
            self._pipe.write(f"{json.dumps(message)}\n")


def _keyword(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _run() -> None:
    _, parent, raises_cause, *words, descriptor = sys.argv
    depend_on(int(parent))
    reporter = PipeReporter(int(descriptor), words[: words.index("--")], raises_cause=raises_cause == "True")
    main(["launch", *words], reporter.fail, reporter)


if __name__ == "__main__":
    _run()
