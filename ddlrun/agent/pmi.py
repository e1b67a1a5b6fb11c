"""The PMI-1 server of a host: MPI libraries of its ranks use it to find those of all others.

Each rank puts its address under a key, all ranks meet in a barrier, and then each gets the addresses that it needs. At
a barrier a server sends the root one message with all that its ranks have put; the root sends all servers the values
of all ranks.

A request is a line of words KEY=VALUE, separated by spaces; the first is cmd=COMMAND. MPICH, Intel MPI and MVAPICH send
them over a socket that the rank inherits.
"""

from __future__ import annotations

import _socket

from ddlrun.agent.pmi_values import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.agent.pmi_values import KeyValues, Words

CHUNK = 1 << 16
MOST_NOTES = 100
LONGEST_LINE = 1 << 16
"""The length of the longest line. Arguments of MPI_Comm_spawn may be long."""
MOST_DIGITS = 9

# The words whose value is the rest of the line.
_TEXTS = (b" value=", b" message=")
SPAWN_COUNTS = (b"totspawns", b"spawnssofar")


class WireError(Exception):
    """No MPI library would have sent these bytes; the text completes a sentence about the rank."""


class Lines:
    """The lines that arrive from one rank."""

    def __init__(self) -> None:
        self._part = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes. Raises WireError if one is too long."""
        if not self._part and data.endswith(b"\n") and len(data) <= LONGEST_LINE:
            return data[:-1].split(b"\n")
        *lines, self._part = (self._part + data).split(b"\n")
        if max(map(len, (*lines, self._part))) > LONGEST_LINE:
            raise WireError(f"sent a PMI request of more than {LONGEST_LINE} bytes")
        return lines


class Client:
    """A rank of this host: its connection."""

    def __init__(self, rank: int, connected: _socket.socket) -> None:
        self.rank, self.socket = rank, connected
        self.lines = Lines()
        self.spawns = False
        """Whether a request of several lines goes on, which only MPI_Comm_spawn sends."""
        self.spawn_counts: Words = {}
        """Of MPI_Comm_spawn_multiple: the number of requests for one reply, and that of the latest."""

    def reply(self, text: bytes) -> None:
        """Send a line.

        Raises:
            WireError: The rank does not read its replies. An MPI library waits for each of them.
            OSError: The rank has ended.
        """
        data = b"cmd=" + text + b"\n"
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            raise WireError("does not read the replies to its PMI requests")


class PmiServer:
    """The PMI-1 server of one host's ranks. No call of it blocks."""

    def __init__(
        self,
        ranks: int,
        values: KeyValues,
        *,
        on_barrier: Callable[[bytes], None],
        on_abort: Callable[[int, int], None],
        on_note: Callable[[str], None],
    ) -> None:
        """Create a server.

        Args:
            ranks: The number of ranks on this host.
            values: The values that the host knows.
            on_barrier: Takes the message for the root that belongs to a barrier.
            on_abort: Takes a call of MPI_Abort: a rank, which goes on until it is ended, and the exit code.
            on_note: Takes a text for the user.
        """
        self._ranks, self._values = ranks, values
        self._on_barrier, self._on_abort, self._on_note = on_barrier, on_abort, on_note
        self._clients: dict[int, Client] = {}
        self._waiting: list[Client] = []
        self._noted: set[str] = set()
        self._initialized: set[int] = set()
        self.in_mpi: set[int] = set()
        """The ranks that have initialized MPI and have not finalized it."""

    def add(self, rank: int, link: _socket.socket) -> None:
        """Serve a rank over a connection of `open_link`."""
        self._clients[rank] = Client(rank, link)

    def close(self, rank: int) -> None:
        """Close the connection of a rank. Keepers have copies of it: a rank that waits for a reply notices that."""
        link = self._clients.pop(rank).socket
        link.shutdown(_socket.SHUT_RDWR)
        link.close()

    def lacks(self, rank: int) -> bool:
        """Return True if others of this host wait, or will wait, for a rank that has ended."""
        return bool(self._waiting) or (bool(self.in_mpi) and rank not in self._initialized)

    def on_readable(self, rank: int) -> bool:
        """Answer what a rank has sent; return False if its connection is over, and `close` is due."""
        client = self._clients[rank]
        try:
            data = client.socket.recv(CHUNK)
            for line in client.lines.feed(data):
                self._on_line(client, line)
        except BlockingIOError:
            return True
        except WireError as error:
            self._note(f"rank {client.rank} {error}: its connection is closed")
            data = b""
        except OSError:  # the rank has ended
            data = b""
        return data != b""

    def on_message(self, message: bytes) -> None:
        """Take the root's message, which ends a barrier."""
        self._values.add(message)
        waiting, self._waiting = self._waiting, []
        for client in waiting:
            try:
                client.reply(b"barrier_out rc=0")
            except (OSError, WireError):  # the rank has ended, which the next read finds
                continue

    def _on_line(self, client: Client, line: bytes) -> None:
        if client.spawns or line.startswith(b"mcmd="):
            self._on_spawn(client, line)
            return
        reply = self._values.usual_reply(line)  # most requests, at half the time of the others
        if reply is not None:
            client.reply(reply)
            return
        words = parse_words(line)
        command = words.get(b"cmd")
        if command == b"barrier_in":
            self._enter_barrier(client)
        elif command == b"abort":
            self._on_abort(client.rank, parse_exit_code(words))
        else:
            if command == b"init":
                self.in_mpi.add(client.rank)
                self._initialized.add(client.rank)
                self._check_version(client, words)
            elif command == b"finalize":
                self.in_mpi.discard(client.rank)
            client.reply(self._values.reply(client.rank, words))

    def _enter_barrier(self, client: Client) -> None:
        if client in self._waiting:
            raise WireError("entered a barrier twice")
        self._waiting.append(client)
        if len(self._waiting) == self._ranks:
            self._on_barrier(self._values.take_put())

    def _on_spawn(self, client: Client, line: bytes) -> None:
        name, _, number = line.partition(b"=")
        if name in SPAWN_COUNTS:
            client.spawn_counts[name] = number
        client.spawns = line != b"endcmd"
        if not client.spawns and len(set(client.spawn_counts.values())) < len(SPAWN_COUNTS):
            client.spawn_counts.clear()
            self._note(f"rank {client.rank}: ddlrun's process manager does not offer MPI_Comm_spawn")
            client.reply(b"spawn_result rc=-1 msg=not_supported")

    def _check_version(self, client: Client, words: Words) -> None:
        version = words.get(b"pmi_version", b"")
        if version != VERSION:
            text = version[:8].decode(errors="replace")
            self._note(f"rank {client.rank}: its MPI library speaks PMI {text}, ddlrun's process manager PMI 1")

    def _note(self, text: str) -> None:
        """Pass on a text for the user, once, and not without end: it comes from a program."""
        if text not in self._noted and len(self._noted) < MOST_NOTES:
            self._noted.add(text)
            self._on_note(text)


def parse_words(line: bytes) -> Words:
    """Return the words of a line.

    >>> parse_words(b"cmd=put kvsname=job key=-bc-0 value=segments=2 of 3")
    {b'value': b'segments=2 of 3', b'cmd': b'put', b'kvsname': b'job', b'key': b'-bc-0'}
    """
    words = {}
    for start in _TEXTS:
        line, mark, text = line.partition(start)
        if mark:
            words[start[1:-1]] = text
    for word in line.split(b" "):
        key, mark, value = word.partition(b"=")
        if mark:
            words[key] = value
    return words


def parse_exit_code(words: Words) -> int:
    """Return the exit code of an abort as a shell would see it; 1 where it is none, or would be that of a success.

    >>> [parse_exit_code({b"exitcode": text}) for text in (b"7", b"-1", b"256", b"x")]
    [7, 255, 1, 1]
    """
    text = words.get(b"exitcode", b"")
    digits = text[1:] if text.startswith(b"-") else text
    known = digits.isdigit() and len(digits) <= MOST_DIGITS
    return (int(text) & 0xFF if known else 0) or 1
