"""An agent on a host: it gets the job from the node above it in the tree, and reports to that.

An agent whose connection to the node above ends, ends its ranks and closes the connections of the agents below it,
which do the same.
"""

from __future__ import annotations

import os

from ddlrun.agent import frames
from ddlrun.agent.job import AgentJob, HostRanks
from ddlrun.agent.node import LONGEST_WAIT, Node, read_grace
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.leftovers import remove_leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.agent.frames import Channel


class Agent(Node):
    """An agent, and its connection to the node that has started it."""

    def __init__(self, parent: Channel, version: str, needed: Sequence[int]) -> None:
        """Begin without a job. `needed` are descriptors that keepers leave open."""
        super().__init__(version, needed)
        self._parent = parent
        self._has_job = False
        self._descriptors.watch(parent.read_fd, self._on_parent)

    def run(self) -> None:
        """Stay until all ranks have ended."""
        while not self._over:
            self._wait(LONGEST_WAIT)
        self._dismiss()
        remove_leftovers()
        if self._parent.open:
            self._parent.send(frames.DONE)
            os.set_blocking(self._parent.write_fd, True)
            self._parent.flush()

    @property
    def _over(self) -> bool:
        # Without a job, it has not arrived or never will.
        return super()._over if self._has_job else not self._parent.open

    @property
    def _host(self) -> str:
        return "" if self._own is None else self._own.name

    def _on_parent(self) -> None:
        """React to what the node above has sent, or to the end of the connection."""
        parent = self._parent
        parent.receive()
        try:
            for kind, text in parent.messages():
                self._on_message(kind, text)
        except frames.AlteredError:
            parent.send(frames.ALTERED)
            parent.open = False
        if not parent.open:
            self._descriptors.forget(parent.read_fd)
            self._terminate(read_grace())
            self._children.close()

    def _on_message(self, kind: bytes, text: bytes) -> None:
        if kind == frames.JOB:
            self._take_job(text)
        elif kind == frames.TERMINATE:
            self._terminate(float(text))
        elif kind == frames.PMI:
            self._send_pmi_down(text)

    def _take_job(self, text: bytes) -> None:
        signal.alarm(0)
        packed, hosts = frames.unpack_words(text)
        job = AgentJob.parse(packed)
        own, *others = map(HostRanks.parse, frames.unpack_words(hosts))
        os.environ.update(job.environ)
        self._has_job = True
        self.begin(job, own, others)

    def _on_rank_end(self, rank: int, code: int) -> None:
        self._report(frames.EXITED, b"%d %d" % (rank, code))

    def _on_unfinished(self, rank: int) -> None:
        self._report(frames.UNFINISHED, b"%d" % rank)

    def _on_loss(self, text: bytes) -> None:
        self._report(frames.LOST, text)

    def _on_order(self, number: int) -> None:
        if self._own is not None:
            from signal import Signals  # noqa: PLC0415 - 4 ms, for the name of the signal alone

            self._report(frames.LOST, f"{self._own.name}\tits agent received {Signals(number).name}".encode())
            self._terminate(read_grace())

    def _send_pmi_up(self, message: bytes) -> None:
        self._report(frames.PMI, message)

    def _report(self, kind: bytes, text: bytes) -> None:
        self._descriptors.send(self._parent, kind, text)
