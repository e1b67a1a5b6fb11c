"""OpenPBS and PBS Professional: submission and job states. Replies of Torque have the same form."""

import re

from ddlrun.errors import EXIT_SIGNAL, EXIT_TERMINATED, EXIT_TIMED_OUT
from ddlrun.schedulers.submit import JobState, Scheduler, StateQuery
from ddlrun.units import render_clock

WALLTIME_STATUS = -29  # JOB_EXEC_KILL_WALLTIME
SIGNAL_STATUS = 256  # plus the signal's number


def parse_qstat(text: str) -> JobState | None:
    r"""Parse `qstat -f`. A job that was deleted before it ran has no exit status.

    >>> parse_qstat("Job Id: 7.pbs\n    job_state = F\n    Exit_status = 271\n")
    JobState(name='F', exit_code=143, log=None)
    """
    state = re.search(r"^\s*job_state = (\w)", text, re.MULTILINE)
    if state is None:
        return None
    status = re.search(r"^\s*exit_status = (-?\d+)", text, re.MULTILINE | re.IGNORECASE)
    if state[1] not in "FC":
        return JobState(state[1])
    return JobState(state[1], _exit_code(int(status[1])) if status else EXIT_TERMINATED)


def _exit_code(status: int) -> int:
    """Convert an exit status: a signal is 256 + n there, or 128 + n already; negative ones are errors of PBS."""
    if status == WALLTIME_STATUS:
        return EXIT_TIMED_OUT
    if status < 0:
        return 1
    return status if status < SIGNAL_STATUS else EXIT_SIGNAL + status - SIGNAL_STATUS


PBS = Scheduler(
    name="pbs",
    title="PBS",
    command="qsub",
    template="pbs.sh.j2",
    submit=("qsub",),
    job_id=r"^(\d+\S*)",
    state_queries=(
        StateQuery(("qstat", "-x", "-f", "{id}"), parse_qstat),
        StateQuery(("qstat", "-f", "{id}"), parse_qstat),  # for Torque, whose -x is XML
    ),
    status=("qstat", "-x", "-f", "{id}"),
    cancel=("qdel", "{id}"),
    unknown_job="Unknown Job",
    format_time=render_clock,
    gpu_query=(("pbsnodes", "-a"), r"resources_available\.ngpus = [1-9]"),
    unsupported={"warn": "PBS sends no signal before the limit; use launch's --timeout, which ends the job itself"},
)
