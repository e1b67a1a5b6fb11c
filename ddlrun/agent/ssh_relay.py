"""A program in place of an ssh client: ddlrun runs its command on the host over the link that it has already.

It sends its arguments to the ddlrun that the variable names, and ends with the exit code of the command. What the
command prints goes to ddlrun. Where there is no such ddlrun, as under an mpirun that a rank starts, it becomes ssh.
"""

from __future__ import annotations

import _socket
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VARIABLE = "DDLRUN_RELAY"
"""The variable with the name of ddlrun's abstract Unix socket."""
EXIT_LOST = 255
"""The exit code where the link to the host has ended, as that of ssh."""
CODE_BYTES = 16


def main(argv: Sequence[str]) -> int:
    """Run a command on a host; return its exit code."""
    name = os.environ.get(VARIABLE, "")
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        link.connect(f"\0{name}")
    except OSError:
        os.execvp("ssh", ["ssh", *argv])  # noqa: S606, S607 - as the process manager would do
    link.sendall(pack_arguments(argv))
    code = b""
    while data := link.recv(CODE_BYTES):
        code += data
    return int(code or EXIT_LOST)


def pack_arguments(argv: Iterable[str]) -> bytes:
    """Return arguments as the text of a request: its length, and the arguments, each with a null character."""
    text = b"".join(os.fsencode(word) + b"\0" for word in argv)
    return b"%d\n" % len(text) + text


def parse_arguments(received: bytes) -> list[str] | None:
    r"""Parse the text of a request; None if it is not complete. Raises ValueError where it is none.

    >>> parse_arguments(pack_arguments(["h1", "a b"])), parse_arguments(b"4\nh1\0")
    (['h1', 'a b'], None)
    """
    length, newline, text = received.partition(b"\n")
    if not newline or len(text) < int(length):
        return None
    return [os.fsdecode(word) for word in text.split(b"\0")[:-1]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
