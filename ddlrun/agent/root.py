"""The root of the tree of agents, which ddlrun starts: it decides when the job ends, and with which exit code."""

from __future__ import annotations

import os
import sys
import time

from ddlrun.agent import protocol
from ddlrun.agent.node import Node, read_grace
from ddlrun.errors import EXIT_SIGNAL, EXIT_UNREACHABLE
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import complain
from ddlrun.keeper.leftovers import remove_leftovers
from ddlrun.keeper.protocol import ADDRESSES
from ddlrun.wire.loop import NEVER
from ddlrun.wire.pipes import PipeConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddlrun.agent.command_line import RootCommand
    from ddlrun.agent.protocol import HostRanks
    from ddlrun.wire.connection import Connection

# After the first failure, the keepers of other ranks may have been told to leave, too.
LEAVE_SECONDS = 1.0
# The exit code of a job one of whose ranks has left MPI without MPI_Finalize.
EXIT_UNFINISHED = 1


class PmiRoot:
    """The meeting point of the PMI-1 servers of all hosts: a barrier that gives each the values of all."""

    def __init__(self, hosts: Iterable[int]) -> None:
        """Create a root for the hosts of these numbers."""
        self._hosts = tuple(hosts)
        self._arrived: dict[int, bytes] = {}

    @property
    def waiting(self) -> bool:
        """Whether the ranks of a host wait for those of others."""
        return bool(self._arrived)

    def on_message(self, host: int, message: bytes) -> bytes | None:
        """Take a server's message; return that to all servers, or None until all have met."""
        self._arrived[host] = message
        if len(self._arrived) < len(self._hosts):
            return None
        values = b"".join(self._arrived[number] for number in self._hosts)
        self._arrived.clear()
        return values


class Root(Node):
    """The root: all hosts of the job are below it, and its own may have ranks."""

    def __init__(self, version: str) -> None:
        """Begin without a job."""
        super().__init__(version)
        self._supervisor: Connection | None = None
        """The connection to the ddlrun that supervises the job: standard output."""
        if os.environ.get(ADDRESSES):
            self._supervisor = PipeConnection(-1, os.dup(1))
            protocol.begin(self._supervisor, sent=protocol.TO_DDLRUN, received={})
            self._supervisor.join(self._loop, lambda: None)
            os.dup2(2, 1)  # what a keeper prints by itself
        self._hosts: list[HostRanks] = []
        self._pmi_root = PmiRoot(())
        self._ended: list[int] = []
        """The ranks that have ended with exit code 0."""
        self._leave_at = NEVER
        """The time at which the root ends even if ranks are left, which notice that."""
        self._exit_code = 0
        """That of the first rank that failed, or 3 if a host was lost."""

    def begin(self, command: RootCommand) -> None:
        """Start the ranks of this host, and the agents of the others unless ddlrun has done so."""
        own, names = command.own, [host.name for host in command.others]
        self._hosts = [*command.others] if own is None else [own, *command.others]
        self._pmi_root = PmiRoot([host.number for host in self._hosts])
        if command.link and names:
            from ddlrun.agent.child import Child  # noqa: PLC0415 - not for every root

            self._children.adopt(Child.adopt(names, PipeConnection(*command.link)))
        else:
            self._children.open(command.tree, names)
        self._begin(command.job, command.job.pack(), own, command.others)

    def run(self) -> int:
        """Stay until all ranks have ended; return the exit code."""
        while not (self._must_leave or self._over):
            self._wait(self._leave_at - time.monotonic())
        if not self._must_leave:
            self._children.dismiss(self._wait)
            remove_leftovers()
        return self._exit_code

    @property
    def _must_leave(self) -> bool:
        return time.monotonic() >= self._leave_at

    def report(self, kind: bytes, text: bytes) -> None:
        """React to a message about this host or one below it."""
        if kind == protocol.PMI:
            self._on_pmi(text)
        elif kind == protocol.EXITED:
            self._on_exited(protocol.ExitedRank.parse(text))
        elif self._ending:
            return
        elif kind == protocol.UNFINISHED:
            self._on_unfinished(int(text))
        elif kind == protocol.LOST:
            host = protocol.LostHost.parse(text)
            sys.stderr.write(host.errors)
            self._tell(kind, text, f"lost host {host.name}: {host.reason}")
            self._fail(EXIT_UNREACHABLE, 0.0)

    def _on_exited(self, end: protocol.ExitedRank) -> None:
        if end.code == 0:
            self._ended.append(end.rank)
            self._check_barrier()
            return
        if not self._ending:
            killed = end.code == -signal.SIGKILL
            self._tell(protocol.EXITED, end.pack(), f"rank {end.rank}: its keeper was killed" if killed else "")
        self._fail(end.code if end.code > 0 else EXIT_SIGNAL - end.code, LEAVE_SECONDS)

    def _on_unfinished(self, rank: int) -> None:
        """End the job: other ranks would wait in MPI without end."""
        if not self._ending:
            host = next(host.name for host in self._hosts if rank in host.ranks)
            self._tell(protocol.UNFINISHED, b"%d" % rank, f"rank {rank} on {host} ended without MPI_Finalize")
            self._fail(EXIT_UNFINISHED, 0.0)

    def _tell(self, kind: bytes, text: bytes, words: str) -> None:
        """Report what ends the job: to the ddlrun that supervises it or, without one, to the user as text."""
        if self._supervisor is not None:
            self._supervisor.send(kind, text)
        elif words:
            complain(words)

    def _on_order(self, number: int) -> None:
        self._fail(EXIT_SIGNAL + number, 0.0)

    def _on_pmi(self, text: bytes) -> None:
        host, message = protocol.unpack_words(text)
        reply = self._pmi_root.on_message(int(host), message)
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
        if self._supervisor is not None:
            self._leave_at = min(self._leave_at, time.monotonic() + seconds)
        else:
            self._terminate(read_grace())
