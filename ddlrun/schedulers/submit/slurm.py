"""Slurm."""

import re

from ddlrun.schedulers.submit import KILLED, LOST_HOST, TERMINATED, TIME_LIMIT, JobState, Scheduler, StateQuery, clock

# State -> exit code; None: the job's own.
ENDED = {
    "COMPLETED": None, "FAILED": None, "TIMEOUT": TIME_LIMIT, "DEADLINE": TIME_LIMIT, "CANCELLED": TERMINATED,
    "PREEMPTED": TERMINATED, "OUT_OF_MEMORY": KILLED, "NODE_FAIL": LOST_HOST, "BOOT_FAIL": LOST_HOST,
}  # fmt: skip


def read_scontrol(text: str) -> JobState | None:
    """Read a line of `scontrol show job -o`.

    >>> read_scontrol("JobId=7 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0 StdOut=/a b.out Power=")
    JobState(word='FAILED', code=3, log='/a b.out')
    """
    state, code = re.search(r"\bJobState=(\w+)", text), re.search(r"\bExitCode=(\d+:\d+)", text)
    reason = re.search(r"\bReason=(\S+)", text)
    log = re.search(r"\bStdOut=(.+?)(?: \w+=|\n|$)", text)
    if state and state[1] == "PENDING" and reason and reason[1] != "None":
        return JobState(f"PENDING ({reason[1]})", None, log[1] if log else None)
    return _state(state[1], code[1] if code else "", log[1] if log else None) if state else None


def read_sacct(text: str) -> JobState | None:
    """Read a line of `sacct -n -P -o State,ExitCode`, the last of a job that was started again.

    >>> read_sacct("CANCELLED by 1000|0:15")
    JobState(word='CANCELLED', code=143, log=None)
    """
    lines = [line for line in text.splitlines() if "|" in line]
    if not lines:
        return None
    word, _, code = lines[-1].partition("|")
    return _state(word.partition(" ")[0], code, None)


def _state(word: str, code: str, log: str | None) -> JobState:
    if word not in ENDED:
        return JobState(word, None, log)
    own, _, signal = code.partition(":")
    ended = 128 + int(signal) if signal.strip("0") else int(own or 0)
    fixed = ENDED[word]
    return JobState(word, fixed if fixed is not None else ended or int(word != "COMPLETED"), log)


SLURM = Scheduler(
    name="slurm",
    title="Slurm",
    command="sbatch",
    template="slurm.sh.j2",
    submit=("sbatch", "--parsable"),
    job_id=r"^(\d+)",
    questions=(
        StateQuery(("scontrol", "show", "job", "-o", "{id}"), read_scontrol),
        StateQuery(("sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j", "{id}"), read_sacct),
    ),
    status=("squeue", "-j", "{id}"),
    cancel=("scancel", "{id}"),
    gone="Invalid job id",
    time=clock,
    log="ddlrun-%j.out",
    log_id=("%j", "%J", "%A"),
    gpus=(("sinfo", "-h", "-o", "%G"), r"\bgpu\b"),
    trial=("sbatch", "--test-only"),
)
