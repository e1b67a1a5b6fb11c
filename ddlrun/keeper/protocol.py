"""The messages between a rank's keeper and ddlrun: their kinds, and the length of the longest text of each.

The keeper connects, and its claim is the number of its rank (four bytes). See wire/ for the rest.
"""

from ddlrun import __version__
from ddlrun.keeper import record
from ddlrun.wire.frames import FrameError

REVISION = 17
"""The number of the format of all messages between ddlrun, agents and keepers, and of the variables for keepers."""
VERSION = f"{__version__}/{REVISION}"
"""The version of ddlrun with that number, which both ends of a connection must have."""

CLAIM_BYTES = 4
PART = 512
"""This many bytes at once are a sign of life before their message is complete; fewer may be heartbeats that fill it."""
LONGEST_NUMBER = 20
# 128 + SIGINT, SIGKILL, SIGTERM: the exit codes of programs that a keeper ended.
ORDERED_CODES = (130, 137, 143)

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
"""The end of the rank's program: see RankEnd."""
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
"""The resources that the rank's processes have used since the last report: see usage/rank.py."""
HOST_USAGE = b"v"
"""The use of the host, from the keeper of local rank 0: see usage/host.py and usage/gpus.py."""
NCCL_LOG = b"n"
"""Lines of NCCL on the networks of the host, from the keeper of local rank 0: see nccl_log.py."""
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
HANDED_OVER = b"H"
"""Everything before HANDOVER has been read."""
OVER = b"O"
"""The job is over: the process manager's daemon has to end."""

# In both directions.
HEARTBEAT = b"."
"""The sender is alive."""

NUMBER, LINE, REPORT, LONG = 32, 1 << 12, 1 << 18, 1 << 20
FROM_KEEPER = {
    HELLO: LINE, OUT: LONG, ERR: LONG, BOUND: REPORT, ENDED: REPORT, SNAPSHOT: LONG, SIGNALLED: NUMBER, LOST: LINE,
    ALTERED: LINE, NOTE: REPORT, INPUT_WANTED: 0, SESSION_FOLDER: LINE, USAGE: REPORT, HOST_USAGE: REPORT,
    NCCL_LOG: LONG, HANDOVER: 0, HEARTBEAT: 0,
}  # fmt: skip
"""Kind -> the bytes of the longest text, from a keeper to ddlrun."""
TO_KEEPER = {
    SIGNAL: NUMBER, TERMINATE: NUMBER, INPUT: LONG, RESIZE: NUMBER, LEAVE: 0, TAKE_SNAPSHOT: 0, MEASURE: NUMBER,
    HANDED_OVER: 0, OVER: 0, HEARTBEAT: 0,
}  # fmt: skip
"""The same, from ddlrun to a keeper."""

ADDRESSES = "DDLRUN_CHANNEL"
"""The variable SECRET@HOST@ADDRESS:PORT,ADDRESS:PORT...@FOLDER@VERSION: the addresses of ddlrun, which runs on HOST.

FOLDER contains the package cryptography; it is empty if messages are not encrypted.
"""
AGENT_RUN = "DDLRUN_AGENT_RUN"
"""The variable of agents, and of keepers that are their forks: the run for which the agents were started first."""


class ProtocolError(FrameError):
    """A message that its sender would not have sent; the text completes a sentence."""


def pack_claim(rank: int) -> bytes:
    """Return the claim of a rank's keeper."""
    return rank.to_bytes(CLAIM_BYTES, "big", signed=True)


def parse_claim(claim: bytes) -> int:
    """Return the rank of a claim."""
    return int.from_bytes(claim, "big", signed=True)


def parse_number(word: str, most: int) -> int:
    """Parse a number from 0 to `most`. Raises ProtocolError."""
    if not (word.isascii() and word.isdecimal() and len(word) <= LONGEST_NUMBER and int(word) <= most):
        raise ProtocolError(f"{word[:LONGEST_NUMBER]!r} is not a number from 0 to {most}")
    return int(word)


@record
class RankEnd:
    """How the program of one rank ended."""

    rank: int = -1
    host: str = ""
    local_rank: int = -1
    exit_code: int = 0
    """128 + the signal, where a signal ended it."""
    signal: "int | None" = None
    seconds: float = 0.0
    """Time from its start to its end."""
    max_rss_kib: int = 0
    ordered: bool = False
    """Whether ddlrun had ordered it to end."""
    reason: str = ""
    """The reason as far as the keeper knows it; empty: only the exit code is known."""
    tail: str = ""
    """The last lines that it wrote to standard error, or to standard output; empty for exit code 0."""
    wrote_to: str = "standard error"
    """Where the last lines are from: standard output if only that has a traceback."""
    output_tail: str = ""
    """The last lines that it wrote to standard output."""
    taken_port: int = 0
    """A planned port of a failed program that another process has; 0: there is none."""

    REPORTED = ("exit_code", "signal", "seconds", "max_rss_kib", "ordered", "taken_port", "reason")
    """The fields of the first line of a keeper's report, after the length of `tail`; the tails follow it."""
    UNRECORDED = ("output_tail", "taken_port")
    """The fields that outcome.json does not have."""

    @property
    def started(self) -> bool:
        """Whether the program was started: with --strict-binding it may not be. A process has used memory."""
        return self.max_rss_kib > 0

    @property
    def ended_by_order(self) -> bool:
        """Whether ddlrun's order ended it. It may have failed by itself before the order took effect."""
        return self.ordered and self.exit_code in ORDERED_CODES

    def replace(self, **fields: object) -> "RankEnd":
        """Return the end with other fields."""
        return RankEnd(**{**vars(self), **fields})

    def as_dict(self) -> "dict[str, object]":
        """Return the end as outcome.json has it."""
        return {name: getattr(self, name) for name in self.__annotations__ if name not in self.UNRECORDED}

    def pack(self) -> bytes:
        """Return the text of the message."""
        tails = self.tail.encode(), self.output_tail.encode()
        *numbers, reason = (getattr(self, name) for name in self.REPORTED)
        words = (len(tails[0]), *(number or 0 for number in numbers), " ".join(reason.split()))
        return "\t".join(map(str, words)).encode(errors="replace") + b"\n" + b"".join(tails)

    @classmethod
    def parse(cls, text: bytes) -> "RankEnd":
        """Parse the text of the message. Raises ProtocolError."""
        line, _, tails = text.partition(b"\n")
        try:
            size, code, signal, seconds, memory, ordered, port, reason = line.decode(errors="replace").split("\t")
            end = cls(
                exit_code=parse_number(code, 255), signal=parse_number(signal, 127) or None, seconds=float(seconds),
                max_rss_kib=int(memory), ordered=ordered == "True", taken_port=parse_number(port, 65535), reason=reason,
                tail=tails[: int(size)].decode(errors="replace"),
                output_tail=tails[parse_number(size, len(tails)) :].decode(errors="replace"),
            )  # fmt: skip
        except ValueError as error:
            raise ProtocolError("its report of the end cannot be read") from error
        if not 0 <= end.seconds < float("inf"):
            raise ProtocolError("its report of the end has impossible numbers")
        return end
