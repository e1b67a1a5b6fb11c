"""The folder of a run: the paths of its files."""

from typing import NamedTuple


class RunDir(NamedTuple):
    """The files of one run."""

    path: str

    @property
    def rankfile(self) -> str:
        """Where every rank goes, as mpirun reads it."""
        return f"{self.path}/rankfile"

    @property
    def hostfile(self) -> str:
        """The hosts with their slots, as mpirun reads it."""
        return f"{self.path}/hostfile"

    @property
    def plan(self) -> str:
        """The Plan as JSON."""
        return f"{self.path}/plan.json"

    @property
    def command(self) -> str:
        """The command, to be read or pasted."""
        return f"{self.path}/command"

    @property
    def environment(self) -> str:
        """The names of the variables that the ranks get, one a line; no values."""
        return f"{self.path}/environment"

    @property
    def stdout(self) -> str:
        """What the ranks wrote to standard output."""
        return f"{self.path}/stdout.log"

    @property
    def stderr(self) -> str:
        """What the ranks and mpirun wrote to standard error."""
        return f"{self.path}/stderr.log"

    @property
    def mpirun_log(self) -> str:
        """What mpirun itself wrote."""
        return f"{self.path}/mpirun.log"

    @property
    def report(self) -> str:
        """Why the run failed, as it was shown."""
        return f"{self.path}/report.txt"

    @property
    def check(self) -> str:
        """What the check of the hosts before the start found, as JSON; not there where none was made."""
        return f"{self.path}/check.json"

    @property
    def page(self) -> str:
        """The run as an HTML page, once `ddlrun report` has written it."""
        return f"{self.path}/report.html"

    @property
    def binding(self) -> str:
        """What each rank was really bound to, as JSON."""
        return f"{self.path}/binding.json"

    @property
    def ddl(self) -> str:
        """What ddlrun.ddl found out about iterations and learners, a JSON object a line; rank 0 writes it."""
        return f"{self.path}/ddl.jsonl"

    @property
    def outcome(self) -> str:
        """The Outcome as JSON."""
        return f"{self.path}/outcome.json"
