"""Flux: submission and job states."""

import re

from ddlrun.errors import EXIT_SIGNAL, EXIT_TERMINATED, EXIT_TIMED_OUT
from ddlrun.schedulers.submit import JobState, Scheduler, StateQuery

# Result -> exit code; None: that of the job itself.
RESULTS = {"COMPLETED": 0, "FAILED": None, "TIMEOUT": EXIT_TIMED_OUT, "CANCELED": EXIT_TERMINATED}


def parse_jobs(text: str) -> JobState | None:
    """Parse a line of `flux jobs -n -o "{status}|{returncode}"`: a signal is negative, or 128 + n as in a shell.

    >>> parse_jobs("FAILED|-9")
    JobState(name='FAILED', exit_code=137, log=None)
    >>> parse_jobs("RUN|")
    JobState(name='RUN', exit_code=None, log=None)
    """
    match = re.search(r"^([A-Z]+)\|(-?\d*)", text, re.MULTILINE)
    if match is None:
        return None
    if match[1] not in RESULTS:
        return JobState(match[1])
    exit_code = RESULTS[match[1]]
    return JobState(match[1], _failure_code(match[2]) if exit_code is None else exit_code)


def _failure_code(text: str) -> int:
    """Return the exit code of a failed job, at least 1."""
    code = int(text) if text else 1
    return EXIT_SIGNAL - code if code < 0 else max(code, 1)


FLUX = Scheduler(
    name="flux",
    title="Flux",
    command="flux",
    template="flux.sh.j2",
    submit=("flux", "batch"),
    job_id=r"(\S+)\s*$",
    state_queries=(StateQuery(("flux", "jobs", "-n", "-o", "{status}|{returncode}", "{id}"), parse_jobs),),
    status=("flux", "jobs", "{id}"),
    cancel=("flux", "cancel", "{id}"),
    unknown_job=r"No such|not found|invalid job|unknown job",
    format_time=lambda seconds: f"{seconds}s",
    log="ddlrun-{{id}}.out",
    log_id=("{{id}}", "{{jobid}}"),
    gpu_query=(("flux", "resource", "list", "-s", "all", "-n", "-o", "{ngpus}"), r"[1-9]"),
    unsupported={
        "memory": "Flux does not schedule memory; leave the option out",
        "requeue": "Flux does not restart jobs; use launch's --restarts",
    },
    forbidden=r"(?i)\n[^\w\n]*flux:",  # flux batch reads directives on such lines, too
)
