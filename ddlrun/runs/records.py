"""Records of runs: the types of their JSON, from which its schemas are generated."""

from typing import Annotated, Any, Literal, TypedDict

from ddlrun.runs.orphans import OrphanProcess
from ddlrun.runs.registry import Run


class ProcessRole(TypedDict):
    """The key that a process has besides the fields of its record."""

    keeper: bool
    """Whether it is the keeper of a rank, which lasts no longer than its ddlrun."""


class StartSchema(TypedDict):
    """The keys that run.json has besides those of the run's record."""

    arguments: list[str]
    """The words after `ddlrun launch`; secret values are <redacted>."""
    working_folder: str
    """The folder in which ddlrun was started."""


StartRecord = Annotated[dict[str, Any], Run, StartSchema]


class PastRunRecord(TypedDict):
    """A run with its start, and its end if it has ended."""

    run: str
    """The run's name."""
    state: Literal["running", "succeeded", "failed", "ended", "lost", "unknown"]
    """ended: by a user, the scheduler or a time limit; lost: its ddlrun was killed; unknown: it was
    started on another host and has no outcome."""
    exit_code: int | None
    """The exit code of ddlrun; null without an outcome."""
    started: float
    """Seconds since 1970."""
    seconds: float | None
    """The duration so far; null if it is not known."""
    ranks: int
    """The number of ranks."""
    hosts: list[str]
    pid: int
    """ddlrun's own process."""
    host: str
    """The host of that process."""
    program: list[str]
    arguments: list[str]
    """The words after `ddlrun launch`; secret values are <redacted>."""
    working_folder: str
    """The folder in which ddlrun was started."""
    run_dir: str
    """The run folder."""


class SearchedProcesses(TypedDict, total=False):
    """The part of `ddlrun runs --json` that is absent without --processes and -H."""

    processes: dict[str, list[Annotated[dict[str, Any], OrphanProcess, ProcessRole]]]
    """The processes of all runs on each host."""


class RunsRecord(SearchedProcesses):
    """The output of `ddlrun runs --json`: runs, the running ones first."""

    runs: list[PastRunRecord]
