"""Slurm: submission and job states."""

import re

from ddlrun.errors import EXIT_KILLED, EXIT_SIGNAL, EXIT_TERMINATED, EXIT_TIMED_OUT, EXIT_UNREACHABLE
from ddlrun.schedulers.submit import JobState, Scheduler, StateQuery
from ddlrun.units import render_clock

# State of an ended job -> exit code; None: that of the job itself.
ENDED = {
    "COMPLETED": None, "FAILED": None, "TIMEOUT": EXIT_TIMED_OUT, "DEADLINE": EXIT_TIMED_OUT,
    "CANCELLED": EXIT_TERMINATED, "PREEMPTED": EXIT_TERMINATED, "OUT_OF_MEMORY": EXIT_KILLED,
    "NODE_FAIL": EXIT_UNREACHABLE, "BOOT_FAIL": EXIT_UNREACHABLE,
}  # fmt: skip


def parse_scontrol(text: str) -> JobState | None:
    """Parse a line of `scontrol show job -o`.

    >>> parse_scontrol("JobId=7 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0 StdOut=/a b.out Power=")
    JobState(name='FAILED', exit_code=3, log='/a b.out')
    """
    state = re.search(r"\bJobState=(\w+)", text)
    if state is None:
        return None
    code = re.search(r"\bExitCode=(\d+:\d+)", text)
    reason = re.search(r"\bReason=(\S+)", text)
    log = re.search(r"\bStdOut=(.+?)(?: \w+=|\n|$)", text)
    name = state[1]
    if name == "PENDING" and reason and reason[1] != "None":
        name = f"PENDING ({reason[1]})"
    return JobState(name, _exit_code(state[1], code[1] if code else ""), log[1] if log else None)


def parse_sacct(text: str) -> JobState | None:
    """Parse the output of `sacct -n -P -o State,ExitCode`; the last line counts for a restarted job.

    >>> parse_sacct("CANCELLED by 1000|0:15")
    JobState(name='CANCELLED', exit_code=143, log=None)
    """
    lines = [line for line in text.splitlines() if "|" in line]
    if not lines:
        return None
    state, _, code = lines[-1].partition("|")
    name = state.partition(" ")[0]
    return JobState(name, _exit_code(name, code))


def _exit_code(state: str, text: str) -> int | None:
    """Return the exit code of a job from its state and its "CODE:SIGNAL"; None while it has not ended."""
    if state not in ENDED:
        return None
    code = ENDED[state]
    if code is not None:
        return code
    status, _, signal = text.partition(":")
    own = EXIT_SIGNAL + int(signal) if signal.strip("0") else int(status or 0)
    return own if own or state == "COMPLETED" else 1


SLURM = Scheduler(
    name="slurm",
    title="Slurm",
    command="sbatch",
    template="slurm.sh.j2",
    submit=("sbatch", "--parsable"),
    job_id=r"^(\d+)",
    state_queries=(
        StateQuery(("scontrol", "show", "job", "-o", "{id}"), parse_scontrol),
        StateQuery(("sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j", "{id}"), parse_sacct),
    ),
    status=("squeue", "-j", "{id}"),
    cancel=("scancel", "{id}"),
    unknown_job="Invalid job id",
    format_time=render_clock,
    log="ddlrun-%j.out",
    log_id=("%j", "%J", "%A"),
    gpu_query=(("sinfo", "-h", "-o", "%G"), r"\bgpu\b"),
    estimate_start=("sbatch", "--test-only"),
)
