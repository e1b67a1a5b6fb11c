"""The folder of a run: the paths of its files."""

from dataclasses import dataclass


class RunFile:
    """A file of a run, whose path is an attribute of the run's folder."""

    def __init__(self, name: str) -> None:
        """Take its name in the folder."""
        self._name = name

    def __get__(self, folder: "RunDir", _owner: type) -> str:
        """Return its path."""
        return f"{folder.path}/{self._name}"


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of one run."""

    path: str

    rankfile = RunFile("rankfile")
    """The place of every rank, as the process manager reads it."""
    hostfile = RunFile("hostfile")
    """The hosts with their slots, as the process manager reads it."""
    plan = RunFile("plan.json")
    """The Plan as JSON."""
    start = RunFile("run.json")
    """The start of the run as JSON: its name, hosts and time, and the arguments of ddlrun launch."""
    command = RunFile("command")
    """The command, to read or to paste."""
    environment = RunFile("environment")
    """The names of the variables that the ranks get, one per line; no values."""
    rank_logs = RunFile("ranks")
    """The folder with a log per rank: both streams, as they arrived."""
    own_log = RunFile("ddlrun.log")
    """The messages of ddlrun while the job ran."""
    nccl_logs = RunFile("nccl")
    """The folder with a log of NCCL per host that has GPUs, from its first rank."""
    order = RunFile("output.order")
    """The order in which the parts of these logs arrived, for `ddlrun logs`."""
    manager_log = RunFile("mpirun.log")
    """The output of the process manager itself."""
    report = RunFile("report.txt")
    """The reason of a failure, as it was printed."""
    check = RunFile("check.json")
    """The findings of the check of the hosts, as JSON; not written without a check."""
    page = RunFile("report.html")
    """The run as an HTML page, once `ddlrun report` has written it."""
    binding = RunFile("binding.json")
    """The cores and GPUs that each rank really got, as JSON."""
    ddl = RunFile("ddl.jsonl")
    """The events of ddlrun.ddl, one JSON object per line, written by rank 0."""
    metrics = RunFile("metrics.jsonl")
    """The use of resources by ranks and hosts, one JSON object per line, while the run lasts."""
    events = RunFile("events.jsonl")
    """The events of the run as --on-event gets them, one JSON object per line."""
    examination = RunFile("examination.json")
    """The last examination of the job, as JSON."""
    examination_request = RunFile("examination.request")
    """The request of `ddlrun doctor` for an examination, until ddlrun begins with it."""
    outcome = RunFile("outcome.json")
    """The Outcome as JSON."""


def rank_log(run_folder: str, rank: int, ranks: int) -> str:
    """Return the path of a rank's log; the numbers of a run have the same width.

    >>> rank_log("/run", 7, 128)
    '/run/ranks/007.log'
    """
    return f"{RunDir(run_folder).rank_logs}/{rank:0{len(str(ranks - 1))}d}.log"


def nccl_log(run_folder: str, host: str) -> str:
    """Return the path of NCCL's log of a host.

    >>> nccl_log("/run", "n1")
    '/run/nccl/n1.log'
    """
    return f"{RunDir(run_folder).nccl_logs}/{host}.log"
