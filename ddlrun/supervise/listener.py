"""The sockets to which the keepers of a job connect."""

import _socket  # socket itself takes 6 ms to import
import os
import resource
import sys
from collections.abc import Sequence

from ddlrun.errors import PreflightError
from ddlrun.keeper.protocol import VERSION
from ddlrun.listening import bind_free_port
from ddlrun.wire.authentication import KeyExchange, Secret
from ddlrun.wording import counted

# The files that are open beside the keepers' connections in a job without unauthenticated connections, with a reserve;
# and those of a process manager beside its ranks'.
FEWEST_FILES = 48
MANAGER_FILES = 16
BACKLOG = 4096
# A connection without data is handed to this process after about this time at the earliest.
DEFER_SECONDS = 10


def check_files(ranks: int, manager_files: int = 0) -> None:
    """Raise PreflightError if this process may not open one connection per rank, or its process manager its files."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # This process raises its own soft limit.
    for needed, limit, option in ((ranks + FEWEST_FILES, most, "-Hn"), (manager_files + MANAGER_FILES, soft, "-n")):
        if limit != resource.RLIM_INFINITY and limit < needed:
            raise PreflightError(
                f"a job of {counted(ranks, 'rank')} opens up to {needed} files on this machine, which allows {limit} "
                f"(ulimit {option}); set '* - nofile {needed}' in /etc/security/limits.conf"
            )


def find_cryptography() -> str:
    """Return the folder of the package cryptography, for SupervisionOptions.encryption. Raises PreflightError."""
    try:
        KeyExchange()
    except ImportError as error:
        raise PreflightError(
            f"`--encrypt`: {sys.executable} cannot import cryptography ({error}); "
            f"{sys.executable} -m pip install cryptography"
        ) from error
    return os.path.dirname(os.path.dirname(os.path.abspath(str(sys.modules["cryptography"].__file__))))


class Listener:
    """A port on this machine's addresses, and the secret that only the job's keepers have."""

    def __init__(self, addresses: Sequence[str], encryption: str | None = None) -> None:
        """Listen on a free port: on loopback and on the addresses, or on all of this machine's if these are names.

        The kernel hands over a connection when its first data has arrived. So a keeper that is slow to send its
        greeting is not among the unauthenticated connections, and no number of these can displace it.
        """
        self.secret = Secret.draw(encrypted=encryption is not None)
        self._encryption = encryption
        self._addresses = addresses
        self.sockets = bind_free_port(addresses)
        self.port: int = self.sockets[0].getsockname()[1]
        for listening in self.sockets:
            listening.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_DEFER_ACCEPT, DEFER_SECONDS)
            listening.listen(BACKLOG)

    def variable(self) -> str:
        """Return the value of protocol.ADDRESSES for the keepers."""
        addresses = ",".join(f"{ip}:{self.port}" for ip in self._addresses)
        return f"{self.secret.text}@{os.uname().nodename}@{addresses}@{self._encryption or ''}@{VERSION}"

    def close(self) -> None:
        """Listen no more."""
        for listening in self.sockets:
            listening.close()
