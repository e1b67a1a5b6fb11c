"""Follow a job that a scheduler has: its states, its log as it grows, and its exit code."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddlrun.errors import UnreachableError
from ddlrun.remote.processes import FinishedProcess, ShownCommand, begin, show
from ddlrun.schedulers.submit import JobState, Scheduler, insert_job_id, parse_state

# Seconds between two questions: schedulers have many users.
FIRST, LAST = 2.0, 10.0
# Rounds until a job counts as forgotten (accounting comes seconds later), and a scheduler as lost (ten minutes).
FORGOTTEN, LOST = 6, 60


class SubmittedJob(NamedTuple):
    """A job: who has it, its id, and where its log is, as far as known; `shown` is what was in that file before."""

    scheduler: Scheduler
    job_id: str
    log: str | None
    shown: int = 0


def follow(job: SubmittedJob, say: Callable[[str], None]) -> int:
    """Stay with a job until it has ended: `say` its states, copy its log to standard output, return its exit code.

    Raises UnreachableError where the scheduler does not know it any more, or answers no longer.
    """
    log: _LogFile | _LogCommand = _LogCommand(job) if job.scheduler.print_log else _LogFile(job.log, job.shown)
    with contextlib.closing(log):
        code = _watch(job, log, say)
        log.finish()
    return code


def _watch(job: SubmittedJob, log: "_LogFile | _LogCommand", say: Callable[[str], None]) -> int:
    state = JobState("")
    pause, silent, forgotten = FIRST, 0, 0
    while True:
        answer, (gone, words) = ask(job)
        silent, forgotten = (0, 0) if answer else (silent + 1, forgotten + gone)
        if forgotten == FORGOTTEN or silent == LOST:
            raise UnreachableError(
                f"{job.scheduler.title} says nothing of job {job.job_id} any more, so its exit code is not known"
                f" ({words}); look for it: {' '.join(insert_job_id(job.scheduler.status, job.job_id))}"
            )
        if answer is not None and answer.name != state.name:
            ended = f", exit code {answer.exit_code}" if answer.exit_code is not None else ""
            say(f"{job.scheduler.title} job {job.job_id}: {answer.name}{ended}")
            pause = FIRST
        state = answer or state
        log.look(state)
        if state.exit_code is not None:
            return state.exit_code
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            log.copy()
            time.sleep(min(1.0, left))
        pause = min(pause * 1.25, LAST)


def ask(job: SubmittedJob) -> tuple[JobState | None, tuple[bool, str]]:
    """Return a job's state, or None, whether the scheduler does not know it, and its words."""
    gone, words = False, ""
    for question in job.scheduler.state_queries:
        done = run(insert_job_id(question.argv, job.job_id))
        state = parse_state(question, done.out, job.job_id) if done.code == 0 else None
        if state is not None:
            return state, (False, "")
        said = " ".join(f"{done.out} {done.err}".split())
        gone = gone or re.search(job.scheduler.unknown_job, said) is not None
        words = words or said[:200]
    return None, (gone, words or "no answer")


def run(argv: Sequence[str], stdin: str = "") -> FinishedProcess:
    """Run a scheduler's command; a busy one may take its time."""
    return begin(argv, stdin, 60.0)()


class _LogFile:
    """A log that a file system shows us: what is new in it goes to standard output."""

    def __init__(self, path: str | None, shown: int) -> None:
        self.path = path
        self.at = shown

    def look(self, state: JobState) -> None:
        """Take the path that the scheduler names."""
        self.path = state.log or self.path

    def copy(self) -> None:
        """Copy what is new; a file that is not there (yet), or not to us, has nothing."""
        new = b""
        with contextlib.suppress(OSError), open(self.path or "", "rb") as file:
            self.at = 0 if os.fstat(file.fileno()).st_size < self.at else self.at  # it was begun anew
            file.seek(self.at)
            new = file.read()
        self.at += len(new)
        while new:
            new = new[os.write(1, new) :]

    def finish(self) -> None:
        """Copy the rest; a shared file system shows the last lines late."""
        self.copy()
        time.sleep(1.0)
        self.copy()

    def close(self) -> None:
        """Nothing is open."""


class _LogCommand:
    """A log that a command prints for as long as the job runs."""

    def __init__(self, job: SubmittedJob) -> None:
        self.argv = insert_job_id(job.scheduler.print_log or (), job.job_id)
        self.shown: ShownCommand | None = None
        self.began = 0.0
        self.since: str | None = None

    def look(self, state: JobState) -> None:
        """Start it when there is something to show, and again where the connection broke."""
        self.copy()
        if self.shown is None and (state.name == "Running" or (state.exit_code is not None and self.since is None)):
            self.began = time.monotonic()
            self.shown = show((*self.argv, *((f"--since-time={self.since}",) if self.since else ())))

    def copy(self) -> None:
        """Notice its end: what it has shown is not shown again."""
        code = self.shown.wait(0) if self.shown is not None else None
        if code is not None:
            self.shown = None
            if not code or time.monotonic() - self.began > FIRST * 2:
                self.since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def finish(self) -> None:
        """Let it print the rest."""
        if self.shown is not None and self.shown.wait(10.0) is not None:
            self.shown = None

    def close(self) -> None:
        """End it."""
        if self.shown is not None:
            self.shown.end()
