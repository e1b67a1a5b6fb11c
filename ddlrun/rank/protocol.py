"""The messages between a rank's keeper and ddlrun: a kind (one byte), a length (four bytes) and a text."""

HEAD = 5

# From a keeper to ddlrun.
HELLO = b"h"
"""First the token alone; then rank, host, local rank and the keeper's process id, separated by tabs."""
OUT = b"o"
"""Output of the program on standard output."""
ERR = b"e"
"""Output of the program on standard error."""
BOUND = b"b"
"""The rank's binding: see binding.bind_rank."""
ENDED = b"x"
"""The end of the rank's program: see ProgramEnd."""
STATE = b"w"
"""The reply to INSPECT: text."""
SIGNALLED = b"t"
"""A signal from outside, such as a scheduler's warning, has reached this rank: its number as text."""
NOTE = b"s"
"""A text for the user."""

# From ddlrun to a keeper.
WELCOME = b"W"
"""The token is right."""
SIGNAL = b"S"
"""Pass a signal (its number as text) on to the program."""
TERMINATE = b"F"
"""End the program: SIGTERM now, SIGKILL after a grace in seconds (text)."""
LEAVE = b"L"
"""All ranks have ended: exit with the program's exit code."""
INSPECT = b"Q"
"""Report the state of the rank's processes."""
SWEEP = b"C"
"""Kill every other process of the run on this host."""

# In both directions.
HEARTBEAT = b"."
"""The sender is alive."""

ADDRESSES = "DDLRUN_CHANNEL"
"""The variable TOKEN@HOST@ADDRESS:PORT,ADDRESS:PORT...: the addresses of ddlrun, which runs on HOST."""


def pack(kind: bytes, text: bytes = b"") -> bytes:
    """Return a message as it is sent."""
    return kind + len(text).to_bytes(4, "big") + text


class Unpacker:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Add received bytes; return the messages that are now complete, as (kind, text)."""
        rest = self._rest
        rest += data
        messages = []
        at = 0
        while len(rest) - at >= HEAD:
            end = at + HEAD + int.from_bytes(rest[at + 1 : at + HEAD], "big")
            if end > len(rest):
                break
            messages.append((bytes(rest[at : at + 1]), bytes(rest[at + HEAD : end])))
            at = end
        del rest[:at]
        return messages


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
    reason: str = ""
    """The keeper's explanation, beyond the code."""
    tail: bytes = b""
    """The last of its standard error."""

    FIELDS = (
        ("code", int), ("signal", int), ("seconds", float), ("max_rss_kib", int), ("oom_kills", int),
        ("ordered", int), ("reason", str),
    )  # fmt: skip
    """The fields of the first line, in their order, and their types; the rest of the message is the tail."""

    def __init__(self, **fields: object) -> None:
        """Set the given fields; the others are 0 or empty."""
        self.__dict__.update(fields)

    def pack(self) -> bytes:
        """Return the text of the message."""
        values = (str(getattr(self, name)) for name, _ in self.FIELDS)
        line = "\t".join(" ".join(value.split()) for value in values)
        return line.encode(errors="replace") + b"\n" + self.tail

    @classmethod
    def parse(cls, text: bytes) -> "ProgramEnd":
        """Parse the text of the message."""
        line, _, tail = text.partition(b"\n")
        words = line.decode(errors="replace").split("\t")
        fields = {name: convert(word) for (name, convert), word in zip(cls.FIELDS, words, strict=False)}
        return cls(**fields, tail=tail)
