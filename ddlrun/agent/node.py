"""A node of the tree of agents: the ranks of its host and the agents below it, in one event loop.

The root of the tree is the process manager, which ddlrun starts: see root.py. The others are agents: see agent.py.
"""

from __future__ import annotations

import os

from ddlrun.agent import protocol
from ddlrun.agent.children import Children
from ddlrun.agent.local_ranks import LocalRanks
from ddlrun.errors import EXIT_PREFLIGHT
from ddlrun.keeper.forks import complain
from ddlrun.keeper.signals import ENDING, SignalQueue
from ddlrun.wire.loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.agent.protocol import AgentJob, HostRanks


class Node:
    """The ranks of a host, and the agents below its own. A subclass decides on each message from these."""

    def __init__(self, version: str, needed: Sequence[int] = ()) -> None:
        """Begin without a job. `needed` are descriptors that keepers leave open."""
        self._loop = Loop()
        self._signals = SignalQueue(self._loop)
        self._ranks = LocalRanks(self._loop, self.report, needed)
        self._children = Children(self._loop, self._on_child, version)
        self._ending = False
        """Whether the ranks of the job end."""

    def _begin(self, job: AgentJob, packed: bytes, own: HostRanks | None, others: Sequence[HostRanks]) -> None:
        """Start the ranks of this host, and let the agents of the others start theirs.

        Args:
            job: The job.
            packed: The same as one text.
            own: This host; None if it has no ranks.
            others: The other hosts of this part of the job.
        """
        self._ending = False
        self._children.begin(packed, others)
        if own is None:
            return
        try:
            self._ranks.start(job, own)
        except OSError as error:
            complain(f"{os.uname().nodename}: no process can be started: {error.strerror} (see ulimit -u, ulimit -n)")
            self.report(protocol.EXITED, protocol.ExitedRank(rank=own.ranks[0], code=EXIT_PREFLIGHT).pack())

    def report(self, kind: bytes, text: bytes) -> None:
        """React to a message of FROM_AGENT, from this host or one below it."""
        raise NotImplementedError

    def _on_child(self, kind: bytes, text: bytes) -> None:
        if kind != protocol.DONE:
            self.report(kind, text)

    def _on_order(self, number: int) -> None:
        """React to a signal that ends this process."""
        raise NotImplementedError

    @property
    def _over(self) -> bool:
        """Whether all ranks of this host and of those below it have ended."""
        return not self._ranks.running and self._children.over

    def _wait(self, seconds: float) -> None:
        """Wait for events, and react to them."""
        self._loop.wait(seconds)
        for number in self._signals.take():
            if number in ENDING:
                self._on_order(number)
        pid, status = _reap_child()
        while pid:
            self._on_end(pid, status)
            pid, status = _reap_child()

    def _on_end(self, pid: int, status: int) -> None:
        """Take the end of a child process."""
        if not self._ranks.reap(pid, status):
            self._children.reap(pid, status)

    def _send_pmi_down(self, message: bytes) -> None:
        """Pass a message of the root on to the PMI servers of this host and of those below it."""
        self._children.send(protocol.PMI, message)
        self._ranks.deliver(message)

    def _terminate(self, grace: float) -> None:
        """End all ranks of this node and of those below it within a grace, once."""
        if not self._ending:
            self._ending = True
            self._ranks.terminate(grace)
            self._children.terminate(grace)


def _reap_child() -> tuple[int, int]:
    """Return the number and the status of a child that has ended; 0 if there is none. os.wait4 imports a module."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def read_grace() -> float:
    """Return the seconds from SIGTERM to SIGKILL, where no message gives them."""
    return float(os.environ.get("DDLRUN_GRACE", "10"))
