"""The end of a job as its process manager reports it: values, by whatever it prints or sends."""

import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class EndCode(enum.Enum):
    """The kind of a finding; the comments list the other fields that it has."""

    LOST_HOST = enum.auto()  # host, text
    LOST_DAEMON = enum.auto()  # host, text: the daemon there is gone, or the connection to it
    FAILED_START = enum.auto()  # text: the process manager, or its daemon or step on a host, could not start
    CANCELLED_STEP = enum.auto()  # text: Slurm has ended the step of srun
    EXITED_RANK = enum.auto()  # rank, number: the exit code of its keeper
    KILLED_RANK = enum.auto()  # rank: SIGKILL ended its keeper
    UNFINISHED_RANK = enum.auto()  # rank: it has ended without MPI_Finalize while others are in MPI
    ABORTING_RANK = enum.auto()  # rank: it called MPI_Abort, or its MPI did after an error
    ABORT_CALL = enum.auto()  # rank, number: the code that it passed to MPI_Abort
    REFUSED_SPAWN = enum.auto()  # no slot is left for MPI_Comm_spawn
    OTHER_FAILURE = enum.auto()  # a failure of the process manager or its daemon


class EndFinding(NamedTuple):
    """What a process manager has reported of the end of its job."""

    code: EndCode
    host: str = ""
    """The host, or the one on which the rank runs; empty: not reported."""
    rank: int = -1
    number: int = 0
    text: str = ""


class EndPattern(NamedTuple):
    """A regular expression for a finding; its groups are fields of the finding, and words of the text."""

    code: EndCode
    pattern: str
    text: str = ""
    """The text of the finding; names of groups stand in braces."""


def find_patterns(output: str, patterns: Iterable[EndPattern]) -> Iterator[EndFinding]:
    """Yield a finding for each pattern that occurs in an output."""
    for pattern in patterns:
        match = re.search(pattern.pattern, output)
        if match is not None:
            groups = match.groupdict()
            rank, number = int(groups.get("rank", -1)), int(groups.get("number", 0))
            yield EndFinding(pattern.code, groups.get("host", ""), rank, number, pattern.text.format(**groups))


class ManagerOutput(NamedTuple):
    """What a process manager has printed and sent so far."""

    exit_code: int
    """Its exit code, or minus the signal that ended it; 0 while it runs."""
    text: str = ""
    """The last of its output."""
    reports: Sequence[tuple[bytes, bytes]] = ()
    """The messages of ddlrun's own: see agent/frames.py."""
    host_names: Sequence[str] = ()
    """The hosts of the job."""


class ManagerEnd(NamedTuple):
    """The end of a process manager."""

    exit_code: int
    """Its exit code, or minus the signal that ended it; 0 while it runs."""
    findings: Sequence[EndFinding] = ()
    ended_by_ddlrun: bool = False
    """Whether ddlrun sent it SIGTERM or SIGKILL."""
    name: str = "the process manager"
    """Its name in messages."""

    def find(self, code: EndCode) -> EndFinding | None:
        """Return the first finding of a kind; None without any."""
        return next((finding for finding in self.findings if finding.code is code), None)
