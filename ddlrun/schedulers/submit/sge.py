"""Grid Engine of all vendors: submission and job states."""

import re
from dataclasses import dataclass

from ddlrun.errors import EXIT_TIMED_OUT, EXIT_UNREACHABLE
from ddlrun.schedulers.submit import BatchJob, JobState, Scheduler, StateQuery

# Fields of a line of the accounting file, counted from 0, and the value of `failed` for a job at its time limit.
FAILED, STATUS, PE_TASK = 11, 12, 41
AT_LIMIT = "37"
ACCOUNTING = (
    r"""grep -hE '^([^:]*:){5}{id}:' "$SGE_ROOT/${SGE_CELL:-default}/common/accounting" 2>/dev/null || qacct -j {id}"""
)


def parse_qstat(line: str) -> JobState | None:
    """Parse a job's line of `qstat`: id, priority, name, owner, state.

    >>> parse_qstat("      5 0.55500 ddlrun-tra me           qw    11/21/2026 10:57:30")
    JobState(name='qw', exit_code=None, log=None)
    """
    words = line.split()
    return JobState(words[4]) if len(words) > 4 else None


@dataclass(frozen=True, slots=True)
class _Account:
    """Fields `failed` and `exit_status` of a job's accounting record."""

    failed: str
    status: str


def parse_accounting(text: str) -> JobState | None:
    r"""Parse a job's lines of the accounting file (see accounting(5)), or the output of `qacct -j`.

    The tasks that the job started on its hosts have lines, too, often seconds earlier: None until the job's own line
    is there. A restarted job has several lines of its own, and the last one counts. The exit status is a shell's.

    >>> parse_accounting("failed       37  : qmaster enforced h_rt, h_cpu, or h_vmem limit\nexit_status  137\n")
    JobState(name='ended', exit_code=124, log=None)
    """
    lines = [line.split(":") for line in text.splitlines() if line.count(":") > PE_TASK]
    account = _from_file(lines) if lines else _from_qacct(text)
    if account is None:
        return None
    if account.failed == AT_LIMIT:
        return JobState("ended", EXIT_TIMED_OUT)
    host_failed = account.failed != "0" and not int(account.status)
    return JobState("ended", EXIT_UNREACHABLE if host_failed else int(account.status))


def _from_file(lines: list[list[str]]) -> _Account | None:
    own = [line for line in lines if line[PE_TASK] == "NONE"]
    return _Account(own[-1][FAILED], own[-1][STATUS]) if own and own[-1][STATUS] else None


def _from_qacct(text: str) -> _Account | None:
    failed = re.findall(r"^failed\s+(\d+)", text, re.MULTILINE)
    statuses = re.findall(r"^exit_status\s+(\d+)", text, re.MULTILINE)
    return _Account(failed[-1] if failed else "0", statuses[-1]) if statuses else None


def _find_problems(batch: BatchJob) -> list[str]:
    if batch.gpus % batch.host_cores == 0:
        return []
    problem = f"Grid Engine counts GPUs per slot, and {batch.host_cores} slots cannot share them equally"
    remedy = "request them as your site does: --gpus 0 --scheduler-args '-l gpu=...'"
    return [f"--gpus {batch.gpus}: {problem}; {remedy}"]


SGE = Scheduler(
    name="sge",
    title="Grid Engine",
    command="qsub",
    template="sge.sh.j2",
    submit=("qsub", "-terse"),
    job_id=r"^(\d+)",
    state_queries=(
        StateQuery(("qstat", "-u", "*"), parse_qstat, r"^ *{id} .*$"),
        StateQuery(("sh", "-c", ACCOUNTING), parse_accounting),
    ),
    status=("qstat", "-j", "{id}"),
    cancel=("qdel", "{id}"),
    unknown_job=r"do not exist|not found",
    format_time=str,
    log="ddlrun-$JOB_ID.out",
    log_id=("$JOB_ID",),
    gpu_query=(("qconf", "-sc"), r"(?m)^gpu\s"),
    estimate_start=("qsub", "-w", "p"),
    find_problems=_find_problems,
    unsupported={
        "memory": "each site of Grid Engine has its own resource for it; name yours: --scheduler-args '-l h_vmem=16G'",
        # s_rt is meant for it, but version 8.1.9 then kills the job without USR1.
        "warn": "Grid Engine sends USR2 at the limit, and KILL after the queue's notify time; leave the option out, "
        "and handle USR2",
    },
)
