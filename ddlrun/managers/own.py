"""ddlrun's own process manager, which needs no MPI on any host: the command that starts a job."""

import os
import re
import sys
from collections.abc import Sequence

from ddlrun import __version__
from ddlrun.managers import ManagerJob, ProcessManager
from ddlrun.managers.openmpi import ChosenManager

START = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "agent", "start.py")
# The beginning of the line by which the process manager reports a lost host.
LOST = "ddlrun: lost host "
MOST_NAMES = 500
# The variables in which each process finds its rank, its local rank and the number of ranks.
RANK_VARIABLES = ("DDLRUN_RANK", "DDLRUN_LOCAL_RANK", "DDLRUN_SIZE")


def _parse_version(text: str) -> str | None:
    """Return the version from the output of `start.py --version`; None for another program."""
    name, _, version = text.strip().partition(" ")
    return version if name == "ddlrun" else None


def _command(path: str, _version: str, job: ManagerJob) -> tuple[str, ...]:
    """Return the argv that starts a job."""
    others = [name for name in job.hosts.names if name not in job.local]
    return (
        sys.executable,
        "-I",
        "-S",
        path,
        f"--hostfile={job.hostfile}",
        *(f"--local={name}" for name in job.hosts.names if name in job.local),
        *(f"--via={word}" for word in job.launcher if others),
        *([f"--fan-out={len(others)}"] if others and not job.works_everywhere else []),
        *(f"--export={','.join(names)}" for names in _divide_names(job.exports if others else ())),
        "--",
        *job.program,
    )


def _divide_names(names: Sequence[str]) -> list[Sequence[str]]:
    """Divide the names of variables among words, as the kernel limits the length of a word."""
    return [names[at : at + MOST_NAMES] for at in range(0, len(names), MOST_NAMES)]


AGENTS = ProcessManager(
    title="ddlrun",
    parse_version=_parse_version,
    command=_command,
    rank_variables=RANK_VARIABLES,
    on_hosts=False,
    name="the process manager",
)


def lost_agent(output: str) -> tuple[str, str] | None:
    r"""Return the host whose agent was lost, and the reason, from what the process manager has printed; None: none.

    >>> lost_agent("ddlrun: lost host h2: the connection to its agent ended (ssh: exit code 255)\n")
    ('h2', 'the connection to its agent ended (ssh: exit code 255)')
    """
    match = re.search(rf"(?m)^{re.escape(LOST)}(\S+): (.+)$", output)
    return (match[1], match[2]) if match else None


def killed_keeper(output: str) -> int | None:
    r"""Return the rank whose keeper was killed, from what the process manager has printed; None: none.

    >>> killed_keeper("ddlrun: rank 2: its keeper was killed\n")
    2
    """
    match = re.search(r"(?m)^ddlrun: rank (\d+): its keeper was killed$", output)
    return int(match[1]) if match else None


def unconnected_rank(output: str) -> str | None:
    r"""Return the rank whose keeper did not reach ddlrun, and its host, from what keepers have printed; None: none.

    >>> unconnected_rank("ddlrun: rank 2 on h3 cannot reach ddlrun: tried 10.0.0.1:4711 (timed out)\n")
    'rank 2 on h3'
    """
    match = re.search(r"(?m)^ddlrun: (rank \d+ on \S+) cannot reach ddlrun: ", output)
    return match[1] if match else None


def unfinished_rank(output: str) -> tuple[int, str] | None:
    r"""Return the rank that ended without MPI_Finalize, and its host, from what the process manager has printed.

    >>> unfinished_rank("ddlrun: rank 2 on h3 ended without MPI_Finalize\n")
    (2, 'h3')
    """
    match = re.search(r"(?m)^ddlrun: rank (\d+) on (\S+) ended without MPI_Finalize$", output)
    return (int(match[1]), match[2]) if match else None


def is_own(manager: ChosenManager) -> bool:
    """Return True for ddlrun's own process manager."""
    return manager.manager == AGENTS


def own_manager(reason: str) -> ChosenManager:
    """Return ddlrun's own process manager, and why it was chosen."""
    return ChosenManager(START, __version__, reason, AGENTS)
