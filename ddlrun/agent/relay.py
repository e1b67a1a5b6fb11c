"""The job of a root on the links of ddlrun: its messages to the agents, and theirs to it."""

from __future__ import annotations

import os

from ddlrun.agent import protocol
from ddlrun.agent.protocol import AgentJob, HostRanks, unpack_words
from ddlrun.wire.frames import FrameError
from ddlrun.wire.pipes import PipeConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.agent.children import Children
    from ddlrun.wire.loop import Loop


class JobRelay:
    """The node between a root and the agents, in the process of ddlrun, whose links outlast the root.

    The job of one attempt: whoever makes it calls `report` with the agents' messages, starts the root, and waits until
    `Children.over` before the next attempt.
    """

    def __init__(self, loop: Loop, children: Children) -> None:
        """Make the pipes of the root."""
        self._children = children
        self._grace = 0.0
        (root_reads, write), (read, root_writes) = os.pipe(), os.pipe()
        self.descriptors = (root_reads, root_writes)
        """Those that the root inherits."""
        self._root = PipeConnection(read, write)
        protocol.begin(self._root, sent=protocol.FROM_AGENT, received=protocol.TO_AGENT)
        self._root.join(loop, self._on_root)

    @property
    def option(self) -> str:
        """The option of the root by which it finds its descriptors."""
        return "--link={}:{}".format(*self.descriptors)

    def started(self) -> None:
        """Close the root's ends here, once it was started."""
        for fd in self.descriptors:
            os.close(fd)

    def report(self, kind: bytes, text: bytes) -> None:
        """Pass a message of the agents on to the root."""
        self._root.send(kind, text)

    def close(self) -> None:
        """End the job. A second call does nothing."""
        self._root.close()
        self._children.terminate(self._grace)

    def _on_root(self) -> None:
        """Pass the root's messages on; its end is that of the job."""
        try:
            for kind, text in self._root.receive():
                if kind == protocol.JOB:
                    job, hosts = unpack_words(text)
                    self._grace = float(AgentJob.parse(job).environ.get("DDLRUN_GRACE", "10"))
                    self._children.begin(job, map(HostRanks.parse, unpack_words(hosts)))
                elif kind == protocol.TERMINATE:
                    self._children.terminate(float(text))
                elif kind == protocol.PMI:
                    self._children.send(kind, text)
        except (FrameError, OSError):
            self.close()
