"""The job as agents pass it on: what all hosts have in common, and the ranks of each host."""

from __future__ import annotations

from ddlrun.agent.frames import pack_words, unpack_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class HostRanks:
    """A host of the job, and its ranks in the order of their local ranks."""

    def __init__(self, number: int, name: str, ranks: Sequence[int]) -> None:
        self.number, self.name, self.ranks = number, name, list(ranks)

    def pack(self) -> bytes:
        """Return the host as one text."""
        return f"{self.number} {self.name} {','.join(map(str, self.ranks))}".encode()

    @classmethod
    def parse(cls, text: bytes) -> HostRanks:
        """Parse the text of a host.

        >>> HostRanks.parse(HostRanks(1, "h1", [0, 4]).pack()).ranks
        [0, 4]
        """
        number, name, ranks = text.decode().split(" ")
        return cls(int(number), name, [int(rank) for rank in ranks.split(",")])


class AgentJob:
    """What the ranks of all hosts have in common."""

    def __init__(
        self,
        *,
        program: Sequence[str],
        launcher: Sequence[str],
        folder: str,
        name: str,
        size: int,
        fan_out: int,
        python: str,
        script: str,
        environ: Mapping[str, str],
    ) -> None:
        self.program = list(program)
        """The command line of the program."""
        self.launcher = list(launcher)
        """The command line that starts a program on a host; the word @host stands for the host's name."""
        self.folder = folder
        """The working folder."""
        self.name = name
        """A name that all agents of this attempt, and no others, have."""
        self.size = size
        """The number of ranks."""
        self.fan_out = fan_out
        """The number of agents that an agent starts itself; these start the others."""
        self.python, self.script = python, script
        """The Python that runs agents, and their script, where hosts have them."""
        self.environ = dict(environ)
        """The variables that are set on all hosts."""

    def pack(self) -> bytes:
        """Return the job as one text, which all agents pass on unchanged."""
        numbers = f"{self.size} {self.fan_out}"
        variables = [word for item in self.environ.items() for word in item]
        texts = ([self.folder, self.python, self.script, self.name, numbers], self.program, self.launcher, variables)
        return pack_words(pack_words(map(_encode, words)) for words in texts)

    @classmethod
    def parse(cls, text: bytes) -> AgentJob:
        """Parse the text of a job."""
        texts = [[_decode(word) for word in unpack_words(part)] for part in unpack_words(text)]
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


def _encode(word: str) -> bytes:
    return word.encode(errors="surrogateescape")


def _decode(word: bytes) -> str:
    return word.decode(errors="surrogateescape")


def divide(hosts: Sequence[HostRanks], fan_out: int) -> list[list[HostRanks]]:
    """Divide hosts among the agents that an agent starts itself; the first of each part starts the others of it.

    >>> [len(part) for part in divide([HostRanks(number, "h", []) for number in range(10)], 4)]
    [3, 3, 2, 2]
    """
    count = min(len(hosts), fan_out)
    least, more = divmod(len(hosts), count) if count else (0, 0)
    parts, at = [], 0
    for number in range(count):
        end = at + least + (1 if number < more else 0)
        parts.append(list(hosts[at:end]))
        at = end
    return parts
