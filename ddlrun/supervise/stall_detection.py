"""Stalls: ranks without output for a time, and the states of their processes."""

import re
from collections.abc import Callable

from ddlrun.plan.supervision import SupervisedJob
from ddlrun.rank import protocol
from ddlrun.supervise.keepers import Keepers

# Numbers that differ between ranks at the same place of a program.
NUMBERED = r"(?i)\b(process|thread) (0x)?[0-9a-f]+"


class StallDetector:
    """The times of the ranks' last output; times are those of time.monotonic()."""

    def __init__(self, seconds: float, job: SupervisedJob, report: Callable[[str], None]) -> None:
        self._seconds, self._job, self._report = seconds, job, report
        self._printed_at: dict[int, float] = {}
        self._silent_since_start: set[int] = set()
        self._stalled: set[int] = set()
        self._inspected: set[int] = set()
        self._states: dict[str, tuple[str, list[int]]] = {}

    def start(self, rank: int, now: float) -> None:
        """Record that a rank has started."""
        self._printed_at[rank] = now
        self._silent_since_start.add(rank)

    def add_output(self, rank: int, now: float) -> None:
        """Record output of a rank."""
        self._printed_at[rank] = now
        self._silent_since_start.discard(rank)
        self._stalled.discard(rank)

    def end(self, rank: int) -> None:
        """Forget a rank that has ended."""
        self._printed_at.pop(rank, None)
        self._stalled.discard(rank)
        self._inspected.discard(rank)  # a keeper that leaves may have missed the order
        self._report_complete_states()

    def stalled_ranks(self) -> list[int]:
        """Return the ranks that were reported and have printed nothing since."""
        return sorted(self._stalled)

    def check(self, now: float, last_output: float, keepers: Keepers) -> None:
        """Report ranks that have become silent, and have their keepers inspect them.

        A rank that has never printed counts as silent only if no rank has printed since.

        Args:
            now: The time.
            last_output: The time of the last output of any rank.
            keepers: The connections.
        """
        limit = now - self._seconds
        silent = {
            rank
            for rank, printed_at in self._printed_at.items()
            if printed_at < limit
            and rank not in self._stalled
            and (rank not in self._silent_since_start or last_output < limit)
        }
        if not silent:
            return
        for peer in keepers.peers.values():
            if peer.running and peer.rank in silent:
                keepers.send(peer, protocol.INSPECT)
        self._stalled |= silent
        self._inspected |= silent
        self._report(f"{self._job.describe(silent)} printed nothing for {self._seconds:g} s")

    def add_state(self, rank: int, state: str) -> None:
        """Collect the state of a rank's processes; report all when the last one has arrived, equal ones together."""
        self._inspected.discard(rank)
        _, ranks = self._states.setdefault(re.sub(NUMBERED, r"\1", state), (state, []))
        ranks.append(rank)
        self._report_complete_states()

    def _report_complete_states(self) -> None:
        """Report all states once no rank's is missing."""
        if self._inspected:
            return
        states, self._states = self._states, {}
        for text, ranks in states.values():
            self._report("\n".join([f"state of {self._job.describe(ranks)}:", *text.splitlines()]))
