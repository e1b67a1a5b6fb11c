"""An agent: the event loop over its ranks, the agents that it has started, and the one that has started it.

The agents of a job form a tree. Its root is the process manager, which ddlrun starts; it has the ranks of its own host
too. An agent whose parent is gone ends its ranks, and closes the connections of the agents below it, which do the same.
"""

from __future__ import annotations

import os
import time

from ddlrun.agent import frames
from ddlrun.agent.children import Children
from ddlrun.agent.descriptors import Descriptors
from ddlrun.agent.job import AgentJob, HostRanks, divide
from ddlrun.agent.local_ranks import SLACK_SECONDS, LocalRanks
from ddlrun.agent.pmi_service import PmiService
from ddlrun.errors import EXIT_PREFLIGHT, EXIT_SIGNAL, EXIT_UNREACHABLE
from ddlrun.rank import protocol
from ddlrun.rank.signals import ENDING, SignalQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.agent.child import Child
    from ddlrun.agent.frames import Channel
    from ddlrun.agent.pmi import PmiServer

LONGEST_WAIT = 5.0
# The programs that lead to other hosts have this long to end once all ranks have ended.
FAREWELL_SECONDS = 2.0
# After the first failure, the keepers of other ranks may have been told to leave, too.
LEAVE_SECONDS = 1.0
NEVER = float("inf")


