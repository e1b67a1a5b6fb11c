"""The messages between a rank's keeper and ddlrun: a kind (one byte), a length (four), what it says."""

HEAD = 5

# From a keeper to ddlrun.
HELLO = b"h"
"""token, rank, host, local rank, process id of the program: parted by tabs."""
OUT = b"o"
ERR = b"e"
BOUND = b"b"
"""What the rank was given: see seat.Seat.report."""
ENDED = b"x"
"""How the rank's program ended: see Ended."""
WHERE = b"w"
"""Where the rank's program stands: text."""
TAKEN = b"t"
"""A signal that came from outside, a scheduler's warning, has reached this rank: its number as text."""
SAYS = b"s"
"""Something that the keeper has to tell people: text."""

# From ddlrun to a keeper.
WELCOME = b"W"
SIGNAL = b"S"
"""Pass this signal (its number as text) on to the program."""
FINISH = b"F"
"""End the program: TERM, and KILL after so many seconds (text)."""
LEAVE = b"L"
"""Nothing is left to do: exit as the program did."""
LOOK = b"Q"
"""Say where the program stands."""
SWEEP = b"C"
"""Kill whatever else carries the run's id on this host."""

# Both ways: still here.
BEAT = b"."

ADDRESSES = "DDLRUN_CHANNEL"
"""The variable with TOKEN@HOST@ADDRESS:PORT,ADDRESS:PORT...: how a keeper finds ddlrun on HOST."""


def pack(kind: bytes, text: bytes = b"") -> bytes:
    """Return one message."""
    return kind + len(text).to_bytes(4, "big") + text


class Unpacker:
    """Takes bytes as they come and gives whole messages."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return the messages that are complete now, as (kind, text)."""
        held = self._held
        held += data
        found = []
        at = 0
        while len(held) - at >= HEAD:
            end = at + HEAD + int.from_bytes(held[at + 1 : at + HEAD], "big")
            if end > len(held):
                break
            found.append((bytes(held[at : at + 1]), bytes(held[at + HEAD : end])))
            at = end
        del held[:at]
        return found


class ProgramEnd:
    """How a rank's program ended, as its keeper saw it."""

    FIELDS = ("code", "signal", "seconds", "max_rss_kib", "oom_kills", "ordered", "why")

    def __init__(self, **known: object) -> None:
        self.code = int(str(known.get("code", 0)))
        self.signal = int(str(known.get("signal", 0)))
        self.seconds = float(str(known.get("seconds", 0)))
        self.max_rss_kib = int(str(known.get("max_rss_kib", 0)))
        self.oom_kills = int(str(known.get("oom_kills", 0)))
        self.ordered = int(str(known.get("ordered", 0)))
        """Not 0: it had been told to end."""
        self.why = str(known.get("why", ""))
        """What the keeper knows of the reason."""
        tail = known.get("tail", b"")
        self.tail = tail if isinstance(tail, bytes) else b""
        """The last of what it wrote to standard error."""

    def pack(self) -> bytes:
        """Return the text of the message."""
        fields = "\t".join(" ".join(str(getattr(self, name)).split()) for name in self.FIELDS)
        return fields.encode(errors="replace") + b"\n" + self.tail

    @classmethod
    def parse(cls, text: bytes) -> "ProgramEnd":
        """Read the text of the message."""
        line, _, tail = text.partition(b"\n")
        words = line.decode(errors="replace").split("\t")
        return cls(tail=tail, **dict(zip(cls.FIELDS, words, strict=False)))
