"""OpenPBS and PBS Professional; Torque answers alike where it is asked."""

import re

from ddlrun.schedulers.submit import TERMINATED, TIME_LIMIT, JobState, Scheduler, StateQuery, clock

WALLTIME = -29  # JOB_EXEC_KILL_WALLTIME


def read_qstat(text: str) -> JobState | None:
    r"""Read `qstat -f`: signals are 256 + n there, or 128 + n; what was deleted before it ran has no status.

    >>> read_qstat("Job Id: 7.pbs\n    job_state = F\n    Exit_status = 271\n")
    JobState(word='F', code=143, log=None)
    """
    state = re.search(r"^\s*job_state = (\w)", text, re.MULTILINE)
    if state is None:
        return None
    status = re.search(r"^\s*exit_status = (-?\d+)", text, re.MULTILINE | re.IGNORECASE)
    if state[1] not in "FC":
        return JobState(state[1])
    return JobState(state[1], _code(int(status[1])) if status else TERMINATED)


def _code(status: int) -> int:
    if status == WALLTIME:
        return TIME_LIMIT
    return 1 if status < 0 else status if status < 256 else 128 + status - 256


PBS = Scheduler(
    name="pbs",
    title="PBS",
    command="qsub",
    template="pbs.sh.j2",
    submit=("qsub",),
    job_id=r"^(\d+\S*)",
    questions=(
        StateQuery(("qstat", "-x", "-f", "{id}"), read_qstat),
        StateQuery(("qstat", "-f", "{id}"), read_qstat),  # where -x is XML, as in Torque
    ),
    status=("qstat", "-x", "-f", "{id}"),
    cancel=("qdel", "{id}"),
    gone="Unknown Job",
    time=clock,
    gpus=(("pbsnodes", "-a"), r"resources_available\.ngpus = [1-9]"),
    refuses={"warn": "PBS sends no signal before the limit; launch's --timeout ends the job by itself"},
)
