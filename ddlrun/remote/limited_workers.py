"""Workers of ClusterShell that keep each host's reply as it is, and limit its length. Their import takes 40 ms."""

import logging

from ClusterShell.Worker.EngineClient import EngineClientEOF
from ClusterShell.Worker.Exec import ExecClient, ExecWorker
from ClusterShell.Worker.Ssh import SshClient

# A warning says that a command ended before it had read its script, which its reply explains better.
logging.getLogger("ClusterShell").setLevel(logging.ERROR)
# For output and errors together. The longest replies, those of all hardware tools, have less than 1 MiB.
MOST_BYTES = 16 << 20


class _LimitedClient(ExecClient):  # type: ignore[misc]  # ClusterShell has no types
    """A command for one host; it is killed when its reply is too long."""

    def _handle_read(self, stream: str) -> None:
        """Keep what has arrived on a stream. Raises EngineClientEOF at its end, or if the reply is too long.

        ClusterShell's own method splits it into lines, which take 100 times the memory if they are short.
        """
        reply: HostReply = self.worker.replies.setdefault(self.key, HostReply())
        (reply.err if stream == self.worker.SNAME_STDERR else reply.out).extend(self._read(stream))
        if len(reply.out) + len(reply.err) > MOST_BYTES:
            reply.too_long = True
            self.popen.kill()
            raise EngineClientEOF


class _LimitedSshClient(_LimitedClient, SshClient):  # type: ignore[misc]
    """The same by ssh."""


class HostReply:
    """What a host's command has written so far."""

    def __init__(self) -> None:
        self.out, self.err = bytearray(), bytearray()
        self.too_long = False
        """Whether the command was killed because it wrote too much."""


class LimitedExecWorker(ExecWorker):  # type: ignore[misc]
    """A command on this machine per host."""

    SHELL_CLASS = _LimitedClient

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Create the worker, as ClusterShell does."""
        self.replies: dict[str, HostReply] = {}
        super().__init__(*args, **kwargs)


class LimitedSshWorker(LimitedExecWorker):
    """A command on each host by ssh."""

    SHELL_CLASS = _LimitedSshClient
