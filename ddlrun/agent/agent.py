"""An agent on a host: it gets jobs and programs from the node above it in the tree, and reports to that.

The root of the tree is ddlrun. An agent whose connection to the node above ends, ends its ranks and programs, and
closes the connections of the agents below it, which do the same. The agent of ddlrun's own host has none below it; its
process stands for the job: it exits when it is told to, or by a signal, and leaves its ranks to ddlrun.
"""

from __future__ import annotations

import os
import time

from ddlrun.agent import protocol
from ddlrun.agent.children import Children
from ddlrun.agent.local_ranks import LocalRanks
from ddlrun.agent.protocol import (
    IDLE_SECONDS,
    AgentJob,
    AgentTree,
    ExitedRank,
    HostRanks,
    LostHost,
    ProgramRequest,
    unpack_words,
)
from ddlrun.errors import EXIT_PREFLIGHT, EXIT_SIGNAL
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import complain
from ddlrun.keeper.leftovers import remove_leftovers
from ddlrun.keeper.protocol import AGENT_RUN
from ddlrun.keeper.signals import ENDING, SignalQueue
from ddlrun.wire.frames import FrameError
from ddlrun.wire.loop import LONGEST, NEVER, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddlrun.agent.programs import HostPrograms
    from ddlrun.wire.connection import Connection

# While more waits to be sent, no more output is read.
MOST_UNSENT = 1 << 20


