"""The messages between a rank's keeper and ddlrun: a kind (one byte), a length (four bytes) and a text.

See authentication.py for the codes in each of them.
"""

from ddlrun import __version__

REVISION = 7
"""The number of the format of all messages between ddlrun, agents and keepers, and of the variables for keepers."""
VERSION = f"{__version__}/{REVISION}"
"""The version of ddlrun with that number, which both ends of a connection must have."""

HEAD = 5
MOST_TEXT = 1 << 20
"""The length of the longest text."""
PART = 512
"""This many bytes at once are a sign of life before their message is complete; fewer may be heartbeats that fill it."""
LONGEST_NUMBER = 20

# The first message of each side, which have no code.
GREETING = b"g"
"""From a keeper: see authentication.py."""
WELCOME = b"W"
"""From ddlrun: see authentication.py."""

# From a keeper to ddlrun.
HELLO = b"h"
"""The rank, host, local rank and the keeper's process id, separated by tabs."""
OUT = b"o"
"""Output of the program on standard output."""
ERR = b"e"
"""Output of the program on standard error."""
OUTPUT = (OUT, ERR)
BOUND = b"b"
"""The rank's binding: see binding.bind_rank."""
BOUND_WORDS = 6
ENDED = b"x"
"""The end of the rank's program: see ProgramEnd."""
SNAPSHOT = b"w"
"""The reply to TAKE_SNAPSHOT: JSON (see stacks/snapshot.py)."""
SIGNALLED = b"t"
"""A signal from outside, such as a scheduler's warning, has reached this rank: its number as text."""
LOST = b"l"
"""The keeper closes the connection and ends its program: the reason."""
ALTERED = b"a"
"""The same, as a message from ddlrun was altered on the way: what is wrong with it."""
NOTE = b"s"
"""A text for the user."""
INPUT_WANTED = b"i"
"""The program has taken all of its standard input so far."""
SESSION_FOLDER = b"f"
"""The session folder of the process manager's daemon on the host, from the keeper of local rank 0."""
USAGE = b"u"
"""The resources that the rank's processes have used since the last report: see usage.py."""
HOST_USAGE = b"v"
"""The use of the host, from the keeper of local rank 0: see host_usage.py."""
HANDOVER = b"d"
"""The keeper has sent everything, and leaves. The process that watches the daemon takes over the connection."""

# From ddlrun to a keeper.
SIGNAL = b"S"
"""Pass a signal (its number as text) on to the program."""
TERMINATE = b"F"
"""End the program: SIGTERM now, SIGKILL after a grace in seconds (text)."""
INPUT = b"I"
"""Standard input of the program, sent after INPUT_WANTED; empty: its end."""
RESIZE = b"Z"
"""The size of the user's terminal: rows and columns, separated by a space."""
LEAVE = b"L"
"""All ranks have ended: exit with the program's exit code."""
TAKE_SNAPSHOT = b"Q"
"""Report the rank's processes, with their stacks."""
MEASURE = b"M"
"""Report the use of resources at an interval in seconds (text)."""
SWEEP = b"C"
"""Kill every other process of the run on this host."""
HANDED_OVER = b"H"
"""Everything before HANDOVER has been read."""
OVER = b"O"
"""The job is over: the process manager's daemon has to end."""

# In both directions.
HEARTBEAT = b"."
"""The sender is alive."""

ADDRESSES = "DDLRUN_CHANNEL"
"""The variable SECRET@HOST@ADDRESS:PORT,ADDRESS:PORT...@FOLDER@VERSION: the addresses of ddlrun, which runs on HOST.

FOLDER contains the package cryptography; it is empty if messages are not encrypted.
"""


class ProtocolError(Exception):
    """A message that its sender would not have sent; the text completes a sentence."""


def pack_head(kind: bytes, text: bytes) -> bytes:
    """Return the head of a message."""
    return kind + len(text).to_bytes(4, "big")


def pack(kind: bytes, text: bytes) -> bytes:
    """Return a message without a code, as the first ones of a connection are sent."""
    return pack_head(kind, text) + text


def length_of(head: bytes) -> int:
    """Return the length of a message's text from its head. Raises ProtocolError if it is too long."""
    length = int.from_bytes(head[1:], "big")
    if length > MOST_TEXT:
        raise ProtocolError(f"a message has {length} bytes, at most {MOST_TEXT} are allowed")
    return length


def parse_number(word: str, most: int) -> int:
    """Parse a number from 0 to `most`. Raises ProtocolError."""
    if not (word.isascii() and word.isdecimal() and len(word) <= LONGEST_NUMBER and int(word) <= most):
        raise ProtocolError(f"{word[:LONGEST_NUMBER]!r} is not a number from 0 to {most}")
    return int(word)


class ProgramEnd:
    """The end of a rank's program, as its keeper saw it."""

    code: int = 0
    """The exit code, or 128 + the signal."""
    signal: int = 0
    """The signal that ended the program; 0 if none did."""
    seconds: float = 0.0
    max_rss_kib: int = 0
    oom_kills: int = 0
    ordered: int = 0
    """1 if the keeper had sent it SIGTERM."""
    taken_port: int = 0
    """A planned port of a failed program that another process has; 0: there is none."""
    reason: str = ""
    """The keeper's explanation, beyond the code."""
    tail: bytes = b""
    """The last of its standard error."""
    output_tail: bytes = b""
    """The last of its standard output."""

    FIELDS = (
        ("code", int), ("signal", int), ("seconds", float), ("max_rss_kib", int), ("oom_kills", int),
        ("ordered", int), ("taken_port", int), ("tail_bytes", int), ("reason", str),
    )  # fmt: skip
    """The fields of the first line, in their order, and their types; the rest of the message is the tails."""

    def __init__(self, **fields: object) -> None:
        """Set the given fields; the others are 0 or empty."""
        self.__dict__.update(fields)

    @property
    def tail_bytes(self) -> int:
        """The number of bytes of the tail of standard error."""
        return len(self.tail)

    def pack(self) -> bytes:
        """Return the text of the message."""
        values = (str(getattr(self, name)) for name, _ in self.FIELDS)
        line = "\t".join(" ".join(value.split()) for value in values)
        return line.encode(errors="replace") + b"\n" + self.tail + self.output_tail

    @classmethod
    def parse(cls, text: bytes) -> "ProgramEnd":
        """Parse the text of the message. Raises ProtocolError."""
        line, _, tails = text.partition(b"\n")
        words = line.decode(errors="replace").split("\t")
        try:
            fields = {name: convert(word) for (name, convert), word in zip(cls.FIELDS, words, strict=True)}
        except ValueError as error:
            raise ProtocolError("its report of the end cannot be read") from error
        size = int(fields.pop("tail_bytes"))
        end = cls(**fields, tail=tails[:size], output_tail=tails[size:])
        has_tail = 0 <= size <= len(tails)
        numbers = 0 <= end.code < 256 and 0 <= end.signal < 128 and 0 <= end.taken_port < 1 << 16
        if not (has_tail and numbers and 0 <= end.seconds < float("inf")):
            raise ProtocolError("its report of the end has impossible numbers")
        return end
