"""What a batch job asks for, and what a scheduler is to ddlrun: values alone, no processes."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ddlrun.topology import Topology


class BatchJob(NamedTuple):
    """A job for a batch queue. None, 0 and empty: the scheduler's own default.

    `command` is what the job runs, its words as they are; `folder` is where (an absolute path); `name`
    fits the scheduler; `seconds` is the time limit; `gpus` and `memory` (MiB) are a host's; `cores` are a
    rank's; `warn` is how many seconds before the limit USR1 comes; `directives` goes into the script as it is.
    """

    topology: Topology
    command: tuple[str, ...]
    folder: str
    name: str
    log: str | None
    seconds: int | None = None
    queue: str | None = None
    account: str | None = None
    gpus: int = 0
    exclusive: bool = False
    cores: int | None = None
    memory: int | None = None
    modules: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    image: str | None = None
    warn: int | None = None
    requeue: bool = False
    parallel_environment: str | None = None
    directives: str | None = None

    @property
    def shell(self) -> str:
        """What the script's first line names: `module` is a function that login shells have."""
        return "/bin/bash -l" if self.modules else "/bin/sh"

    @property
    def words(self) -> tuple[str, ...]:
        """What the script becomes: the container's command and ddlrun's."""
        return (*self.container, *self.command)

    @property
    def host_cores(self) -> int:
        """Cores that a host must have: one a rank where nothing is said."""
        return self.topology.accelerators * (self.cores or 1)


class JobState(NamedTuple):
    """What a scheduler says of a job: its own word, the exit code once it has ended, the log if it names one."""

    word: str
    code: int | None = None
    log: str | None = None


class StateQuery(NamedTuple):
    """A command that tells a job's state, and how its output is read (None: it does not say).

    `part` matches what of the output is about the job; none: all of it is.
    """

    argv: tuple[str, ...]
    read: Callable[[str], JobState | None]
    part: str | None = None


class Scheduler(NamedTuple):
    """One scheduler. In every argv the word part `{id}` stands for the job.

    `submit` takes the script on standard input; `job_id` finds the id in what it prints (one group);
    `questions` are asked in turn until one knows; `gone` matches what is said of a job that is not known
    (any more); `log` is the default for --log and `log_id` what stands for the id there; `time` renders
    seconds; `refuses` says for a field of Batch why it cannot be had and what to do, `problems`
    finds what else is wrong with one; `gpus` asks whether
    there are any and matches where there are; `trial` asks when the script would start;
    `stream` prints a log that is no file; `forbidden` matches what no word of the command may hold.
    """

    name: str
    title: str
    command: str
    template: str
    submit: tuple[str, ...]
    job_id: str
    questions: tuple[StateQuery, ...]
    status: tuple[str, ...]
    cancel: tuple[str, ...]
    gone: str
    time: Callable[[int], str]
    log: str | None = None
    log_id: tuple[str, ...] = ()
    refuses: Mapping[str, str] = {}
    problems: Callable[[BatchJob], list[str]] = lambda _: []
    gpus: tuple[tuple[str, ...], str] | None = None
    trial: tuple[str, ...] | None = None
    stream: tuple[str, ...] | None = None
    forbidden: str | None = None


# Exit codes of jobs that another ended: as launch's own, and as a shell's.
TIME_LIMIT, LOST_HOST, KILLED, TERMINATED = 124, 3, 137, 143


def clock(seconds: int) -> str:
    """Render a time as H:MM:SS.

    >>> clock(5400)
    '1:30:00'
    """
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def filled(argv: tuple[str, ...], job_id: str) -> tuple[str, ...]:
    """Return a command with the job's id in its place."""
    return tuple(word.replace("{id}", job_id) for word in argv)


def understood(question: StateQuery, text: str, job_id: str) -> JobState | None:
    """Return what the answer to a question says of a job."""
    if question.part is None:
        return question.read(text)
    part = re.search(question.part.replace("{id}", re.escape(job_id)), text, re.MULTILINE)
    return question.read(part[0]) if part else None
