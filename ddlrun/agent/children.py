"""The links from a node to the agents below it: those that it has started, and those that wait for their start.

An agent sends messages only while it runs a job or a program. The loss of an agent is reported at once while the end of
one of these is awaited, and otherwise in reply to each later request.
"""

from __future__ import annotations

import time

from ddlrun.agent import protocol
from ddlrun.agent.protocol import IDLE_SECONDS, ProgramRequest, pack_words
from ddlrun.keeper.forks import complain
from ddlrun.wire.loop import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ddlrun.agent.child import Child
    from ddlrun.agent.launcher import ClientGroup
    from ddlrun.agent.protocol import AgentTree, HostRanks
    from ddlrun.wire.loop import Loop

# The number of agents that are being started at the same time.
MOST_STARTING = 64
# The intervals at which the clients (ssh or similar) are checked: while they run, and while one is to end.
CHECK_SECONDS, MOMENT = 5.0, 0.005
# The messages that an agent without work gets in the time after which it would end.
KEEPS_PER_IDLE = 6
# Clients have this long to end by themselves, and once they were killed.
FAREWELL_SECONDS = 2.0, 1.0
# After a grace and this time, agents that have not ended their ranks are given up.
SLACK_SECONDS = 6.0


class Children:
    """The agents below a node."""

    def __init__(self, loop: Loop, report: Callable[[bytes, bytes], None], version: str) -> None:
        """Begin without any.

        Args:
            loop: The loop, in which all happens.
            report: Takes their messages to the root, and DONE once none of them has ranks of the job any more.
            version: That of ddlrun.
        """
        self._loop, self._report, self._version = loop, report, version
        self._children: list[Child] = []
        self._waiting: list[Child] = []
        """Those that are not started yet, the first one last."""
        self._starting: list[Child] = []
        self._busy: set[Child] = set()
        """Those that may have ranks of the job."""
        self._leaving: list[Child] = []
        """Those whose launchers are about to end, or have ended."""
        self._by_host: dict[str, Child] = {}
        self._group: ClientGroup | None = None
        self._own = ""
        self._ending = False
        self._keep_seconds = IDLE_SECONDS / KEEPS_PER_IDLE
        self._give_up_at = self._reap_at = self._check_at = self._keep_at = NEVER
        loop.watch_deadline(lambda: self._give_up_at, self._give_up_job)
        loop.watch_deadline(lambda: self._reap_at, self._reap_leaving)
        loop.watch_deadline(lambda: self._check_at, self._check)
        loop.watch_deadline(lambda: self._keep_at, self._keep)

    @property
    def over(self) -> bool:
        """Whether no end of a rank is expected from any of them."""
        return not self._busy

    @property
    def names(self) -> set[str]:
        """The hosts that can be reached, as far as is known."""
        return {name for name, child in self._by_host.items() if not (child.gone or child.given_up)}

    # -- links ------------------------------------------------------------------------------------

    def open(self, tree: AgentTree, hosts: Sequence[str], own: str = "") -> None:
        """Start agents on hosts, a few at a time; later calls add hosts, or restart lost ones.

        Args:
            tree: What agents need to start others.
            hosts: The names of the hosts.
            own: The name of this host; empty: ddlrun's own.
        """
        self._own, self._keep_seconds = own, tree.idle / KEEPS_PER_IDLE
        if not hosts:
            return
        from ddlrun.agent.child import Child, divide  # noqa: PLC0415 - most agents have none below them

        self._children = [child for child in self._children if not child.gone]
        children = [Child(tree, part, self._version) for part in divide(hosts, tree.fan_out)]
        self._waiting[:0] = children[::-1]
        for child in children:
            self._add(child)
        self._start_waiting()

    def drop(self, hosts: Iterable[str]) -> None:
        """Give up the links to hosts, and those that go on from there."""
        self._give_up({self._by_host[host] for host in hosts})

    def adopt(self, child: Child) -> None:
        """Take over the agent of this host, which runs already."""
        self._add(child)
        child.connection.join(self._loop, lambda: self._on_child(child))

    def _add(self, child: Child) -> None:
        self._children.append(child)
        self._by_host.update(dict.fromkeys(child.hosts, child))
        now = time.monotonic()
        self._check_at = min(self._check_at, now + CHECK_SECONDS)
        self._keep_at = min(self._keep_at, now + self._keep_seconds)

    def _start_waiting(self) -> None:
        """Start as many of the agents that wait for it as may be started now."""
        if not self._waiting:
            return
        from ddlrun.agent.launcher import ClientGroup  # noqa: PLC0415 - most agents have none below them

        self._group = self._group or ClientGroup()
        self._starting = [child for child in self._starting if not (child.ready or child.gone)]
        while self._waiting and len(self._starting) < MOST_STARTING:
            child = self._waiting.pop()
            self._starting.append(child)
            child.start(self._loop, self._group, lambda child=child: self._on_child(child))  # type: ignore[misc]
            self._check_loss(child)

    # -- jobs -------------------------------------------------------------------------------------

    def begin(self, job: bytes, hosts: Iterable[HostRanks]) -> None:
        """Pass a job on to the agents of its hosts."""
        parts: dict[Child, list[bytes]] = {}
        for host in hosts:
            parts.setdefault(self._by_host[host.name], []).append(host.pack())
        self._busy.update(parts)
        for child, part in parts.items():
            child.send(protocol.JOB, pack_words([job, pack_words(part)]))
        self._watch_end(*parts)

    def terminate(self, grace: float) -> None:
        """Let all agents end their ranks within a grace."""
        if self.over:
            return
        self._ending = True
        self._give_up_at = time.monotonic() + grace + SLACK_SECONDS
        self._busy = {child for child in self._busy if child.terminate(str(grace).encode())}
        self._settle()

    def send(self, kind: bytes, text: bytes) -> None:
        """Send a message to all agents that have the job."""
        for child in self._busy:
            child.send(kind, text)

    def _settle(self) -> None:
        """Report that no agent has ranks any more, once that is so."""
        if self.over:
            self._ending, self._give_up_at = False, NEVER
            self._report(protocol.DONE, b"")

    def _give_up_job(self, now: float) -> None:
        self._give_up_at = now + SLACK_SECONDS
        self._give_up(self._busy)

    # -- programs ---------------------------------------------------------------------------------

    def run(self, request: ProgramRequest) -> None:
        """Run a program on hosts: each reports its output and its end, or that the host is lost."""
        parts: dict[Child, list[str]] = {}
        for host in request.hosts:
            parts.setdefault(self._by_host[host], []).append(host)
        for child, hosts in parts.items():
            part = ProgramRequest(**{**vars(request), "hosts": hosts})
            child.awaited.update((host, request.number) for host in hosts)
            child.send(protocol.RUN, part.pack())
        self._watch_end(*parts)

    def stop(self, number: int) -> None:
        """Stop a program on all its hosts."""
        for child in self._children:
            if any(number == awaited for _, awaited in child.awaited):
                child.send(protocol.STOP, b"%d" % number)

    def pause(self, *, reading: bool) -> None:
        """Read what agents send, or leave it to wait."""
        for child in self._children:
            child.connection.pause(reading=reading)

    # -- what arrives -----------------------------------------------------------------------------

    def _on_child(self, child: Child) -> None:
        ready = child.ready
        for kind, text in child.receive():
            if not child.given_up:
                self._on_message(child, kind, text)
        if not child.connection.open:
            self._check_loss(child)
            self._watch_end(child, seconds=MOMENT)
        if child.ready and not ready:
            self._start_waiting()

    def _on_message(self, child: Child, kind: bytes, text: bytes) -> None:
        if kind == protocol.ALTERED or not child.take(kind, text):
            child.altered = True
            self._give_up((child,))
            self._report_loss(child)
        elif kind == protocol.DONE:
            self._busy.discard(child)
            self._settle()
        else:
            self._report(kind, text)

    def reap(self, pid: int, status: int) -> None:
        """Take the end of a client, or that of the leader of their group."""
        if self._group is not None and pid == self._group.leader:
            self._group.release()
            self._group = None  # the next program begins another
        for child in self._children:
            if child.pid == pid:
                child.status = status
                self._check_loss(child)

    def _check_loss(self, child: Child) -> None:
        if child.ends:
            child.reap()
        if child.gone:
            self._report_loss(child)

    def _report_loss(self, child: Child) -> None:
        """Report that an agent is gone if that was not expected."""
        awaited, busy = bool(child.awaited), child in self._busy
        child.awaited.clear()
        self._busy.discard(child)
        if awaited or (busy and not self._ending):
            self._report(protocol.LOST, child.describe_loss(self._own).pack())
        if busy:
            self._settle()

    def _watch_end(self, *children: Child, seconds: float = 0.0) -> None:
        """Report the losses of children that are gone, or about to, after some seconds."""
        self._leaving += children
        self._reap_at = min(self._reap_at, time.monotonic() + seconds)

    def _reap_leaving(self, now: float) -> None:
        leaving, self._leaving = self._leaving, []
        for child in leaving:
            self._check_loss(child)
        self._leaving += [child for child in leaving if child.ends]
        self._reap_at = now + MOMENT if self._leaving else NEVER

    def _give_up(self, children: Iterable[Child]) -> None:
        for child in children:
            child.give_up()
            self._watch_end(child)

    def _check(self, now: float) -> None:
        """Resume stopped clients."""
        for child in self._children:
            if child.resume(now):  # ranks in MPI wait for their messages
                complain(f"{child.via} to {child.name} was stopped while the job ran, and was resumed")
        self._check_at = now + CHECK_SECONDS

    def _keep(self, now: float) -> None:
        """Keep the agents alive, which end without messages."""
        for child in self._children:
            if child.ready:
                child.connection.send(protocol.KEEP)
        self._keep_at = now + self._keep_seconds

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all links: the agents end their ranks and programs, and themselves."""
        self._waiting.clear()
        for child in self._children:
            if child.ready:
                child.connection.finish_sending()
        self._give_up(child for child in self._children if not child.ready)

    def dismiss(self, wait: Callable[[float], object], *, at_once: bool = False) -> list[str]:
        """Close all links, end the clients that do not end soon, or at once, and return the hosts of these.

        Their agents may have been stopped. `wait` waits up to some seconds for events of the loop.
        """
        slow: list[str] = []
        self.close()
        if at_once:
            self._give_up(self._children)
        for seconds in FAREWELL_SECONDS:
            end = time.monotonic() + seconds
            while any(child.running for child in self._children) and time.monotonic() < end:
                wait(end - time.monotonic())
            slow += [host for child in self._children if child.running and not child.given_up for host in child.hosts]
            self._give_up(self._children)
        if self._group is not None:
            self._group.close()
            self._group = None
        return slow
