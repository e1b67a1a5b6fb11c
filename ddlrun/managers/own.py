"""ddlrun's own process manager, which needs no MPI on any host: the command that starts a job."""

import os
import sys
from collections.abc import Sequence
from signal import SIGKILL

from ddlrun import __version__
from ddlrun.agent import protocol
from ddlrun.managers import ManagerJob, ProcessManager, TransportChoice, TransportRequest
from ddlrun.managers.end import EndCode, EndFinding, ManagerOutput

START = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "agent", "start.py")
MOST_NAMES = 500


class OwnManager(ProcessManager):
    """ddlrun itself, with an agent on each host."""

    title = "ddlrun"
    rank_variables = ("DDLRUN_RANK", "DDLRUN_LOCAL_RANK", "DDLRUN_SIZE")
    pmi = "pmi1"
    needs = frozenset({"agent"})
    marks_daemons = True
    signals_keepers = True
    files_per_rank = 2
    sends_reports = True
    uses_links = True
    name = "the process manager"

    @staticmethod
    def parse_version(text: str) -> str | None:
        """Return the version from the output of `start.py --version`; None for another program."""
        name, _, version = text.strip().partition(" ")
        return version if name == "ddlrun" else None

    @property
    def description(self) -> str:
        """Its line in the full plan."""
        return f"mpirun:     none, ddlrun starts the ranks itself: {self.reason}"

    def command(self, job: ManagerJob) -> tuple[str, ...]:
        """Return the argv that starts a job."""
        others = [name for name in job.hosts.names if name not in job.local]
        return (
            sys.executable,
            "-I",
            "-S",
            self.path,
            f"--hostfile={job.hostfile}",
            *(f"--local={name}" for name in job.hosts.names if name in job.local),
            *(f"--via={word}" for word in job.launcher if others),
            *([f"--fan-out={len(others)}"] if others and not job.works_everywhere else []),
            *(f"--export={','.join(names)}" for names in _divide_names(job.exports if others else ())),
            "--",
            *job.program,
        )

    def add_link(self, argv: Sequence[str], option: str, /) -> Sequence[str]:
        """Return the command line with the option by which it finds agents that run already."""
        at = argv.index(self.path) + 1
        return (*argv[:at], option, *argv[at:])

    def choose_transport(self, _request: TransportRequest) -> TransportChoice:
        """Leave the transport to the MPI that the program may have."""
        return TransportChoice((), "left to the program")

    def read_end(self, output: ManagerOutput) -> tuple[EndFinding, ...]:
        """Return the findings of the process manager about the end of its job."""
        return tuple(_parse_report(kind, text) for kind, text in output.reports)


def _divide_names(names: Sequence[str]) -> list[Sequence[str]]:
    """Divide the names of variables among words, as the kernel limits the length of a word."""
    return [names[at : at + MOST_NAMES] for at in range(0, len(names), MOST_NAMES)]


def _parse_report(kind: bytes, text: bytes) -> EndFinding:
    r"""Parse a message of the process manager.

    >>> _parse_report(protocol.LOST, protocol.LostHost(name="h2", reason="the connection ended").pack()).text
    'host h2 was lost: the connection ended'
    >>> killed = _parse_report(protocol.EXITED, protocol.ExitedRank(rank=2, code=-9).pack())
    >>> killed.code is EndCode.KILLED_RANK, killed.rank, killed.text
    (True, 2, 'the keeper of rank 2 was killed')
    """
    if kind == protocol.LOST:
        host = protocol.LostHost.parse(text)
        return EndFinding(EndCode.LOST_HOST, host.name, text=f"host {host.name} was lost: {host.reason}")
    if kind == protocol.UNFINISHED:
        rank = int(text)
        return EndFinding(EndCode.UNFINISHED_RANK, rank=rank, text=f"rank {rank} ended without MPI_Finalize")
    end = protocol.ExitedRank.parse(text)
    if end.code == -SIGKILL:
        return EndFinding(EndCode.KILLED_RANK, "", end.rank, end.code, f"the keeper of rank {end.rank} was killed")
    return EndFinding(
        EndCode.EXITED_RANK, "", end.rank, end.code, f"the keeper of rank {end.rank} ended with {end.code}"
    )


def own_manager(reason: str, warning: str = "") -> OwnManager:
    """Return ddlrun's own process manager, and why it was chosen."""
    return OwnManager(START, __version__, reason, warning)
