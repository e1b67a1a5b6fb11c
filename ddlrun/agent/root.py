"""The root of the tree of agents, which ddlrun starts: it decides when the job ends, and with which exit code."""

from __future__ import annotations

import os
import time

from ddlrun.agent import frames
from ddlrun.agent.messages import complain
from ddlrun.agent.node import LONGEST_WAIT, NEVER, Node, read_grace
from ddlrun.agent.pmi_root import PmiRoot
from ddlrun.errors import EXIT_SIGNAL, EXIT_UNREACHABLE
from ddlrun.keeper import protocol
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.leftovers import remove_leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.agent.job import AgentJob, HostRanks

# After the first failure, the keepers of other ranks may have been told to leave, too.
LEAVE_SECONDS = 1.0
# The exit code of a job one of whose ranks has left MPI without MPI_Finalize.
EXIT_UNFINISHED = 1


class Root(Node):
    """The root: all hosts of the job are below it, and its own may have ranks."""

    def __init__(self, version: str) -> None:
        """Begin without a job."""
        super().__init__(version)
        self._reports: frames.Channel | None = None
        """The connection to the ddlrun that supervises the job: standard output."""
        if os.environ.get(protocol.ADDRESSES):
            self._reports = frames.Channel(-1, os.dup(1))
            os.dup2(2, 1)  # what a keeper prints by itself
        self._hosts: list[HostRanks] = []
        self._pmi_root = PmiRoot(())
        self._ended: list[int] = []
        """The ranks that have ended with exit code 0."""
        self._leave_at = NEVER
        """The time at which the root ends even if ranks are left, which notice that."""
        self._exit_code = 0
        """That of the first rank that failed, or 3 if a host was lost."""

    def begin(self, job: AgentJob, own: HostRanks | None, others: Sequence[HostRanks]) -> None:
        """Start the ranks of this host, and the agents of the others; see Node."""
        self._hosts = [*others] if own is None else [own, *others]
        self._pmi_root = PmiRoot([host.number for host in self._hosts])
        super().begin(job, own, others)

    def run(self) -> int:
        """Stay until all ranks have ended; return the exit code."""
        while not (self._must_leave or self._over):
            self._wait(LONGEST_WAIT)
        if not self._must_leave:
            self._dismiss()
            remove_leftovers()
        return self._exit_code

    @property
    def _must_leave(self) -> bool:
        return time.monotonic() >= self._leave_at

    @property
    def _deadline(self) -> float:
        return min(super()._deadline, self._leave_at)

    def _on_rank_end(self, rank: int, code: int) -> None:
        if code and not self._ending:
            killed = code == -signal.SIGKILL
            self._report(
                frames.EXITED, b"%d %d" % (rank, code), f"rank {rank}: its keeper was killed" if killed else ""
            )
        if code == 0:
            self._ended.append(rank)
            self._check_barrier()
        else:
            self._fail(code if code > 0 else EXIT_SIGNAL - code, LEAVE_SECONDS)

    def _on_unfinished(self, rank: int) -> None:
        """End the job: other ranks would wait in MPI without end."""
        if not self._ending:
            host = next(host.name for host in self._hosts if rank in host.ranks)
            self._report(frames.UNFINISHED, b"%d" % rank, f"rank {rank} on {host} ended without MPI_Finalize")
            self._fail(EXIT_UNFINISHED, 0.0)

    def _on_loss(self, text: bytes) -> None:
        if not self._ending:
            host, _, reason = text.decode(errors="replace").partition("\t")
            self._report(frames.LOST, text, f"lost host {host}: {reason}")
            self._fail(EXIT_UNREACHABLE, 0.0)

    def _report(self, kind: bytes, text: bytes, words: str) -> None:
        """Report what ends the job: to the ddlrun that supervises it or, without one, to the user as text."""
        if self._reports is not None:
            self._descriptors.send(self._reports, kind, text)
        elif words:
            complain(words)

    def _on_order(self, number: int) -> None:
        self._fail(EXIT_SIGNAL + number, 0.0)

    def _send_pmi_up(self, message: bytes) -> None:
        host, text = frames.unpack_words(message)
        reply = self._pmi_root.on_message(int(host), text)
        if reply is not None:
            self._send_pmi_down(reply)
        self._check_barrier()

    def _check_barrier(self) -> None:
        """End the job if a rank has ended and never comes to the barrier in which the ranks of other hosts are."""
        if self._ended and self._pmi_root.waiting:
            self._on_unfinished(self._ended[0])

    def _fail(self, code: int, seconds: float) -> None:
        """End the job with an exit code. A ddlrun that supervises it notices the end of the root, and ends the ranks.

        Args:
            code: The exit code.
            seconds: The time in which ranks may end by themselves.
        """
        self._exit_code = self._exit_code or code
        if self._reports is not None:
            self._leave_at = min(self._leave_at, time.monotonic() + seconds)
        else:
            self._terminate(read_grace())
