"""Supervision of a running job: its limits, its signals and its output."""

import enum
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.hosts import fold
from ddlrun.keeper import program_streams
from ddlrun.managers import ProcessManager
from ddlrun.ranges import name_numbers
from ddlrun.topology import JobTopology, RankOrder

if TYPE_CHECKING:  # for the annotation alone
    from ddlrun.hangs.examination import HangVerdictRecord

LOOPBACK = ("127.0.0.1",)
# Interpreters, and those of their options with which they read a script, or what a person types, from standard input.
INTERPRETERS = r"i?python[0-9.]*|ipdb3?|bash|dash|fish|ksh|sh|zsh|julia|R"
INPUT_OPTIONS = frozenset(("-", "-s", "-u", "-i", "-l", "-x", "-e", "-q"))


class OutputStyle(NamedTuple):
    """How the output of ranks is shown and stored."""

    tag: bool | None = None
    """Whether each line begins with [rank@host]; None: with more than one rank."""
    timestamp: bool = False
    ranks: frozenset[int] | None = None
    """The ranks that the console shows; None: all."""
    local_ranks: frozenset[int] | None = None
    """The local ranks that the console shows, of each host; None: all."""
    folder: str | None = None
    """Folder with files for each rank's output."""
    fold: bool = False
    """Whether equal lines of several ranks are printed once."""
    many_colours: bool = False
    """Whether the terminal has 256 colours."""
    raw: int | None = None
    """The rank whose output is printed as it comes, without tags: it has the terminal."""


def choose_shown(style: OutputStyle, local_ranks: Mapping[int, int]) -> OutputStyle:
    """Return a style whose shown ranks also have one of its shown local ranks, by the local rank of each rank."""
    shown = style.local_ranks or frozenset()
    chosen = frozenset(rank for rank, local_rank in local_ranks.items() if local_rank in shown)
    return style._replace(ranks=chosen if style.ranks is None else chosen & style.ranks)


class InputMode(enum.Enum):
    """How a rank gets ddlrun's standard input."""

    PIPE = program_streams.PIPE
    TERMINAL = program_streams.TERMINAL
    DEBUGGER = program_streams.DEBUGGER


class RankInput(NamedTuple):
    """The rank whose standard input is ddlrun's."""

    rank: int
    mode: InputMode

    @property
    def terminal(self) -> bool:
        """Whether the rank gets a pseudo terminal."""
        return self.mode is not InputMode.PIPE


class StallAction(enum.Enum):
    """The action for a job that has printed nothing for the time of --stall-timeout."""

    END = "end"
    REPORT = "report"


class SupervisionOptions(NamedTuple):
    """How a job is supervised; times are in seconds, 0: no limit."""

    grace: float = 10.0
    heartbeat: float = 30.0
    timeout: float = 0.0
    start: float = 0.0
    """Time without a new rank after which missing ranks are given up."""
    stall: float = 0.0
    """Time without output after which a rank is reported."""
    sample_interval: float = 0.0
    """Time between two samples of a rank's use of resources; 0: there are none."""
    stall_action: StallAction = StallAction.END
    stall_work_factor: float = 5.0
    """A job whose ranks work is ended after this multiple of `stall`; 0: never."""
    forward: tuple[int, ...] = ()
    """Signals that are passed on to every rank's program."""
    encryption: str | None = None
    """Folder of the package cryptography, on all hosts; None: the keepers' connections are not encrypted."""
    style: OutputStyle = OutputStyle()
    input: RankInput | None = None
    """None: rank 0 has standard input, as the process manager passes it on."""
    status_line: bool = False
    colour: bool = False
    restarts: bool = False
    """Whether the job is started again if it fails."""
    on_stall: "Callable[[HangVerdictRecord], None] | None" = None
    """Gets the verdict on ranks that printed nothing."""


def reads_script(program: Sequence[str]) -> bool:
    """Return True for an interpreter that reads its script, or what a person types, from standard input.

    >>> reads_script(("bash", "-s")), reads_script(("python3", "-V")), reads_script(("python3", "a.py"))
    (True, False, False)
    """
    return bool(re.fullmatch(INTERPRETERS, os.path.basename(program[0]))) and INPUT_OPTIONS.issuperset(program[1:])


class SupervisedJob(NamedTuple):
    """The ranks of a job, their hosts, and the addresses at which keepers reach ddlrun."""

    topology: JobTopology
    order: RankOrder
    host_names: tuple[str, ...]
    manager: ProcessManager
    addresses: tuple[str, ...] = LOOPBACK

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.topology.size

    def host_of(self, rank: int) -> str:
        """Return the name of the host on which a rank runs."""
        return self.host_names[self.topology.host_index(rank, self.order)]

    def describe(self, ranks: Iterable[int]) -> str:
        """Return ranks and their hosts in words.

        >>> from ddlrun.managers.own import own_manager
        >>> from ddlrun.topology import Topology
        >>> SupervisedJob(Topology((2, 2)), RankOrder.HOST, ("n0", "n1"), own_manager("")).describe([2, 1, 0])
        'ranks 0-2 on n[0-1]'
        """
        numbers = sorted(ranks)
        hosts = dict.fromkeys(self.host_of(rank) for rank in numbers)
        return f"{name_numbers('rank', numbers)} on {fold(hosts)}"
