"""The agents below an agent: those that it has started, and those that wait for their start."""

from __future__ import annotations

from ddlrun.agent import frames
from ddlrun.agent.messages import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ddlrun.agent.child import Child
    from ddlrun.agent.client_group import ClientGroup
    from ddlrun.agent.descriptors import Descriptors
    from ddlrun.agent.job import AgentJob, HostRanks

# The number of agents that are being started at the same time.
MOST_STARTING = 64


class Children:
    """The agents below an agent."""

    def __init__(
        self,
        descriptors: Descriptors,
        version: str,
        on_report: Callable[[bytes, bytes], None],
        on_loss: Callable[[Child], None],
    ) -> None:
        """Begin without any.

        Args:
            descriptors: The descriptors that the agent waits for.
            version: The version of ddlrun.
            on_report: Takes a message of an agent, its kind and its text.
            on_loss: Takes an agent that is gone before its ranks have ended.
        """
        self._descriptors, self._version = descriptors, version
        self._on_report, self._on_loss = on_report, on_loss
        self._children: list[Child] = []
        self._job: AgentJob | None = None
        self._group: ClientGroup | None = None
        self._waiting: list[list[HostRanks]] = []
        """The parts of the hosts whose agents are not started yet, the first one last."""

    @property
    def over(self) -> bool:
        """Whether nothing more is expected from any of them."""
        return not self._waiting and all(child.over for child in self._children)

    @property
    def running(self) -> bool:
        """Whether a program that leads to another host has not ended."""
        return any(child.status is None for child in self._children)

    def start(self, job: AgentJob, parts: Iterable[Sequence[HostRanks]]) -> None:
        """Start an agent for each part of the hosts, some of them when others are ready."""
        self._job = job
        self._waiting = [list(part) for part in parts][::-1]
        self._start_waiting(job)

    def reap(self, pid: int, status: int) -> None:
        """Take the end of a program that leads to another host."""
        for child in self._children:
            if child.pid == pid:
                child.status = status
                self._check_loss(child)

    def terminate(self, grace: float) -> None:
        """Let all agents end their ranks within a grace."""
        self._waiting.clear()
        for child in self._children:
            if child.ready:
                self._descriptors.send(child.channel, frames.TERMINATE, str(grace).encode())
            else:
                child.give_up()

    def send_pmi(self, message: bytes) -> None:
        """Send a message to the PMI servers of all hosts."""
        for child in self._children:
            if child.ready:
                self._descriptors.send(child.channel, frames.PMI, message)

    def resume(self, now: float) -> None:
        """Continue the programs that lead to other hosts and stay stopped: ranks in MPI wait for their messages."""
        for child in self._children:
            if child.resume(now):
                complain(f"{child.via} to {child.name} was stopped while the job ran, and was continued")

    def close(self) -> None:
        """Close all connections: the agents end."""
        for child in self._children:
            child.close()

    def give_up(self) -> None:
        """Kill all programs that lead to other hosts, and expect nothing more."""
        for child in self._children:
            child.give_up()

    def kill(self) -> None:
        """Kill all programs that lead to other hosts."""
        for child in self._children:
            child.kill()

    def _start_waiting(self, job: AgentJob) -> None:
        """Start as many of the agents that wait for it as may be started now."""
        if not self._waiting:
            return
        from ddlrun.agent.child import Child  # noqa: PLC0415 - most agents have none below them
        from ddlrun.agent.client_group import ClientGroup  # noqa: PLC0415 - the same

        while self._waiting:
            if sum(not (child.ready or child.over) for child in self._children) >= MOST_STARTING:
                return
            self._group = self._group or ClientGroup()
            child = Child(job, self._waiting.pop(), version=self._version, group=self._group)
            self._children.append(child)
            self._watch(child)

    def _watch(self, child: Child) -> None:
        self._descriptors.watch(child.channel.read_fd, lambda: self._on_child(child))
        self._descriptors.watch_writes(child.channel)

    def _on_child(self, child: Child) -> None:
        channel, ready = child.channel, child.ready
        for kind, text in child.receive():
            if kind == frames.DONE:
                child.done = True
            elif kind == frames.ALTERED:
                self._drop(child)
            else:
                self._on_report(kind, text)
        if child.channel is not channel:  # the agent is started again
            self._descriptors.close(channel)
            self._watch(child)
        self._descriptors.watch_writes(child.channel)
        if not child.channel.open:
            self._descriptors.close(child.channel)
            self._check_loss(child)
        if child.ready and not ready and self._job is not None:
            self._start_waiting(self._job)

    def _drop(self, child: Child) -> None:
        """Drop an agent because a message was altered. After its last message, its launcher may print anything."""
        if not child.done:
            child.altered = child.done = True
            self._on_loss(child)
            child.give_up()

    def _check_loss(self, child: Child) -> None:
        if child.gone and not child.done:
            self._on_loss(child)