class Node:
    """The ranks of a host, and the connections of its agent."""

    def __init__(self, parent: Channel | None, version: str, needed: Sequence[int] = ()) -> None:
        """Begin without a job.

        Args:
            parent: The connection to the agent that has started this one; None for the root.
            version: The version of ddlrun.
            needed: Descriptors that keepers leave open.
        """
        self._parent, self._needed = parent, needed
        self._signals = SignalQueue()
        self._ranks = LocalRanks()
        self._descriptors = Descriptors()
        self._children = Children(self._descriptors, version, self._on_report, self._on_lost_child)
        self._job: AgentJob | None = None
        self._own: HostRanks | None = None
        self._pmi: PmiService | None = None
        self._grace = 10.0
        self._give_up_at = NEVER
        self._leave_at = NEVER
        """The time at which the root ends even if ranks are left, which notice that."""
        self.exit_code = 0
        """That of the first rank that failed, or 3 if a host was lost."""
        self._descriptors.watch(self._signals.fd, self._on_signals)
        if parent is not None:
            self._descriptors.watch(parent.read_fd, self._on_parent)

    def begin(self, job: AgentJob, own: HostRanks | None, others: Sequence[HostRanks]) -> None:
        """Start the ranks of this host, and the agents of the others.

        Args:
            job: The job.
            own: This host; None if the root's host has no ranks.
            others: The other hosts of this part of the job.
        """
        self._job, self._own = job, own
        self._grace = float(job.environ.get("DDLRUN_GRACE", self._grace))
        self._pmi = PmiService(own, [own, *others] if own else others, job, root=self._parent is None)
        self._children.start(job, divide(others, job.fan_out))
        if own is None:
            return
        try:
            os.chdir(job.folder)
        except OSError as error:
            complain(f"host {own.name}: working folder {job.folder}: {error.strerror}")
            self._on_rank_end(own.ranks[0], EXIT_PREFLIGHT)
            return
        if self._pmi.server is not None:
            self._ranks.start(job, own.ranks, self._pmi.server, self._needed)
            self._watch_pmi(self._pmi.server)

    def run(self) -> int:
        """Stay until all ranks have ended; return the exit code."""
        while not self._is_over():
            self._wait(LONGEST_WAIT)
        if not self._must_leave:
            self._dismiss()
        if self._parent is not None and self._parent.open:
            self._parent.send(frames.DONE)
            os.set_blocking(self._parent.write_fd, True)
            self._parent.flush()
        return self.exit_code

    @property
    def _must_leave(self) -> bool:
        return time.monotonic() >= self._leave_at

    def _is_over(self) -> bool:
        if self._must_leave:
            return True
        if self._job is None:  # it has not arrived, or never will
            return self._parent is not None and not self._parent.open
        return not self._ranks.running and self._children.over

    def _dismiss(self) -> None:
        """Wait until the programs that lead to other hosts have ended, but not for long."""
        self._children.close()
        end = time.monotonic() + FAREWELL_SECONDS
        while self._children.running and time.monotonic() < end:
            self._wait(end - time.monotonic())
        self._children.kill()

    # -- events -----------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        """Wait for the next event or deadline, and react to it."""
        deadline = min(self._ranks.deadline, self._give_up_at, self._leave_at) - time.monotonic()
        self._descriptors.wait(min(seconds, deadline))
        now = time.monotonic()
        self._ranks.kill_due(now)
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

    def _on_order(self, number: int) -> None:
        """React to a signal that ends this process."""
        if self._parent is None:
            self._fail(EXIT_SIGNAL + number, 0.0)
        elif self._own is not None:
            self._descriptors.send(
                self._parent, frames.LOST, f"{self._own.name}\tits agent received signal {number}".encode()
            )
            self._terminate(self._grace)

    def _on_process_end(self, pid: int, status: int) -> None:
        end = self._ranks.reap(pid, status)
        if end is not None:
            self._on_rank_end(*end)
            return
        self._children.reap(pid, status)

    # -- the tree ---------------------------------------------------------------------------------

    def _on_report(self, kind: bytes, text: bytes) -> None:
        """React to a message of an agent below this one."""
        if kind == frames.EXITED:
            rank, code = map(int, text.split())
            self._on_rank_end(rank, code)
        elif kind == frames.LOST:
            self._on_loss(text)
        elif kind == frames.PMI:
            self._send_pmi_up(text)

    def _on_parent(self) -> None:
        """React to what the agent above this one has sent, or to its end."""
        parent = self._parent
        if parent is None:
            return
        parent.receive()
        for kind, text in parent.messages():
            if kind == frames.JOB:
                job, hosts = frames.unpack_words(text)
                own, *others = map(HostRanks.parse, frames.unpack_words(hosts))
                self._take_job(AgentJob.parse(job), own, others)
            elif kind == frames.TERMINATE:
                self._terminate(float(text))
            elif kind == frames.PMI:
                self._send_pmi_down(text)
        if not parent.open:
            self._descriptors.forget(parent.read_fd)
            self._terminate(self._grace)
            self._children.close()

    def _take_job(self, job: AgentJob, own: HostRanks, others: Sequence[HostRanks]) -> None:
        os.environ.update(job.environ)
        self.begin(job, own, others)

    def _on_rank_end(self, rank: int, code: int) -> None:
        if self._parent is not None:
            self._descriptors.send(self._parent, frames.EXITED, b"%d %d" % (rank, code))
        elif code:
            self._fail(code, LEAVE_SECONDS)

    def _on_lost_child(self, child: Child) -> None:
        """Report the host of an agent that is gone before its ranks have ended."""
        if not self._ending:
            self._on_loss(f"{child.name}\t{child.describe_loss()}".encode())

    def _on_loss(self, text: bytes) -> None:
        if self._parent is not None:
            self._descriptors.send(self._parent, frames.LOST, text)
        elif not self._ending:
            host, _, reason = text.decode(errors="replace").partition("\t")
            complain(f"lost host {host}: {reason}")
            self._fail(EXIT_UNREACHABLE, 0.0)

    def _fail(self, code: int, seconds: float) -> None:
        """End the job with an exit code. A ddlrun that supervises it notices the end of the root, and ends the ranks.

        Args:
            code: The exit code.
            seconds: The time in which ranks may end by themselves.
        """
        self.exit_code = self.exit_code or code
        if os.environ.get(protocol.ADDRESSES):
            self._leave_at = min(self._leave_at, time.monotonic() + seconds)
        else:
            self._terminate(self._grace)

    # -- the end ----------------------------------------------------------------------------------

    @property
    def _ending(self) -> bool:
        return self._give_up_at < NEVER

    def _terminate(self, grace: float) -> None:
        """End all ranks of this agent and of those below it within a grace, once."""
        if self._ending:
            return
        self._give_up_at = time.monotonic() + grace + 2 * SLACK_SECONDS
        self._ranks.terminate(grace)
        self._children.terminate(grace)

    # -- PMI --------------------------------------------------------------------------------------

    def _watch_pmi(self, server: PmiServer) -> None:
        """Watch the connections of the ranks to this host's PMI server."""
        for fd in server.readable():
            self._descriptors.watch(fd, self._pmi_reader(server, fd))

    def _pmi_reader(self, server: PmiServer, fd: int) -> Callable[[], None]:
        return lambda: self._on_pmi(server, fd)

    def _on_pmi(self, server: PmiServer, fd: int) -> None:
        if not server.on_readable(fd):
            self._descriptors.forget(fd)
            server.close(fd)
        for note in server.take_notes():
            complain(note)
        for abort in server.take_aborts():
            self._ranks.abort(abort)
        for message in self._pmi.take_messages() if self._pmi is not None else ():
            self._send_pmi_up(message)

    def _send_pmi_up(self, message: bytes) -> None:
        """Pass a message of a PMI server on to the root."""
        if self._parent is not None:
            self._descriptors.send(self._parent, frames.PMI, message)
        elif self._pmi is not None:
            for reply in self._pmi.merge(message):
                self._send_pmi_down(reply)

    def _send_pmi_down(self, message: bytes) -> None:
        """Pass a message of the root on to the PMI server of a host."""
        number = int(frames.unpack_words(message)[0])
        if self._pmi is not None and self._pmi.deliver(message):
            return
        self._children.send_pmi(number, message)


def complain(text: str) -> None:
    """Print a message to standard error."""
    os.write(2, f"ddlrun: {text}\n".encode(errors="replace"))
