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

JOB = b"J"
"""The job of an agent: an AgentJob, and the HostRanks of its host and of those below it."""
TERMINATE = b"T"
"""End the ranks: SIGTERM now, SIGKILL after a grace in seconds."""
PMI = b"P"
"""From an agent: the number of a host and the message of its PMI server to the root. To an agent: the root's message
to the PMI servers of all hosts."""
EXITED = b"X"
"""An ExitedRank."""
UNFINISHED = b"U"
"""A rank that has ended with 0 after MPI_Init, but without MPI_Finalize."""
LOST = b"L"
"""A LostHost."""
DONE = b"D"
"""All ranks of the agent and of those below it have ended."""
ALTERED = b"A"
"""A message to the agent was altered on the way; the agent ends its ranks."""

# The longest text of each kind. All hosts and variables are in one job, and the addresses of all ranks in a message.
NUMBERS, LINE, EVERYTHING = 64, 1 << 16, 1 << 30
TO_AGENT = {JOB: EVERYTHING, TERMINATE: NUMBERS, PMI: EVERYTHING}
# From the root to ddlrun: EXITED, of failed ranks, UNFINISHED and LOST.
TO_DDLRUN = {EXITED: NUMBERS, UNFINISHED: NUMBERS, LOST: LINE}
FROM_AGENT = {**TO_DDLRUN, PMI: EVERYTHING, DONE: 0, ALTERED: 0}


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
    """A host whose agent is gone before its ranks have ended."""

    name: str
    reason: str

    def pack(self) -> bytes:
        """Return the text of a message."""
        return f"{self.name}\t{self.reason}".encode()

    @classmethod
    def parse(cls, text: bytes) -> LostHost:
        """Parse the text of a message."""
        name, _, reason = text.decode(errors="replace").partition("\t")
        return cls(name=name, reason=reason)


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
class AgentJob:
    """What the ranks of all hosts have in common."""

    program: Sequence[str]
    """The command line of the program."""
    launcher: Sequence[str]
    """The command line that starts a program on a host; the word @host stands for the host's name."""
    folder: str
    """The working folder."""
    name: str
    """A name that all agents of this attempt, and no others, have."""
    size: int
    """The number of ranks."""
    fan_out: int
    """The number of agents that an agent starts itself; these start the others."""
    python: str
    """The Python that runs agents, where hosts have it."""
    script: str
    """The script of agents, where hosts have it."""
    environ: Mapping[str, str]
    """The variables that are set on all hosts."""

    def pack(self) -> bytes:
        """Return the job as one text, which all agents pass on unchanged."""
        numbers = f"{self.size} {self.fan_out}"
        variables = [word for item in self.environ.items() for word in item]
        texts = ([self.folder, self.python, self.script, self.name, numbers], self.program, self.launcher, variables)
        return pack_words(pack_words(word.encode(errors="surrogateescape") for word in words) for words in texts)

    @classmethod
    def parse(cls, text: bytes) -> AgentJob:
        """Parse the text of a job."""
        texts = [[word.decode(errors="surrogateescape") for word in unpack_words(part)] for part in unpack_words(text)]
        (folder, python, script, name, numbers), program, launcher, variables = texts
        size, fan_out = map(int, numbers.split())
        return cls(
            program=program,
            launcher=launcher,
            folder=folder,
            name=name,
            size=size,
            fan_out=fan_out,
            python=python,
            script=script,
            environ={variables[at]: variables[at + 1] for at in range(0, len(variables), 2)},
        )
