"""An agent on a host: it gets the job from the node above it in the tree, and reports to that.

An agent whose connection to the node above ends, ends its ranks and closes the connections of the agents below it,
which do the same.
"""

from __future__ import annotations

import os

from ddlrun.agent import protocol
from ddlrun.agent.node import LONGEST_WAIT, Node, read_grace
from ddlrun.agent.protocol import AgentJob, HostRanks, LostHost, unpack_words
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.leftovers import remove_leftovers
from ddlrun.wire.frames import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.wire.connection import Connection


class Agent(Node):
    """An agent, and its connection to the node that has started it."""

    def __init__(self, parent: Connection, version: str, needed: Sequence[int]) -> None:
        """Begin without a job. `needed` are descriptors that keepers leave open."""
        super().__init__(version, needed)
        self._parent = parent
        self._has_job = False
        protocol.begin(parent, sent=protocol.FROM_AGENT, received=protocol.TO_AGENT)
        parent.join(self._loop, self._on_parent)

    def run(self) -> None:
        """Stay until all ranks have ended."""
        while not self._over:
            self._wait(LONGEST_WAIT)
        self._dismiss()
        remove_leftovers()
        self.report(protocol.DONE, b"")
        while self._parent.unsent:
            self._loop.wait()

    def report(self, kind: bytes, text: bytes) -> None:
        """Pass a message on to the node above."""
        self._parent.send(kind, text)

    @property
    def _over(self) -> bool:
        # Without a job, it has not arrived or never will.
        return super()._over if self._has_job else not self._parent.open

    def _on_parent(self) -> None:
        """React to what the node above has sent, or to the end of the connection."""
        try:
            for kind, text in self._parent.receive():
                self._on_message(kind, text)
        except FrameError:
            self.report(protocol.ALTERED, b"")
            self._leave_parent()
        except OSError:  # that node is gone
            self._leave_parent()

    def _leave_parent(self) -> None:
        """Close the connection to the node above, and end all ranks."""
        self._parent.close()
        self._terminate(read_grace())
        self._children.close()

    def _on_message(self, kind: bytes, text: bytes) -> None:
        if kind == protocol.JOB:
            self._take_job(text)
        elif kind == protocol.TERMINATE:
            self._terminate(float(text))
        else:
            self._send_pmi_down(text)

    def _take_job(self, text: bytes) -> None:
        signal.alarm(0)
        packed, hosts = unpack_words(text)
        job = AgentJob.parse(packed)
        own, *others = map(HostRanks.parse, unpack_words(hosts))
        os.environ.update(job.environ)
        self._has_job, self._host = True, own.name
        self.begin(job, own, others)

    def _on_order(self, number: int) -> None:
        if self._has_job:
            from signal import Signals  # noqa: PLC0415 - 4 ms, for the name of the signal alone

            reason = f"its agent received {Signals(number).name}"
            self.report(protocol.LOST, LostHost(name=self._host, reason=reason).pack())
            self._terminate(read_grace())
