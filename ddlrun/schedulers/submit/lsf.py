"""IBM Spectrum LSF."""

import re

from ddlrun.schedulers.submit import TIME_LIMIT, JobState, Scheduler, StateQuery


def minutes(seconds: int) -> str:
    """Render a time as LSF's H:MM, rounded up.

    >>> minutes(5401)
    '1:31'
    """
    whole = -(-seconds // 60)
    return f"{whole // 60}:{whole % 60:02}"


def read_bjobs(text: str) -> JobState | None:
    """Read a line of `bjobs -noheader -o "stat exit_code exit_reason delimiter='|'"`.

    >>> read_bjobs("EXIT|140|TERM_RUNLIMIT: job killed after reaching LSF run time limit")
    JobState(word='EXIT', code=124, log=None)
    >>> read_bjobs("RUN|-|-")
    JobState(word='RUN', code=None, log=None)
    """
    match = re.search(r"^([A-Z]+) *\|([^|\n]*)(?:\|(.*))?$", text, re.MULTILINE)
    if match is None:
        return None
    word, code, reason = match[1], match[2].strip(), match[3] or ""
    if word == "DONE":
        return JobState(word, 0)
    if word != "EXIT":
        return JobState(word)
    return JobState(word, TIME_LIMIT if "RUNLIMIT" in reason else int(code) if code.isdigit() and int(code) else 1)


LSF = Scheduler(
    name="lsf",
    title="LSF",
    command="bsub",
    template="lsf.sh.j2",
    submit=("env", "LSB_STDOUT_DIRECT=Y", "bsub"),  # else the log comes when the job has ended
    job_id=r"Job <(\d+)>",
    questions=(
        StateQuery(("bjobs", "-noheader", "-o", "stat exit_code exit_reason delimiter='|'", "{id}"), read_bjobs),
        # Older ones do not know exit_reason.
        StateQuery(("bjobs", "-a", "-noheader", "-o", "stat exit_code delimiter='|'", "{id}"), read_bjobs),
    ),
    status=("bjobs", "-l", "{id}"),
    cancel=("bkill", "{id}"),
    gone="is not found",
    time=minutes,
    log="ddlrun-%J.out",
    log_id=("%J",),
    gpus=(("lshosts", "-gpu"), r"(?m)^\S+\s+\d+\s"),
)