class Agent:
    """The ranks and programs of a host, and the agents below it, in one event loop."""

    def __init__(self, parent: Connection, version: str, needed: Sequence[int], *, here: bool = False) -> None:
        """Begin without a job.

        Args:
            parent: The connection to the node that has started it.
            version: That of ddlrun.
            needed: The descriptors that forks leave open.
            here: Whether it is the agent of ddlrun's own host.
        """
        self._loop = Loop()
        self._signals = SignalQueue(self._loop)
        self._needed, self._here = needed, here
        self._ranks = LocalRanks(self._loop, self.report, needed)
        self._children = Children(self._loop, self._on_child, version)
        self._replaced: dict[str, str | None] = {}
        """The variables that a job has set, as they were before."""
        self._hosts = [""]
        """The names of this host, and of those below it."""
        self._has_job = self._ending = self._leaving = False
        """Whether it has a job; whether the ranks of that end; and whether it ends itself."""
        self._programs: HostPrograms | None = None
        self._reading = True
        """Whether the output of programs is read."""
        self._heard = time.monotonic()
        """The time of the last message from above."""
        self._idle = IDLE_SECONDS
        """A cut network does not report the end of a connection. Ranks notice it by themselves; an agent without any
        ends after this time without a message, or later if it has a daemon, which may notice it, too."""
        self._parent = parent
        protocol.begin(parent, sent=protocol.FROM_AGENT, received=protocol.TO_AGENT)
        parent.join(self._loop, self._on_parent)
        self._loop.watch_deadline(self._idle_until, self._end_idle)

    def run(self) -> None:
        """Run until the connection to the node above has ended, and all ranks and programs."""
        while not (self._over and (self._leaving or not self._parent.open)):
            self._wait(LONGEST)
            if self._has_job and self._ranks_over:
                self._finish_job()
        self._children.dismiss(self._wait)
        while self._parent.unsent:
            self._loop.wait()

    @property
    def _ranks_over(self) -> bool:
        """Whether all ranks of this host and of those below it have ended."""
        return not self._ranks.running and self._children.over

    @property
    def _over(self) -> bool:
        return self._ranks_over and not (self._programs and self._programs.running)

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

    def _idle_until(self) -> float:
        if self._here or not self._ranks_over or not self._parent.open:
            return NEVER
        return self._heard + self._idle + (self._programs.linger if self._programs else 0.0)

    def _end_idle(self, now: float) -> None:
        """Leave a node that was silent for too long, unless this process did not run, as the job was suspended."""
        if now > self._idle_until() + self._idle / 2:
            self._heard = now
        else:
            self._leave_parent()

    def report(self, kind: bytes, text: bytes) -> None:
        """Pass a message on to the node above; after much output, read no more until it was sent."""
        if not self._parent.send(kind, text, self._on_sent) and self._parent.unsent > MOST_UNSENT:
            self._pause(reading=False)

    def _on_child(self, kind: bytes, text: bytes) -> None:
        if kind != protocol.DONE:
            self.report(kind, text)

    def _on_sent(self) -> None:
        if not self._reading and self._parent.unsent <= MOST_UNSENT:
            self._pause(reading=True)

    def _pause(self, *, reading: bool) -> None:
        self._reading = reading
        self._children.pause(reading=reading)
        if self._programs is not None:
            self._programs.pause(reading=reading)

    def _on_parent(self) -> None:
        """React to what the node above has sent, or to the end of the connection."""
        self._heard = time.monotonic()
        try:
            for kind, text in self._parent.receive():
                self._on_message(kind, text)
        except FrameError:
            self.report(protocol.ALTERED, b"")
            self._leave_parent()
        except OSError:  # that node is gone
            self._leave_parent()

    def _leave_parent(self) -> None:
        """Close the connection to the node above, and end all ranks and programs."""
        self._parent.close()
        self._pause(reading=True)
        self._terminate(read_grace())
        self._children.close()
        if self._programs is not None:
            self._programs.leave()

    def _on_message(self, kind: bytes, text: bytes) -> None:
        if kind == protocol.TREE:
            self._take_tree(text)
        elif kind == protocol.JOB:
            self._take_job(text)
        elif kind == protocol.PMI:
            self._children.send(protocol.PMI, text)
            self._ranks.deliver(text)
        elif kind == protocol.TERMINATE and self._has_job:
            self._terminate(float(text))
        elif kind == protocol.EXIT:
            os._exit(int(text))
        elif kind == protocol.RUN:
            self._run_program(text)
        elif kind == protocol.STOP:
            self._children.stop(int(text))
            if self._programs is not None:
                self._programs.stop(int(text))

    def _take_tree(self, text: bytes) -> None:
        signal.alarm(0)
        packed, names = unpack_words(text)
        self._hosts = [name.decode() for name in unpack_words(names)]
        tree = AgentTree.parse(packed)
        self._idle = tree.idle
        self._children.open(tree, self._hosts[1:], self._hosts[0])

    def _take_job(self, text: bytes) -> None:
        packed, packed_hosts = unpack_words(text)
        job = AgentJob.parse(packed)
        hosts = [HostRanks.parse(host) for host in unpack_words(packed_hosts)]
        own = next((host for host in hosts if host.name == self._hosts[0]), None)
        self._set_variables(job.environ)
        self._has_job, self._ending = True, False
        self._children.begin(packed, [host for host in hosts if host is not own])
        if own is not None:
            self._start_ranks(job, own)

    def _start_ranks(self, job: AgentJob, own: HostRanks) -> None:
        try:
            self._ranks.start(job, own)
        except OSError as error:
            complain(f"{os.uname().nodename}: no process can be started: {error.strerror} (see ulimit -u, ulimit -n)")
            self.report(protocol.EXITED, ExitedRank(rank=own.ranks[0], code=EXIT_PREFLIGHT).pack())

    def _terminate(self, grace: float) -> None:
        """End all ranks of this host and of those below it within a grace, once."""
        if not self._ending:
            self._ending = True
            self._ranks.terminate(grace)
            self._children.terminate(grace)

    def _finish_job(self) -> None:
        """Report that all ranks have ended."""
        remove_leftovers()
        self._ranks.forget()
        self._has_job = False
        self._heard = time.monotonic()
        self.report(protocol.DONE, b"")

    def _set_variables(self, variables: Mapping[str, str]) -> None:
        """Set the variables of a job, in place of those of the one before."""
        for name, value in self._replaced.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self._replaced = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)

    def _run_program(self, text: bytes) -> None:
        request = ProgramRequest.parse(text)
        own, *_ = self._hosts
        others = [host for host in request.hosts if host != own]
        if others:
            self._children.run(ProgramRequest(**{**vars(request), "hosts": others}))
        if len(others) < len(request.hosts):
            if self._programs is None:
                from ddlrun.agent.programs import HostPrograms  # noqa: PLC0415 - not for every agent

                environ = {**os.environ, **self._replaced, AGENT_RUN: None}
                plain = {name: value for name, value in environ.items() if value is not None}
                self._programs = HostPrograms(self._loop, self.report, own, plain, self._needed)
            self._programs.start(request)

    def _on_end(self, pid: int, status: int) -> None:
        """Take the end of a child process."""
        is_program = self._programs is not None and self._programs.reap(pid, status)
        if not is_program and not self._ranks.reap(pid, status):
            self._children.reap(pid, status)

    def _on_order(self, number: int) -> None:
        """React to a signal that ends this process."""
        if self._here:
            os._exit(EXIT_SIGNAL + number)
        if self._has_job:
            from signal import Signals  # noqa: PLC0415 - 4 ms, for the name of the signal alone

            name, *below = self._hosts
            reason = f"its agent received {Signals(number).name}"
            self.report(protocol.LOST, LostHost(name=name, reason=reason, below=below).pack())
            self._terminate(read_grace())
        if self._programs is not None:
            self._programs.leave()
        self._leaving = True


def _reap_child() -> tuple[int, int]:
    """Return the number and the status of a child that has ended; 0 if there is none. os.wait4 imports a module."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def read_grace() -> float:
    """Return the seconds from SIGTERM to SIGKILL, where no message gives them."""
    return float(os.environ.get("DDLRUN_GRACE", "10"))
