"""The messages between ddlrun and agents, over pipes that lead through ssh or the like.

They are frames with checksums (see wire/frames.py): ssh detects altered data; other launchers may not. A text of
several words is packed with their lengths.
"""

from __future__ import annotations

from ddlrun.keeper import record
from ddlrun.wire.frames import Agreement, Checksums

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeVar

    from ddlrun.wire.connection import Connection

    T = TypeVar("T", bound="AgentMessage")

TREE = b"B"
"""To an agent that has greeted: an AgentTree, and the names of the hosts of its part, its own first."""
JOB = b"J"
"""An AgentJob, and the HostRanks of the agent's part that have ranks. The next one may follow DONE."""
TERMINATE = b"T"
"""End the ranks: SIGTERM now, SIGKILL after a grace in seconds."""
EXIT = b"Q"
"""To the agent of ddlrun's own host: exit with this code, and leave the ranks."""
PMI = b"P"
"""From an agent: the number of a host and the message of its PMI server to ddlrun. To an agent: ddlrun's message to the
PMI servers of all hosts."""
RUN = b"R"
"""A ProgramRequest. From each of its hosts comes a ProgramEnd, unless the host is lost."""
STOP = b"S"
"""The number of a program: SIGTERM to it on all its hosts, SIGKILL after some seconds."""
KEEP = b"K"
"""The link is still needed: an agent without work ends after some time without any message."""
EXITED = b"X"
"""An ExitedRank."""
UNFINISHED = b"U"
"""A rank that has ended with 0 after MPI_Init, but without MPI_Finalize."""
LOST = b"L"
"""A LostHost."""
DONE = b"D"
"""All ranks of the agent and of those below it have ended."""
OUTPUT = b"O"
"""A ProgramOutput."""
ENDED = b"E"
"""A ProgramEnd."""
LOGIN = 0
"""The number of the program of which a ProgramOutput has what a login has printed before the agent ran."""
ALTERED = b"A"
"""A message to the agent was altered on the way; the agent ends its ranks."""

# The word on the command line of the agent of ddlrun's own host. Those after it show what it will start.
HERE = "--here"
# An agent ends after this time without any message, unless the job has a heartbeat.
IDLE_SECONDS = 120.0
# The exit code of ssh where its connection broke, or a signal has ended what it ran.
EXIT_LOST = 255
# The longest text of each kind. All hosts and variables are in one job, and the addresses of all ranks in a message.
NUMBERS, LINE, EVERYTHING = 64, 1 << 16, 1 << 30
TO_AGENT = {
    TREE: EVERYTHING, JOB: EVERYTHING, TERMINATE: NUMBERS, EXIT: NUMBERS, PMI: EVERYTHING, RUN: EVERYTHING,
    STOP: NUMBERS, KEEP: 0,
}  # fmt: skip
FROM_AGENT = {
    EXITED: NUMBERS, UNFINISHED: NUMBERS, LOST: EVERYTHING, PMI: EVERYTHING, DONE: 0, ALTERED: 0, OUTPUT: EVERYTHING,
    ENDED: LINE,
}  # fmt: skip


def begin(connection: Connection, *, sent: Mapping[bytes, int], received: Mapping[bytes, int]) -> None:
    """Send and receive messages from now on, given the kinds in each direction."""
    connection.begin(Agreement(b"", Checksums(), Checksums()), sent=sent, received=received)


def pack_words(words: Iterable[bytes]) -> bytes:
    """Return words as one text."""
    return b"".join(len(word).to_bytes(4, "big") + word for word in words)


def unpack_words(text: bytes) -> list[bytes]:
    """Return the words of a text.

    >>> unpack_words(pack_words([b"a", b"", b"bc"]))
    [b'a', b'', b'bc']
    """
    words, at = [], 0
    while at < len(text):
        end = at + 4 + int.from_bytes(text[at : at + 4], "big")
        words.append(text[at + 4 : end])
        at = end
    return words


def _pack_texts(texts: Iterable[str]) -> bytes:
    return pack_words(map(_encode, texts))


def _unpack_texts(packed: bytes) -> list[str]:
    return list(map(_decode, unpack_words(packed)))


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _decode(word: bytes) -> str:
    return word.decode(errors="surrogateescape")


def _pair_texts(packed: bytes) -> dict[str, str]:
    texts = iter(_unpack_texts(packed))
    return dict(zip(texts, texts))  # noqa: B905 - Python 3.8 has no `strict`


