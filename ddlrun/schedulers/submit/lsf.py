"""IBM Spectrum LSF: submission and job states."""

import re

from ddlrun.errors import EXIT_TIMED_OUT
from ddlrun.schedulers.submit import JobState, Scheduler, StateQuery
from ddlrun.units import render_clock


def minutes(seconds: int) -> str:
    """Render a time as LSF's H:MM, rounded up.

    >>> minutes(5401)
    '1:31'
    """
    return render_clock(seconds + 59)[: -len(":00")]


def parse_bjobs(text: str) -> JobState | None:
    """Parse a line of `bjobs -noheader -o "stat exit_code exit_reason delimiter='|'"`.

    >>> parse_bjobs("EXIT|140|TERM_RUNLIMIT: job killed after reaching LSF run time limit")
    JobState(name='EXIT', exit_code=124, log=None)
    >>> parse_bjobs("RUN|-|-")
    JobState(name='RUN', exit_code=None, log=None)
    """
    match = re.search(r"^([A-Z]+) *\|([^|\n]*)(?:\|(.*))?$", text, re.MULTILINE)
    if match is None:
        return None
    name, code, reason = match[1], match[2].strip(), match[3] or ""
    if name == "DONE":
        return JobState(name, 0)
    if name != "EXIT":
        return JobState(name)
    if "RUNLIMIT" in reason:
        return JobState(name, EXIT_TIMED_OUT)
    return JobState(name, max(int(code), 1) if code.isdigit() else 1)


LSF = Scheduler(
    name="lsf",
    title="LSF",
    command="bsub",
    template="lsf.sh.j2",
    submit=("env", "LSB_STDOUT_DIRECT=Y", "bsub"),  # without it the log appears only when the job has ended
    job_id=r"Job <(\d+)>",
    state_queries=(
        StateQuery(("bjobs", "-noheader", "-o", "stat exit_code exit_reason delimiter='|'", "{id}"), parse_bjobs),
        # Older versions have no field exit_reason.
        StateQuery(("bjobs", "-a", "-noheader", "-o", "stat exit_code delimiter='|'", "{id}"), parse_bjobs),
    ),
    status=("bjobs", "-l", "{id}"),
    cancel=("bkill", "{id}"),
    unknown_job="is not found",
    format_time=minutes,
    log="ddlrun-%J.out",
    log_id=("%J",),
    gpu_query=(("lshosts", "-gpu"), r"(?m)^\S+\s+\d+\s"),
)
