"""A round over links: a script or a task on each of several hosts, and their replies."""

from collections.abc import Collection, Mapping

from ddlrun.agent.protocol import LostHost, ProgramEnd, ProgramOutput
from ddlrun.remote.fan_out import MOST_BYTES, read_reply, refuse
from ddlrun.remote.processes import FinishedProcess, ProgramReply


class Round:
    """A script or a task on each of several hosts, all at once.

    A host whose link was lost, or that was to be reached by way of another one, is tried again from here.
    """

    def __init__(self, texts: Mapping[str, str], module: str, without_agent: Collection[str]) -> None:
        """Begin without any reply, except for names that are not those of hosts.

        Args:
            texts: Host -> its script, or the JSON of its task.
            module: The module of the tasks; empty: these are scripts.
            without_agent: Hosts that are known not to run an agent.
        """
        self._refused = {name: reply for name in texts if (reply := refuse(name)) is not None}
        self.texts = {name: text for name, text in texts.items() if name not in self._refused}
        self.module = module
        self._replies = {name: ProgramReply() for name in self.texts}
        self._again: set[str] = set()
        """The hosts that were tried again."""
        self.without_agent = set(without_agent).intersection(self.texts)
        """The hosts that can be reached, but do not run an agent."""
        self.unreached: set[str] = set()
        """The hosts that cannot be reached."""
        self.unfinished = set(self.texts) - self.without_agent
        """The hosts whose replies are awaited."""
        self._losses: dict[str, LostHost] = {}

    def on_output(self, output: ProgramOutput) -> None:
        """Store what a host has written, up to a limit."""
        if output.host not in self.unfinished:
            return
        reply = self._replies[output.host]
        (reply.out if output.stream == 1 else reply.err).extend(output.data)
        if len(reply.out) + len(reply.err) > MOST_BYTES:
            reply.too_long = True
            self.unfinished.discard(output.host)

    def add_printed(self, host: str, data: bytes) -> None:
        """Add what a host's login has printed before."""
        self._replies[host].out[:0] = data

    def on_end(self, end: ProgramEnd) -> None:
        """Take the exit code of a host."""
        if end.host in self.unfinished:
            self._replies[end.host].code = end.code
            self.unfinished.discard(end.host)

    def on_loss(self, lost: LostHost) -> None:
        """Take the loss of hosts, about which take_again decides."""
        self._losses.update(dict.fromkeys(self.unfinished.intersection((lost.name, *lost.below)), lost))

    def take_again(self, direct: Collection[str]) -> list[str]:
        """Return the lost hosts that are to be tried again from here; finish the others.

        `direct` are the hosts whose agents were started from here. No host is tried a third time.
        """
        losses, self._losses = self._losses, {}
        first = {name: lost for name, lost in losses.items() if name not in self._again}
        again = [name for name, lost in first.items() if lost.began or name not in direct]
        for name, lost in losses.items():
            if name not in again:
                self._finish_lost(name, lost)
        self._again.update(again)
        self._replies.update((name, ProgramReply()) for name in again)
        return again

    def _finish_lost(self, name: str, lost: LostHost) -> None:
        reply = self._replies[name]
        self.unfinished.discard(name)
        reply.code, reply.err[:] = lost.code, (lost.errors or lost.reason).encode()
        (self.without_agent if lost.shell_only else self.unreached).add(name)

    def explain(self, reasons: Mapping[str, str]) -> None:
        """Replace the errors of clients such as ssh by better reasons."""
        for name, reason in reasons.items():
            self._replies[name].err[:] = reason.encode()

    def replies(self) -> dict[str, FinishedProcess]:
        """Return all replies; those of unfinished hosts have no exit code."""
        return {**self._refused, **{name: read_reply(reply) for name, reply in self._replies.items()}}
