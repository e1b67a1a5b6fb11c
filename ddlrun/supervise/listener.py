"""The socket to which the keepers of a job connect."""

import _socket  # socket itself takes 6 ms to import
import os
import resource
from collections.abc import Sequence

from ddlrun.errors import PreflightError
from ddlrun.plan.supervision import LOOPBACK

# The files that are open beside the keepers' connections: logs, mpirun's pipes, connections of strangers.
OTHER_FILES = 64
BACKLOG = 4096
# A connection without data is handed to this process after about this time at the earliest.
DEFER_SECONDS = 10


def check_files(ranks: int) -> None:
    """Raise PreflightError if this process may not open one connection per rank."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < ranks + OTHER_FILES:
        raise PreflightError(
            f"{ranks} ranks are as many connections to this machine, where only {most} files may be open "
            f"(ulimit -Hn); '* - nofile {ranks + OTHER_FILES}' in /etc/security/limits.conf"
        )


def allow_files(ranks: int) -> None:
    """Raise this process's limit of open files to one connection per rank; running children keep theirs."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < ranks + OTHER_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ranks + OTHER_FILES, most))


class Listener:
    """A port, and a token that only the job's keepers have."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Listen on a free port.

        The kernel hands over a connection when its first data has arrived. So a keeper that is slow to send the
        token is not among the strangers, and no crowd of them can displace it.

        Args:
            addresses: This machine's addresses that the keepers try.
        """
        self.token = os.urandom(16).hex()
        self._addresses = addresses
        local = tuple(addresses) == LOOPBACK
        self.socket = self._bind("127.0.0.1") if local else self._bind_all()
        self.socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_DEFER_ACCEPT, DEFER_SECONDS)
        self.socket.listen(BACKLOG)
        self.socket.setblocking(False)

    def variable(self) -> str:
        """Return the value of protocol.ADDRESSES for the keepers."""
        port = self.socket.getsockname()[1]
        return f"{self.token}@{os.uname().nodename}@" + ",".join(f"{ip}:{port}" for ip in self._addresses)

    def _bind_all(self) -> _socket.socket:
        try:
            return self._bind("::")
        except OSError:  # this machine has no IPv6
            return self._bind("0.0.0.0")  # noqa: S104 - strangers lack the token

    @staticmethod
    def _bind(address: str) -> _socket.socket:
        family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
        listener = _socket.socket(family, _socket.SOCK_STREAM)
        try:
            if family == _socket.AF_INET6:
                listener.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
            listener.bind((address, 0))
        except OSError:
            listener.close()
            raise
        return listener
