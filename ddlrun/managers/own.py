"""ddlrun's own process manager, which needs no MPI on any host: the command that starts a job."""

import os
import sys
from signal import SIGKILL

from ddlrun import __version__
from ddlrun.agent import protocol
from ddlrun.agent.protocol import HERE
from ddlrun.managers import ManagerJob, ProcessManager, TransportChoice, TransportRequest
from ddlrun.managers.end import EndCode, EndFinding, ManagerOutput

START = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "agent", "start.py")


class OwnManager(ProcessManager):
    """ddlrun itself, with an agent on each host."""

    title = "ddlrun"
    rank_variables = ("DDLRUN_RANK", "DDLRUN_LOCAL_RANK", "DDLRUN_SIZE")
    pmi = "pmi1"
    needs = frozenset({"agent"})
    marks_daemons = True
    signals_keepers = True
    files_per_rank = 2
    uses_agents = True
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
        """Return the argv that starts this host's agent, and the program, of which a message tells the agents."""
        return (sys.executable, "-I", "-S", self.path, HERE, "--", *job.program)

    def choose_transport(self, _request: TransportRequest) -> TransportChoice:
        """Leave the transport to the MPI that the program may have."""
        return TransportChoice((), "left to the program")

    def read_end(self, output: ManagerOutput) -> tuple[EndFinding, ...]:
        """Return the findings of the process manager about the end of its job."""
        return tuple(_parse_report(kind, text) for kind, text in output.reports)


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
