"""A node of the tree of agents: the event loop over the ranks of its host and the agents below it.

The root of the tree is the process manager, which ddlrun starts: see root.py. The others are agents: see agent.py.
"""

from __future__ import annotations

import os
import time

from ddlrun.agent import frames
from ddlrun.agent.children import Children
from ddlrun.agent.descriptors import Descriptors
from ddlrun.agent.job import divide
from ddlrun.agent.local_ranks import SLACK_SECONDS, LocalRanks
from ddlrun.agent.messages import complain
from ddlrun.agent.pmi_service import PmiService
from ddlrun.errors import EXIT_PREFLIGHT
from ddlrun.keeper.signals import ENDING, SignalQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.agent.child import Child
    from ddlrun.agent.job import AgentJob, HostRanks

LONGEST_WAIT = 5.0
# The programs that lead to other hosts have this long to end once all ranks have ended.
FAREWELL_SECONDS = 2.0
NEVER = float("inf")


class Node:
    """The ranks of a host, and the agents below its own. Subclasses report what happens to them."""

    def __init__(self, version: str, needed: Sequence[int] = ()) -> None:
        """Begin without a job. `needed` are descriptors that keepers leave open."""
        self._needed = needed
        self._signals = SignalQueue()
        self._give_up_at = NEVER
        self._own: HostRanks | None = None
        self._ranks = LocalRanks()
        self._descriptors = Descriptors()
        self._children = Children(self._descriptors, version, self._on_report, self._on_lost_child)
        self._pmi: PmiService | None = None
        self._descriptors.watch(self._signals.fd, self._on_signals)

    def begin(self, job: AgentJob, own: HostRanks | None, others: Sequence[HostRanks]) -> None:
        """Start the ranks of this host, and the agents of the others.

        Args:
            job: The job.
            own: This host; None if it has no ranks.
            others: The other hosts of this part of the job.
        """
        self._own = own
        try:
            self._children.start(job, divide(others, job.fan_out))
            if own is not None:
                self._start_ranks(job, own)
        except OSError as error:
            host = own or others[0]
            complain(f"{os.uname().nodename}: no process can be started: {error.strerror} (see ulimit -u, ulimit -n)")
            self._on_rank_end(host.ranks[0], EXIT_PREFLIGHT)

    def _start_ranks(self, job: AgentJob, own: HostRanks) -> None:
        """Start the ranks of this host. Raises OSError if there can be no process for one."""
        try:
            os.chdir(job.folder)
        except OSError as error:
            complain(f"host {own.name}: working folder {job.folder}: {error.strerror}")
            self._on_rank_end(own.ranks[0], EXIT_PREFLIGHT)
            return
        self._pmi = PmiService(
            job,
            own,
            descriptors=self._descriptors,
            on_abort=self._ranks.abort,
            on_close=self._ranks.close_orders,
            on_unfinished=self._on_unfinished,
            send_up=self._send_pmi_up,
        )
        self._ranks.start(job, own.ranks, self._pmi, self._needed)
        self._pmi.watch()

    # -- what subclasses report -------------------------------------------------------------------

    @property
    def _host(self) -> str:
        """The name of this host; empty for ddlrun's own."""
        return ""

    def _on_rank_end(self, rank: int, code: int) -> None:
        """React to the end of a rank of this host, or of one below it: its exit code, or minus the signal."""
        raise NotImplementedError

    def _on_unfinished(self, rank: int) -> None:
        """React to the end of a rank, with exit code 0, that has not called MPI_Finalize, and others are in MPI."""
        raise NotImplementedError

    def _on_loss(self, text: bytes) -> None:
        """React to the loss of a host below this one: its name and the reason, separated by a tab."""
        raise NotImplementedError

    def _on_order(self, number: int) -> None:
        """React to a signal that ends this process."""
        raise NotImplementedError

    def _send_pmi_up(self, message: bytes) -> None:
        """Pass a message of a PMI server on to the root."""
        raise NotImplementedError

    # -- events -----------------------------------------------------------------------------------

    @property
    def _over(self) -> bool:
        """Whether all ranks of this host and of those below it have ended."""
        return not self._ranks.running and self._children.over

    @property
    def _deadline(self) -> float:
        """The time at which something has to be done without an event."""
        return min(self._ranks.deadline, self._give_up_at)

    def _wait(self, seconds: float) -> None:
        """Wait for the next event or deadline, and react to it."""
        self._descriptors.wait(min(seconds, self._deadline - time.monotonic()))
        now = time.monotonic()
        self._ranks.kill_due(now)
        self._children.resume(now)
        if now > self._give_up_at:
            self._give_up_at = now + SLACK_SECONDS
            self._children.give_up()

    def _on_signals(self) -> None:
        for number in self._signals.take():
            if number in ENDING:
                self._on_order(number)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_process_end(pid, status)

    def _on_process_end(self, pid: int, status: int) -> None:
        end = self._ranks.reap(pid, status)
        if end is None:
            self._children.reap(pid, status)
            return
        rank, code = end
        if code == 0 and self._pmi is not None:
            self._pmi.on_end(rank)
        self._on_rank_end(rank, code)

    def _on_report(self, kind: bytes, text: bytes) -> None:
        """React to a message of an agent below this one."""
        if kind == frames.EXITED:
            rank, code = map(int, text.split())
            self._on_rank_end(rank, code)
        elif kind == frames.UNFINISHED:
            self._on_unfinished(int(text))
        elif kind == frames.LOST:
            self._on_loss(text)
        elif kind == frames.PMI:
            self._send_pmi_up(text)

    def _on_lost_child(self, child: Child) -> None:
        """Report the host of an agent that is gone before its ranks have ended."""
        if not self._ending:
            self._on_loss(f"{child.name}\t{child.describe_loss(self._host)}".encode())

    def _send_pmi_down(self, message: bytes) -> None:
        """Pass a message of the root on to the PMI servers of this host and of those below it."""
        self._children.send_pmi(message)
        if self._pmi is not None:
            self._pmi.deliver(message)

    # -- the end ----------------------------------------------------------------------------------

    @property
    def _ending(self) -> bool:
        return self._give_up_at < NEVER

    def _terminate(self, grace: float) -> None:
        """End all ranks of this node and of those below it within a grace, once."""
        if self._ending:
            return
        self._give_up_at = time.monotonic() + grace + 2 * SLACK_SECONDS
        self._ranks.terminate(grace)
        self._children.terminate(grace)

    def _dismiss(self) -> None:
        """Wait until the programs that lead to other hosts have ended, but not for long."""
        self._children.close()
        end = time.monotonic() + FAREWELL_SECONDS
        while self._children.running and time.monotonic() < end:
            self._wait(end - time.monotonic())
        self._children.kill()


def read_grace() -> float:
    """Return the seconds from SIGTERM to SIGKILL, where no message gives them."""
    return float(os.environ.get("DDLRUN_GRACE", "10"))
