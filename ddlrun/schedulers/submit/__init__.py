"""Batch jobs and the schedulers that take them: records only, nothing here starts a process."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ddlrun.topology import Topology


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job for a batch queue. None, 0 and empty fields leave the scheduler's own default."""

    topology: Topology
    command: tuple[str, ...]
    """Command line of the job, unquoted."""
    folder: str
    """Working folder, an absolute path."""
    name: str
    """Job name in the scheduler's syntax."""
    log: str | None
    seconds: int | None = None
    """Time limit."""
    queue: str | None = None
    account: str | None = None
    gpus: int = 0
    """GPUs per host."""
    exclusive: bool = False
    cores: int | None = None
    """Cores per rank."""
    memory: int | None = None
    """Memory per host, in MiB."""
    modules: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    image: str | None = None
    warn: int | None = None
    """Seconds between USR1 and the time limit."""
    requeue: bool = False
    parallel_environment: str | None = None
    directives: str | None = None
    """Options of the scheduler, copied into the script unchanged."""

    @property
    def shell(self) -> str:
        """Return the interpreter of the script: `module` is a function of login shells."""
        return "/bin/bash -l" if self.modules else "/bin/sh"

    @property
    def words(self) -> tuple[str, ...]:
        """Return the command line that replaces the script's shell: the container's and the job's."""
        return (*self.container, *self.command)

    @property
    def host_cores(self) -> int:
        """Return the cores that a host must have: one per rank by default."""
        return self.topology.ranks_per_host * (self.cores or 1)


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a submitted job."""

    name: str
    """The scheduler's own word for the state."""
    exit_code: int | None = None
    """None until the job has ended."""
    log: str | None = None
    """Path of the log, where the scheduler reports it."""


@dataclass(frozen=True, slots=True)
class StateQuery:
    """A command that prints the state of a job."""

    argv: tuple[str, ...]
    parse: Callable[[str], JobState | None]
    """Parses the output; returns None where it has no state."""
    section: str | None = None
    """Pattern of the part of the output that is about the job; None: the whole output."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler's commands and limits. In every argv `{id}` is replaced by the job's id."""

    name: str
    title: str
    command: str
    """Program that shows that the scheduler is installed."""
    template: str
    submit: tuple[str, ...]
    """Takes the script on standard input."""
    job_id: str
    """Pattern of the job's id in the output of `submit`, with one group."""
    state_queries: tuple[StateQuery, ...]
    """Run in turn until one returns a state."""
    status: tuple[str, ...]
    cancel: tuple[str, ...]
    unknown_job: str
    """Pattern of the message about a job that the scheduler does not know, or has forgotten."""
    format_time: Callable[[int], str]
    """Renders seconds."""
    log: str | None = None
    """Default of --log."""
    log_id: tuple[str, ...] = ()
    """Placeholders for the job's id in --log."""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Field of BatchJob that the scheduler cannot serve -> reason and remedy."""
    find_problems: Callable[[BatchJob], list[str]] = lambda _: []
    """Returns further problems of a job."""
    gpu_query: tuple[tuple[str, ...], str] | None = None
    """Command, and the pattern that its output matches if there are GPUs."""
    estimate_start: tuple[str, ...] | None = None
    """Prints when the script on standard input would start."""
    print_log: tuple[str, ...] | None = None
    """Prints the log, where it is not a file."""
    forbidden: str | None = None
    """Pattern that no word of the command may contain."""


def insert_job_id(argv: tuple[str, ...], job_id: str) -> tuple[str, ...]:
    """Return a command with `{id}` replaced by the job's id."""
    return tuple(word.replace("{id}", job_id) for word in argv)


def parse_state(query: StateQuery, output: str, job_id: str) -> JobState | None:
    """Return the state of a job from the output of a query, None where it has none."""
    if query.section is None:
        return query.parse(output)
    section = re.search(query.section.replace("{id}", re.escape(job_id)), output, re.MULTILINE)
    return query.parse(section[0]) if section else None
