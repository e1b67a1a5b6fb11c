"""toyrun as a process manager of ddlrun."""

import re

from ddlrun.errors import PreflightError
from ddlrun.managers import ManagerJob, ProcessManager


class Toyrun(ProcessManager):
    """toyrun, which starts ranks on one host."""

    title = "Toyrun"
    rank_variables = ("TOY_RANK", "TOY_LOCAL_RANK", "TOY_SIZE")

    @staticmethod
    def parse_version(text: str) -> str | None:
        """Return the version from the output of `toyrun --version`; None for another program."""
        match = re.match(r"toyrun (\S+)", text)
        return match[1] if match else None

    def command(self, job: ManagerJob) -> tuple[str, ...]:
        """Return the argv that starts a job. Raises PreflightError for several hosts."""
        if len(job.hosts) > 1:
            raise PreflightError("toyrun starts ranks on one host alone; name one, or use Open MPI: --mpirun mpirun")
        return (self.path, *job.extra, str(job.ranks), *job.program)
