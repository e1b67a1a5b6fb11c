"""Flux."""

import re

from ddlrun.schedulers.submit import TERMINATED, TIME_LIMIT, JobState, Scheduler, StateQuery

RESULTS = {"COMPLETED": 0, "FAILED": None, "TIMEOUT": TIME_LIMIT, "CANCELED": TERMINATED}


def read_jobs(text: str) -> JobState | None:
    """Read a line of `flux jobs -n -o "{status}|{returncode}"`: signals are negative there, or a shell's.

    >>> read_jobs("FAILED|-9")
    JobState(word='FAILED', code=137, log=None)
    >>> read_jobs("RUN|")
    JobState(word='RUN', code=None, log=None)
    """
    match = re.search(r"^([A-Z]+)\|(-?\d*)", text, re.MULTILINE)
    if match is None:
        return None
    if match[1] not in RESULTS:
        return JobState(match[1])
    fixed = RESULTS[match[1]]
    own = int(match[2]) if match[2] else 1
    return JobState(match[1], fixed if fixed is not None else 128 - own if own < 0 else own or 1)


FLUX = Scheduler(
    name="flux",
    title="Flux",
    command="flux",
    template="flux.sh.j2",
    submit=("flux", "batch"),
    job_id=r"(\S+)\s*$",
    questions=(StateQuery(("flux", "jobs", "-n", "-o", "{status}|{returncode}", "{id}"), read_jobs),),
    status=("flux", "jobs", "{id}"),
    cancel=("flux", "cancel", "{id}"),
    gone=r"No such|not found|invalid job|unknown job",
    time=lambda seconds: f"{seconds}s",
    log="ddlrun-{{id}}.out",
    log_id=("{{id}}", "{{jobid}}"),
    gpus=(("flux", "resource", "list", "-s", "all", "-n", "-o", "{ngpus}"), r"[1-9]"),
    refuses={
        "memory": "Flux schedules no memory; leave it out",
        "requeue": "Flux starts no job again; launch's --restarts does",
    },
    forbidden=r"(?i)\n[^\w\n]*flux:",  # flux batch reads directives there, too
)
