"""The events of a launch: kept in the run folder, and sent to the command or the address of --on-event."""

import time
from typing import TYPE_CHECKING

from ddlrun.application.reporter import Reporter
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.plan import Plan
from ddlrun.remote.event_targets import EventCommand, Webhook
from ddlrun.runs.events import render_end, render_stall, render_start
from ddlrun.runs.store import append_private

if TYPE_CHECKING:
    from ddlrun.hangs.examination import HangVerdictRecord

# The time that commands and posts have after the end of the run.
EVENT_SECONDS = 10.0
# Stalls within this time after one that was sent are not sent.
STALL_SECONDS = 60.0


class LaunchEvents:
    """The events of an attempt."""

    def __init__(self, words: tuple[str, ...], plan: Plan, reporter: Reporter) -> None:
        """Take the words of --on-event (none: nothing is sent), and the reporter of problems with them."""
        self._plan, self._reporter = plan, reporter
        self._target = choose_target(words)
        self._next_stall = 0.0

    def start(self) -> None:
        """Send the start of the run."""
        self._send(render_start(self._plan))

    def stall(self, verdict: "HangVerdictRecord") -> None:
        """Send a stall, unless another one was sent shortly before."""
        now = time.monotonic()
        if now >= self._next_stall:
            self._next_stall = now + STALL_SECONDS
            self._send(render_stall(self._plan, verdict))

    def end(self, outcome: Outcome) -> None:
        """Send the end of the run."""
        self._send(render_end(self._plan, outcome))

    def finish(self) -> None:
        """Wait a while for all that was sent."""
        self._note_problem(self._target.finish(EVENT_SECONDS))

    def _send(self, event: str) -> None:
        append_private(self._plan.run_dir.events, event)
        self._note_problem(self._target.start(event))

    def _note_problem(self, problem: str | None) -> None:
        if problem is not None:
            self._reporter.line(f"note: --on-event: {problem}")


def choose_target(words: tuple[str, ...]) -> EventCommand | Webhook:
    """Return the receiver of events that the words of --on-event name."""
    is_address = len(words) == 1 and words[0].startswith(("http://", "https://"))
    return Webhook(words[0]) if is_address else EventCommand(words)
