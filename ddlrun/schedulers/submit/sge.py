"""Grid Engine, of all makers."""

import re

from ddlrun.schedulers.submit import LOST_HOST, TIME_LIMIT, BatchJob, JobState, Scheduler, StateQuery

# Fields of a line of the accounting file, from 0, and what `failed` says of a job at its time limit.
FAILED, STATUS, PE_TASK = 11, 12, 41
AT_LIMIT = "37"
ACCOUNTING = (
    r"""grep -hE '^([^:]*:){5}{id}:' "$SGE_ROOT/${SGE_CELL:-default}/common/accounting" 2>/dev/null || qacct -j {id}"""
)


def read_qstat(line: str) -> JobState | None:
    """Read a job's line of `qstat`: id, priority, name, owner, state.

    >>> read_qstat("      5 0.55500 ddlrun-tra me           qw    11/21/2026 10:57:30")
    JobState(word='qw', code=None, log=None)
    """
    words = line.split()
    return JobState(words[4]) if len(words) > 4 else None


def read_accounting(text: str) -> JobState | None:
    r"""Read a job's lines of the accounting file, as accounting(5) has them; None while the job's own is missing.

    The tasks that the job started on its hosts have lines too, often seconds before; those of a job that was started
    again all count, the last one for the exit code, which is a shell's. Where sites keep no such file: `qacct -j {id}`.

    >>> read_accounting("failed       37  : qmaster enforced h_rt, h_cpu, or h_vmem limit\nexit_status  137\n")
    JobState(word='ended', code=124, log=None)
    """
    lines = [line.split(":") for line in text.splitlines() if line.count(":") > PE_TASK]
    own = [line for line in lines if line[PE_TASK] == "NONE"]
    failed, status = (own[-1][FAILED], own[-1][STATUS]) if own else ("0", "")
    if not lines:
        failed = (re.findall(r"^failed\s+(\d+)", text, re.MULTILINE) or ["0"])[-1]
        status = (re.findall(r"^exit_status\s+(\d+)", text, re.MULTILINE) or [""])[-1]
    if not status:
        return None
    if failed == AT_LIMIT:
        return JobState("ended", TIME_LIMIT)
    lost = failed != "0" and not int(status)
    return JobState("ended", LOST_HOST if lost else int(status))


def _problems(batch: BatchJob) -> list[str]:
    if not batch.gpus % batch.host_cores:
        return []
    clash = (
        f"--gpus {batch.gpus}: Grid Engine counts GPUs a slot, and {batch.host_cores} slots cannot share them equally"
    )
    return [f"{clash}; say it as your site does: --gpus 0 --scheduler-args '-l gpu=...'"]


SGE = Scheduler(
    name="sge",
    title="Grid Engine",
    command="qsub",
    template="sge.sh.j2",
    submit=("qsub", "-terse"),
    job_id=r"^(\d+)",
    questions=(
        StateQuery(("qstat", "-u", "*"), read_qstat, r"^ *{id} .*$"),
        StateQuery(("sh", "-c", ACCOUNTING), read_accounting),
    ),
    status=("qstat", "-j", "{id}"),
    cancel=("qdel", "{id}"),
    gone=r"do not exist|not found",
    time=str,
    log="ddlrun-$JOB_ID.out",
    log_id=("$JOB_ID",),
    gpus=(("qconf", "-sc"), r"(?m)^gpu\s"),
    trial=("qsub", "-w", "p"),
    problems=_problems,
    refuses={
        "memory": "Grid Engine's resource for it is the site's; name it: --scheduler-args '-l h_vmem=16G'",
        # s_rt is meant for it, but 8.1.9 kills the job then, without a USR1.
        "warn": "Grid Engine sends USR2 at the limit, and KILL after the queue's notify; leave it out, and handle USR2",
    },
)
