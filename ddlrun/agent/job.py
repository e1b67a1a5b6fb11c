"""The job of an attempt on agents, in the process of ddlrun: when it ends, and with which exit code."""

from __future__ import annotations

import os
import time

from ddlrun.agent import protocol
from ddlrun.agent.child import Child
from ddlrun.agent.protocol import ExitedRank, LostHost, unpack_words
from ddlrun.errors import EXIT_SIGNAL, EXIT_UNREACHABLE
from ddlrun.wire.loop import NEVER
from ddlrun.wire.pipes import PipeConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ddlrun.agent.children import Children
    from ddlrun.agent.protocol import AgentJob, HostRanks
    from ddlrun.wire.loop import Loop

# After the first failure, the keepers of other ranks may have been told to leave, too.
LEAVE_SECONDS = 1.0
# The exit code of a job one of whose ranks has left MPI without MPI_Finalize.
EXIT_UNFINISHED = 1
MOST_CODE = 255


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
        if host in self._hosts:
            self._arrived[host] = message
        if len(self._arrived) < len(self._hosts):
            return None
        values = b"".join(self._arrived[number] for number in self._hosts)
        self._arrived.clear()
        return values


class Job:
    """The job of an attempt. The links to other hosts outlast it.

    The process of this host's agent stands for the job, and ends with its exit code. Ranks that are left then notice
    that ddlrun ends them.
    """

    def __init__(self, loop: Loop, children: Children) -> None:
        """Make the pipes of this host's agent."""
        self._loop, self._children = loop, children
        (agent_reads, write), (read, agent_writes) = os.pipe(), os.pipe()
        self.descriptors = (agent_reads, agent_writes)
        """The standard input and output of this host's agent."""
        self._here = PipeConnection(read, write)
        self.on_report: Callable[[bytes, bytes], None] = lambda _kind, _text: None
        """Takes messages about what ends the job: EXITED, of failed ranks, UNFINISHED and LOST."""
        self._grace = 0.0
        self._pmi_root = PmiRoot(())
        self._ended: list[int] = []
        """The ranks that have ended with exit code 0."""
        self._leave_at = NEVER
        """The time at which the job ends even if ranks are left."""
        self._exit_code = 0
        """That of the first rank that failed, or 3 if a host was lost."""
        self._own: str | None = None
        self._is_over = False
        loop.watch_deadline(self._deadline, self._leave)

    def started(self) -> None:
        """Close the agent's ends here, once it was started."""
        for fd in self.descriptors:
            os.close(fd)

    def begin(self, job: AgentJob, hosts: Sequence[HostRanks], own: str, grace: float) -> None:
        """Start the ranks.

        Args:
            job: The job.
            hosts: The hosts with ranks.
            own: The name of this host among them; empty if it has none.
            grace: The seconds from SIGTERM to SIGKILL.
        """
        self._grace, self._own = grace, own
        self._pmi_root = PmiRoot([host.number for host in hosts])
        self._children.adopt(Child.here(own, self._here))
        self._children.begin(job.pack(), hosts)

    def report(self, kind: bytes, text: bytes) -> None:
        """React to a message of the agents."""
        if self._is_over:
            return
        if kind == protocol.PMI:
            self._on_pmi(text)
        elif kind == protocol.EXITED:
            self._on_exited(ExitedRank.parse(text))
        elif kind == protocol.UNFINISHED:
            self._on_unfinished(int(text))
        elif kind == protocol.DONE:
            self._leave()
        elif kind == protocol.LOST and LostHost.parse(text).name == self._own:  # its process has ended, too
            self._end()
        elif kind == protocol.LOST:
            os.write(2, LostHost.parse(text).errors.encode(errors="replace"))
            self.on_report(kind, text)
            self._fail(EXIT_UNREACHABLE, 0.0)

    def close(self) -> None:
        """End the ranks, and forget this host's agent, which has ended."""
        self._end()
        if self._own is not None:
            self._children.drop((self._own,))
        self._here.close()

    def _on_exited(self, end: ExitedRank) -> None:
        if end.code == 0:
            self._ended.append(end.rank)
            self._check_barrier()
            return
        self.on_report(protocol.EXITED, end.pack())
        self._fail(end.code if end.code > 0 else EXIT_SIGNAL - end.code, LEAVE_SECONDS)

    def _on_unfinished(self, rank: int) -> None:
        """End the job: other ranks would wait in MPI without end."""
        self.on_report(protocol.UNFINISHED, b"%d" % rank)
        self._fail(EXIT_UNFINISHED, 0.0)

    def _on_pmi(self, text: bytes) -> None:
        host, message = unpack_words(text)
        reply = self._pmi_root.on_message(int(host), message)
        if reply is not None:
            self._children.send(protocol.PMI, reply)
        self._check_barrier()

    def _check_barrier(self) -> None:
        """End the job if a rank has ended and never comes to the barrier in which the ranks of other hosts are."""
        if self._ended and self._pmi_root.waiting:
            self._on_unfinished(self._ended[0])

    def _fail(self, code: int, seconds: float) -> None:
        """End the job with an exit code, unless it has another one. Ranks have some seconds to end by themselves."""
        self._exit_code = self._exit_code or min(code, MOST_CODE)
        self._leave_at = min(self._leave_at, time.monotonic() + seconds)

    def _deadline(self) -> float:
        return self._leave_at

    def _leave(self, _now: float = 0.0) -> None:
        """Let this host's agent exit, and the others end their ranks."""
        self._here.send(protocol.EXIT, b"%d" % self._exit_code)
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._loop.forget_deadline(self._deadline)
        self._children.terminate(self._grace)
