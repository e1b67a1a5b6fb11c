"""The scheduler Toy: the hosts of its jobs, and their submission."""

import re
from pathlib import Path

from ddlrun.hosts import parse_hostfile
from ddlrun.schedulers import Allocation, SchedulerContext, SchedulerReader
from ddlrun.schedulers.submit import JobState, Scheduler, StateQuery
from ddlrun.units import render_clock


def read(context: SchedulerContext) -> Allocation:
    """Return the hosts of the job. Raises InputError where the file of TOY_HOSTS cannot be read."""
    job_id = context.environ["TOY_JOB"]
    hosts = parse_hostfile(context.read_variable_file("TOY_HOSTS"), f"Toy job {job_id}")
    return Allocation(scheduler="toy", job_id=job_id, hosts=hosts)


def parse_state(text: str) -> JobState | None:
    """Parse the output of `toystat ID`, such as `RUNNING` or `ENDED 0`."""
    match = re.match(r"(\w+)(?: (\d+))?", text)
    return JobState(match[1], int(match[2]) if match[2] else None) if match else None


READER = SchedulerReader(title="Toy", job_variables=(("TOY_JOB",),), read=read)

SUBMISSION = Scheduler(
    name="toy",
    title="Toy",
    command="toysub",
    template=str(Path(__file__).with_name("toy.sh.j2")),
    submit=("toysub",),
    job_id=r"^(\d+)",
    state_queries=(StateQuery(("toystat", "{id}"), parse_state),),
    status=("toystat", "{id}"),
    cancel=("toycancel", "{id}"),
    unknown_job="no such job",
    format_time=render_clock,
    log="ddlrun-%j.out",
    log_id=("%j",),
)
