"""The agents below an agent: those that it has started, and those that wait for their start."""

from __future__ import annotations

from ddlrun.agent import protocol
from ddlrun.keeper.forks import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.agent.child import Child, ClientGroup
    from ddlrun.agent.protocol import AgentJob, HostRanks
    from ddlrun.wire.loop import Loop

# The number of agents that are being started at the same time.
MOST_STARTING = 64


class Children:
    """The agents below an agent."""

    def __init__(self, loop: Loop, report: Callable[[bytes, bytes], None], version: str) -> None:
        """Begin without any. `report` takes their messages to the root; `version` is that of ddlrun."""
        self._loop, self._report, self._version = loop, report, version
        self._children: list[Child] = []
        self._waiting: list[list[HostRanks]] = []
        """The parts of the hosts whose agents are not started yet, the first one last."""
        self._group: ClientGroup | None = None
        self._ending = False

    @property
    def over(self) -> bool:
        """Whether nothing more is expected from any of them."""
        return not self._waiting and all(child.over for child in self._children)

    @property
    def running(self) -> bool:
        """Whether a program that leads to another host has not ended."""
        return any(child.status is None for child in self._children)

    def start(self, job: AgentJob, hosts: Sequence[HostRanks], own: str) -> None:
        """Start the agents of hosts, some of them when others are ready.

        Args:
            job: The job.
            hosts: The hosts.
            own: The name of this host; empty: ddlrun's own.
        """
        self._job, self._own = job, own
        self._waiting = divide(hosts, job.fan_out)[::-1]
        self._start_waiting()

    def reap(self, pid: int, status: int) -> None:
        """Take the end of a program that leads to another host."""
        for child in self._children:
            if child.pid == pid:
                child.status = status
                self._check_loss(child)

    def terminate(self, grace: float) -> None:
        """Let all agents end their ranks within a grace."""
        self._ending = True
        self._waiting.clear()
        for child in self._children:
            if not child.ready:
                child.give_up()
        self.send(protocol.TERMINATE, str(grace).encode())

    def send(self, kind: bytes, text: bytes) -> None:
        """Send a message to all agents that run."""
        for child in self._children:
            if child.ready:
                child.connection.send(kind, text)

    def resume(self, now: float) -> None:
        """Continue the programs that lead to other hosts and stay stopped: ranks in MPI wait for their messages."""
        for child in self._children:
            if child.resume(now):
                complain(f"{child.via} to {child.name} was stopped while the job ran, and was continued")

    def close(self) -> None:
        """Close all connections: the agents end their ranks, and themselves."""
        for child in self._children:
            child.connection.finish_sending()

    def give_up(self) -> None:
        """Kill all programs that lead to other hosts, and expect nothing more."""
        for child in self._children:
            child.give_up()

    def _start_waiting(self) -> None:
        """Start as many of the agents that wait for it as may be started now."""
        if not self._waiting:
            return
        from ddlrun.agent.child import Child, ClientGroup  # noqa: PLC0415 - most agents have none below them

        self._group = self._group or ClientGroup()
        starting = sum(not (child.ready or child.over) for child in self._children)
        while self._waiting and starting < MOST_STARTING:
            child = Child(self._job, self._waiting.pop(), version=self._version, group=self._group)
            self._children.append(child)
            self._watch(child)
            starting += 1

    def _watch(self, child: Child) -> None:
        child.connection.join(self._loop, lambda: self._on_child(child))

    def _on_child(self, child: Child) -> None:
        connection, ready = child.connection, child.ready
        for kind, text in child.receive():
            if kind == protocol.DONE:
                child.done = True
            elif kind == protocol.ALTERED:
                self._drop(child)
            else:
                self._report(kind, text)
        if child.connection is not connection:  # the agent is started again
            self._watch(child)
        if not child.connection.open:
            self._check_loss(child)
        if child.ready and not ready:
            self._start_waiting()

    def _drop(self, child: Child) -> None:
        """Drop an agent because a message was altered. After its last message, its launcher may print anything."""
        if not child.done:
            child.altered = child.done = True
            self._report_loss(child)
            child.give_up()

    def _check_loss(self, child: Child) -> None:
        if child.gone and not child.done:
            self._report_loss(child)

    def _report_loss(self, child: Child) -> None:
        if not self._ending:
            lost = protocol.LostHost(name=child.name, reason=child.describe_loss(self._own))
            self._report(protocol.LOST, lost.pack())


def divide(hosts: Sequence[HostRanks], fan_out: int) -> list[list[HostRanks]]:
    """Divide hosts among the agents that an agent starts itself; the first of each part starts the others of it.

    >>> [len(part) for part in divide([*"0123456789"], 4)]
    [3, 3, 2, 2]
    """
    count = min(len(hosts), fan_out)
    least, more = divmod(len(hosts), count) if count else (0, 0)
    parts, at = [], 0
    for number in range(count):
        end = at + least + (1 if number < more else 0)
        parts.append(list(hosts[at:end]))
        at = end
    return parts