# The type of a field -> the functions to a word, and from it.
CODECS: Mapping[str, tuple[Callable[[Any], bytes], Callable[[bytes], object]]] = {
    "bytes": (bytes, bytes),
    "str": (_encode, _decode),
    "int": (b"%d".__mod__, int),
    "int | None": (lambda number: b"" if number is None else b"%d" % number, lambda word: int(word) if word else None),
    "bool": (b"%d".__mod__, b"1".__eq__),
    "float": (lambda number: repr(number).encode(), float),
    "Sequence[str]": (_pack_texts, _unpack_texts),
    "Sequence[int]": (lambda numbers: b" ".join(map(b"%d".__mod__, numbers)), lambda word: [*map(int, word.split())]),
    "Mapping[str, str]": (lambda texts: _pack_texts(word for pair in texts.items() for word in pair), _pair_texts),
}


class AgentMessage:
    """A record, and the text of a message that has a word per field."""

    def pack(self) -> bytes:
        """Return it as one text."""
        return pack_words(CODECS[kind][0](getattr(self, name)) for name, kind in self.__annotations__.items())

    @classmethod
    def parse(cls: type[T], text: bytes) -> T:  # noqa: PYI019 - Self is newer
        """Parse the text of one. Raises ValueError.

        >>> ProgramEnd.parse(ProgramEnd(host="h1", number=3, code=None).pack())
        ProgramEnd(host='h1', number=3, code=None)
        """
        words, kinds = unpack_words(text), cls.__annotations__
        if len(words) != len(kinds):
            raise ValueError(text[:NUMBERS])
        return cls(**{name: CODECS[kinds[name]][1](word) for name, word in zip(kinds, words)})  # noqa: B905 - as above


@record
class ExitedRank(AgentMessage):
    """The end of a rank."""

    rank: int
    code: int
    """The exit code of its keeper, or minus the signal that killed it."""


@record
class LostHost(AgentMessage):
    """A host whose agent is gone."""

    name: str
    reason: str
    began: bool = True
    """Whether the agent had started, or the way to its host broke before."""
    code: int = 0
    """The exit code of the client (ssh or similar), as a shell has it."""
    errors: str = ""
    """The last that the client wrote to standard error before the agent ran."""
    below: Sequence[str] = ()
    """The hosts that were reached through this one."""
    shell_only: bool = False
    """Whether a shell runs there, but no agent."""


@record
class HostRanks(AgentMessage):
    """A host of the job, and its ranks in the order of their local ranks."""

    number: int
    name: str
    ranks: Sequence[int]


@record
class AgentTree(AgentMessage):
    """What all agents need to start those below them, which pass it on unchanged."""

    launcher: Sequence[str]
    """The command line that starts a program on a host; the word @host stands for the host's name."""
    python: str
    """The Python that runs agents, where hosts have it."""
    script: str
    """The script of agents, where hosts have it."""
    fan_out: int
    """The number of agents that an agent starts itself; these start the others."""
    run: str
    """The run for which the agents are started first; empty: none."""
    idle: float = IDLE_SECONDS
    """The seconds without a message after which an agent ends that has no work."""


@record
class AgentJob(AgentMessage):
    """What the ranks of all hosts have in common; all agents pass it on unchanged."""

    program: Sequence[str]
    """The command line of the program."""
    folder: str
    """The working folder."""
    name: str
    """A name that all agents of this attempt, and no others, have."""
    size: int
    """The number of ranks."""
    environ: Mapping[str, str]
    """The variables that are set on all hosts."""


@record
class ProgramRequest(AgentMessage):
    """A script for the shell of some hosts, or a task (see tasks.py)."""

    number: int
    """The number by which it is stopped, and by which its output is known."""
    seconds: float
    """The time after which it is ended; 0: none."""
    hosts: Sequence[str]
    """The names of the hosts."""
    script: bytes
    """The shell's standard input, or the JSON of the task."""
    module: str = ""
    """The module of the task; empty: there is none."""
    linger: float = 0
    """The time that it has once the link has ended."""


@record
class ProgramOutput(AgentMessage):
    """What a program on a host has written."""

    host: str
    number: int
    stream: int
    """1: standard output; 2: standard error."""
    data: bytes


@record
class ProgramEnd(AgentMessage):
    """The end of a program on a host."""

    host: str
    number: int
    code: int | None
    """The exit code as a shell has it; None: its time was over."""
