"""The connection of a rank's MPI library to the PMI server of its host, from the server's side."""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def open_link() -> tuple[_socket.socket, int]:
    """Return the server's end, and the descriptor that the program inherits; the caller closes its own copy of that."""
    own, programs = _socket.socketpair()
    own.setblocking(False)
    os.set_inheritable(programs.fileno(), True)
    return own, programs.detach()


def close_link(link: _socket.socket) -> None:
    """Close the server's end, of which keepers have copies: a rank that waits for a reply notices that."""
    link.shutdown(_socket.SHUT_RDWR)
    link.close()


def has_ended(link: _socket.socket) -> bool | None:
    """Return True if the program has closed its end, False if it has sent something, None if neither."""
    try:
        return not link.recv(1, _socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return True


def rank_variables(rank: int, fd: int, ranks: Sequence[int], size: int) -> dict[str, str]:
    """Return the variables from which an MPI library learns its place; its program inherits the descriptor."""
    return {
        "PMI_FD": str(fd),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(ranks.index(rank)),
        "MPI_LOCALNRANKS": str(len(ranks)),
    }
