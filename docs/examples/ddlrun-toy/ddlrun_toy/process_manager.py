"""toyrun as a process manager of ddlrun."""

import re

from ddlrun.errors import PreflightError
from ddlrun.managers import ManagerJob, ProcessManager


def parse_version(text: str) -> str | None:
    """Parse the output of `toyrun --version`."""
    match = re.match(r"toyrun (\S+)", text)
    return match[1] if match else None


def command(path: str, _version: str, job: ManagerJob) -> tuple[str, ...]:
    """Return the argv that starts a job. Raises PreflightError for several hosts."""
    if len(job.hosts) > 1:
        raise PreflightError("toyrun starts ranks on one host alone; name one, or use Open MPI: --mpirun mpirun")
    return (path, *job.extra, str(job.ranks), *job.program)


TOYRUN = ProcessManager(
    title="Toyrun",
    parse_version=parse_version,
    command=command,
    rank_variables=("TOY_RANK", "TOY_LOCAL_RANK", "TOY_SIZE"),
)
