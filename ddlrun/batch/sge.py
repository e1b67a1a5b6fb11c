"""Grid Engine, of all makers."""

import re

from ddlrun.batch import LOST_HOST, TIME_LIMIT, Batch, Question, Scheduler, State


def read_qstat(line: str) -> State | None:
    """Read a job's line of `qstat`: id, priority, name, owner, state.

    >>> read_qstat("      5 0.55500 ddlrun-tra me           qw    11/21/2026 10:57:30")
    State(word='qw', code=None, log=None)
    """
    words = line.split()
    return State(words[4]) if len(words) > 4 else None


def read_qacct(text: str) -> State | None:
    r"""Read `qacct -j {id}`: the last of a job that was started again; its exit status is a shell's.

    >>> read_qacct("failed       37  : qmaster enforced h_rt, h_cpu, or h_vmem limit\nexit_status  137\n")
    State(word='ended', code=124, log=None)
    """
    status = re.findall(r"^exit_status\s+(\d+)", text, re.MULTILINE)
    failed = re.findall(r"^failed\s+(\d+)\s*(.*)$", text, re.MULTILINE)
    if not status:
        return None
    number, why = failed[-1] if failed else ("0", "")
    if "h_rt" in why:
        return State("ended", TIME_LIMIT)
    lost = number != "0" and not int(status[-1])
    return State("ended", LOST_HOST if lost else int(status[-1]))


def _problems(batch: Batch) -> list[str]:
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
        Question(("qstat", "-u", "*"), read_qstat, r"^ *{id} .*$"),
        Question(("qacct", "-j", "{id}"), read_qacct),
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
