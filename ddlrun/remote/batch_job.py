"""A batch job that a scheduler runs: follow its states and its log, and return its exit code."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddlrun.errors import UnreachableError
from ddlrun.remote.processes import FinishedProcess, start_command
from ddlrun.schedulers.submit import JobState, Scheduler, insert_job_id, parse_state

COMMAND_SECONDS = 60.0
# Queries until a job counts as forgotten (accounting comes seconds later), and a scheduler as lost (ten minutes).
MOST_FORGOTTEN, MOST_SILENT = 6, 60
LAST_OUTPUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds between two queries, which grow, as schedulers have many users; and between two copies of the log."""

    first: float = 2.0
    longest: float = 10.0
    growth: float = 1.25
    copy: float = 1.0


INTERVALS = Intervals()


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that was submitted."""

    scheduler: Scheduler
    job_id: str
    log: str | None
    """The path of its log, if known."""
    shown: int = 0
    """The size of that file before the job."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The reply of a scheduler to the queries for a job's state."""

    state: JobState | None
    """None: no query was answered."""
    forgotten: bool = False
    """Whether the scheduler does not know the job."""
    text: str = ""
    """The output of the first query that was not answered."""


def follow(job: SubmittedJob, report: Callable[[str], None], intervals: Intervals = INTERVALS) -> int:
    """Follow a job to its end: report its states, copy its log to standard output, return its exit code.

    Raises UnreachableError where the scheduler has forgotten the job, or replies no longer.
    """
    log = _LogCommand(job, intervals) if job.scheduler.print_log else _LogFile(job, intervals)
    with contextlib.closing(log):
        code = _follow_states(job, log, report, intervals)
        log.finish()
    return code


def _follow_states(
    job: SubmittedJob, log: "_LogFile | _LogCommand", report: Callable[[str], None], intervals: Intervals
) -> int:
    """Report each new state until the job has ended; return its exit code."""
    state = JobState("")
    pause, silent, forgotten = intervals.first, 0, 0
    while True:
        result = query(job)
        if result.state is None:
            silent += 1
            forgotten += int(result.forgotten)
        else:
            silent = forgotten = 0
        if forgotten == MOST_FORGOTTEN or silent == MOST_SILENT:
            raise UnreachableError(
                f"{job.scheduler.title} says nothing of job {job.job_id} any more, so its exit code is not known"
                f" ({result.text}); look for it: {' '.join(insert_job_id(job.scheduler.status, job.job_id))}"
            )
        if result.state is not None and result.state.name != state.name:
            code = f", exit code {result.state.exit_code}" if result.state.exit_code is not None else ""
            report(f"{job.scheduler.title} job {job.job_id}: {result.state.name}{code}")
            pause = intervals.first
        state = result.state or state
        log.update(state)
        if state.exit_code is not None:
            return state.exit_code
        _copy_for(pause, log, intervals.copy)
        pause = min(pause * intervals.growth, intervals.longest)


def _copy_for(seconds: float, log: "_LogFile | _LogCommand", interval: float) -> None:
    """Copy the log at least once, and as it grows for some seconds."""
    end = time.monotonic() + seconds
    log.copy()
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(min(interval, remaining))
        log.copy()


def query(job: SubmittedJob) -> QueryResult:
    """Query the scheduler for a job's state, by one command after the other until one knows."""
    forgotten, text = False, ""
    for state_query in job.scheduler.state_queries:
        done = run(insert_job_id(state_query.argv, job.job_id))
        state = parse_state(state_query, done.out, job.job_id) if done.code == 0 else None
        if state is not None:
            return QueryResult(state)
        output = " ".join(f"{done.out} {done.err}".split())
        forgotten = forgotten or re.search(job.scheduler.unknown_job, output) is not None
        text = text or output[:200]
    return QueryResult(None, forgotten, text or "no answer")


def run(argv: Sequence[str], stdin: str = "") -> FinishedProcess:
    """Run a scheduler's command, with time for a busy one."""
    return start_command(argv, stdin, COMMAND_SECONDS)()


class _LogFile:
    """A log file that this machine can read; additions are copied to standard output."""

    def __init__(self, job: SubmittedJob, intervals: Intervals) -> None:
        self._path = job.log
        self._offset = job.shown
        self._last_lines_seconds = intervals.copy

    def update(self, state: JobState) -> None:
        """Use the path that the scheduler reports."""
        self._path = state.log or self._path

    def copy(self) -> None:
        """Copy the additions; a file that does not exist (yet) or cannot be read has none."""
        addition = b""
        with contextlib.suppress(OSError), open(self._path or "", "rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:  # it was started again
                self._offset = 0
            file.seek(self._offset)
            addition = file.read()
        self._offset += len(addition)
        while addition:
            addition = addition[os.write(1, addition) :]

    def finish(self) -> None:
        """Copy the rest; a shared file system shows the last lines late."""
        self.copy()
        time.sleep(self._last_lines_seconds)
        self.copy()

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""


class _LogCommand:
    """A command that prints the log as long as the job runs."""

    def __init__(self, job: SubmittedJob, intervals: Intervals) -> None:
        self._failed_start_seconds = intervals.first * 2
        self._argv = insert_job_id(job.scheduler.print_log or (), job.job_id)
        self._command: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._printed_until: str | None = None

    def update(self, state: JobState) -> None:
        """Start the command when there is something to print, and again when its connection broke."""
        self.copy()
        ended_unseen = state.exit_code is not None and self._printed_until is None
        if self._command is None and (state.name == "Running" or ended_unseen):
            self._started_at = time.monotonic()
            since = (f"--since-time={self._printed_until}",) if self._printed_until else ()
            with contextlib.suppress(OSError):
                self._command = subprocess.Popen(  # noqa: S603 - argv lists, no shell
                    (*self._argv, *since), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )

    def copy(self) -> None:
        """Check for the end of the command; a new one leaves out what was printed."""
        code = self._command.poll() if self._command is not None else None
        if code is not None:
            self._command = None
            if not code or time.monotonic() - self._started_at > self._failed_start_seconds:
                self._printed_until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def finish(self) -> None:
        """Wait for the rest of the output."""
        if self._command is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._command.wait(LAST_OUTPUT_SECONDS)

    def close(self) -> None:
        """Kill the command."""
        if self._command is not None:
            self._command.kill()
            self._command.wait()
