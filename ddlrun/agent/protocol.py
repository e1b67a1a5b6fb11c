"""The messages between agents, over pipes that lead through ssh or the like, and from the root to ddlrun.

They are frames with checksums (see wire/frames.py): ssh detects altered data; other launchers may not. A text of
several words is packed with their lengths.
"""

from __future__ import annotations

from ddlrun.keeper import record
from ddlrun.wire.frames import Agreement, Checksums

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ddlrun.wire.connection import Connection

TREE = b"B"
"""To an agent that has greeted: an AgentTree, and the names of the hosts of its part, its own first."""
JOB = b"J"
"""An AgentJob, and the HostRanks of the agent's part that have ranks. The next one may follow DONE."""
TERMINATE = b"T"
"""End the ranks: SIGTERM now, SIGKILL after a grace in seconds."""
PMI = b"P"
"""From an agent: the number of a host and the message of its PMI server to the root. To an agent: the root's message
to the PMI servers of all hosts."""
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

# An agent ends after this time without any message, unless the job has a heartbeat.
IDLE_SECONDS = 120.0
# The longest text of each kind. All hosts and variables are in one job, and the addresses of all ranks in a message.
NUMBERS, LINE, EVERYTHING = 64, 1 << 16, 1 << 30
TO_AGENT = {
    TREE: EVERYTHING, JOB: EVERYTHING, TERMINATE: NUMBERS, PMI: EVERYTHING, RUN: EVERYTHING, STOP: NUMBERS, KEEP: 0,
}  # fmt: skip
# From the root to ddlrun: EXITED, of failed ranks, UNFINISHED and LOST.
TO_DDLRUN = {EXITED: NUMBERS, UNFINISHED: NUMBERS, LOST: EVERYTHING}
FROM_AGENT = {**TO_DDLRUN, PMI: EVERYTHING, DONE: 0, ALTERED: 0, OUTPUT: EVERYTHING, ENDED: LINE}


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


@record
class ExitedRank:
    """The end of a rank."""

    rank: int
    code: int
    """The exit code of its keeper, or minus the signal that killed it."""

    def pack(self) -> bytes:
        """Return the text of a message."""
        return b"%d %d" % (self.rank, self.code)

    @classmethod
    def parse(cls, text: bytes) -> ExitedRank:
        """Parse the text of a message."""
        rank, code = map(int, text.split())
        return cls(rank=rank, code=code)


@record
class LostHost:
    """A host whose agent is gone."""

    name: str
    reason: str
    code: int = 0
    """The exit code of the program that leads there, as a shell has it."""
    errors: str = ""
    """The last that this program wrote to standard error before the agent ran."""
    below: Sequence[str] = ()
    """The hosts that were reached through this one."""

    def pack(self) -> bytes:
        """Return the text of a message."""
        return _pack_texts([self.name, self.reason, str(self.code), self.errors, *self.below])

    @classmethod
    def parse(cls, text: bytes) -> LostHost:
        """Parse the text of a message."""
        name, reason, code, errors, *below = _unpack_texts(text)
        return cls(name=name, reason=reason, code=int(code), errors=errors, below=below)


@record
class HostRanks:
    """A host of the job, and its ranks in the order of their local ranks."""

    number: int
    name: str
    ranks: Sequence[int]

    def pack(self) -> bytes:
        """Return the host as one text."""
        return f"{self.number} {self.name} {','.join(map(str, self.ranks))}".encode()

    @classmethod
    def parse(cls, text: bytes) -> HostRanks:
        """Parse the text of a host.

        >>> HostRanks.parse(b"1 h1 0,4").ranks
        [0, 4]
        """
        number, name, ranks = text.decode().split(" ")
        return cls(number=int(number), name=name, ranks=[int(rank) for rank in ranks.split(",")])


@record
class AgentTree:
    """What all agents need to start those below them."""

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

    def pack(self) -> bytes:
        """Return the tree as one text, which all agents pass on unchanged."""
        return _pack_texts([self.python, self.script, str(self.fan_out), self.run, str(self.idle), *self.launcher])

    @classmethod
    def parse(cls, text: bytes) -> AgentTree:
        """Parse the text of a tree."""
        python, script, fan_out, run, idle, *launcher = _unpack_texts(text)
        return cls(launcher=launcher, python=python, script=script, fan_out=int(fan_out), run=run, idle=float(idle))


@record
class AgentJob:
    """What the ranks of all hosts have in common."""

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

    def pack(self) -> bytes:
        """Return the job as one text, which all agents pass on unchanged."""
        variables = [word for item in self.environ.items() for word in item]
        return pack_words(map(_pack_texts, ([self.folder, self.name, str(self.size)], self.program, variables)))

    @classmethod
    def parse(cls, text: bytes) -> AgentJob:
        """Parse the text of a job."""
        (folder, name, size), program, variables = map(_unpack_texts, unpack_words(text))
        environ = {variables[at]: variables[at + 1] for at in range(0, len(variables), 2)}
        return cls(program=program, folder=folder, name=name, size=int(size), environ=environ)


@record
class ProgramRequest:
    """A script for the shell of some hosts."""

    number: int
    """The number by which the script is stopped, and by which its output is known."""
    seconds: float
    """The time after which it is ended; 0: none."""
    hosts: Sequence[str]
    """The names of the hosts."""
    script: bytes
    """The shell's standard input."""
    linger: float = 0
    """The time that it has once the link has ended."""

    def pack(self) -> bytes:
        """Return the text of a message."""
        numbers = f"{self.number} {self.seconds!r} {self.linger!r}"
        return pack_words([_pack_texts([numbers, *self.hosts]), self.script])

    @classmethod
    def parse(cls, text: bytes) -> ProgramRequest:
        """Parse the text of a message."""
        head, script = unpack_words(text)
        numbers, *hosts = _unpack_texts(head)
        number, seconds, linger = numbers.split()
        return cls(number=int(number), seconds=float(seconds), linger=float(linger), hosts=hosts, script=script)


@record
class ProgramOutput:
    """What a program on a host has written."""

    host: str
    number: int
    stream: int
    """1: standard output; 2: standard error."""
    data: bytes

    def pack(self) -> bytes:
        """Return the text of a message."""
        return pack_words([self.host.encode(), b"%d %d" % (self.number, self.stream), self.data])

    @classmethod
    def parse(cls, text: bytes) -> ProgramOutput:
        """Parse the text of a message."""
        host, numbers, data = unpack_words(text)
        number, stream = map(int, numbers.split())
        return cls(host=host.decode(), number=number, stream=stream, data=data)


@record
class ProgramEnd:
    """The end of a program on a host."""

    host: str
    number: int
    code: int | None
    """The exit code as a shell has it; None: its time was over."""

    def pack(self) -> bytes:
        """Return the text of a message."""
        return f"{self.host} {self.number} {'' if self.code is None else self.code}".encode()

    @classmethod
    def parse(cls, text: bytes) -> ProgramEnd:
        """Parse the text of a message.

        >>> ProgramEnd.parse(b"h1 3 "), ProgramEnd.parse(b"h1 4 0").code
        (ProgramEnd(host='h1', number=3, code=None), 0)
        """
        host, number, code = text.decode().split(" ")
        return cls(host=host, number=int(number), code=int(code) if code else None)


def _pack_texts(texts: Iterable[str]) -> bytes:
    return pack_words(text.encode(errors="surrogateescape") for text in texts)


def _unpack_texts(packed: bytes) -> list[str]:
    return [word.decode(errors="surrogateescape") for word in unpack_words(packed)]
