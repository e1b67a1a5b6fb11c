"""The folder of a run: the paths of its files."""

from typing import NamedTuple


class RunDir(NamedTuple):
    """The files of one run."""

    path: str

    @property
    def rankfile(self) -> str:
        """The place of every rank, as the process manager reads it."""
        return f"{self.path}/rankfile"

    @property
    def hostfile(self) -> str:
        """The hosts with their slots, as the process manager reads it."""
        return f"{self.path}/hostfile"

    @property
    def plan(self) -> str:
        """The Plan as JSON."""
        return f"{self.path}/plan.json"

    @property
    def start(self) -> str:
        """The start of the run as JSON: its name, hosts and time, and the arguments of ddlrun launch."""
        return f"{self.path}/run.json"

    @property
    def command(self) -> str:
        """The command, to read or to paste."""
        return f"{self.path}/command"

    @property
    def environment(self) -> str:
        """The names of the variables that the ranks get, one per line; no values."""
        return f"{self.path}/environment"

    @property
    def stdout(self) -> str:
        """The standard output of the ranks."""
        return f"{self.path}/stdout.log"

    @property
    def stderr(self) -> str:
        """The standard error of the ranks and of the process manager."""
        return f"{self.path}/stderr.log"

    @property
    def rank_logs(self) -> str:
        """The folder with a log per rank: both streams, as they arrived."""
        return f"{self.path}/ranks"

    @property
    def manager_log(self) -> str:
        """The output of the process manager itself."""
        return f"{self.path}/mpirun.log"

    @property
    def report(self) -> str:
        """The reason of a failure, as it was printed."""
        return f"{self.path}/report.txt"

    @property
    def check(self) -> str:
        """The findings of the check of the hosts, as JSON; not written without a check."""
        return f"{self.path}/check.json"

    @property
    def page(self) -> str:
        """The run as an HTML page, once `ddlrun report` has written it."""
        return f"{self.path}/report.html"

    @property
    def binding(self) -> str:
        """The cores and GPUs that each rank really got, as JSON."""
        return f"{self.path}/binding.json"

    @property
    def ddl(self) -> str:
        """The events of ddlrun.ddl, one JSON object per line, written by rank 0."""
        return f"{self.path}/ddl.jsonl"

    @property
    def metrics(self) -> str:
        """The use of resources by ranks and hosts, one JSON object per line, while the run lasts."""
        return f"{self.path}/metrics.jsonl"

    @property
    def events(self) -> str:
        """The events of the run as --on-event gets them, one JSON object per line."""
        return f"{self.path}/events.jsonl"

    @property
    def diagnosis(self) -> str:
        """The last examination of the job, as JSON."""
        return f"{self.path}/doctor.json"

    @property
    def examination_request(self) -> str:
        """The request of `ddlrun doctor` for an examination, until ddlrun begins with it."""
        return f"{self.path}/doctor.request"

    @property
    def outcome(self) -> str:
        """The Outcome as JSON."""
        return f"{self.path}/outcome.json"


def rank_log(run_folder: str, rank: int, ranks: int) -> str:
    """Return the path of a rank's log; the numbers of a run have the same width.

    >>> rank_log("/run", 7, 128)
    '/run/ranks/007.log'
    """
    return f"{RunDir(run_folder).rank_logs}/{rank:0{len(str(ranks - 1))}d}.log"
