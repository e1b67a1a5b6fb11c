"""Record of `ddlrun ps`: the type of its JSON, from which its schema is generated."""

from typing import Annotated, Any, Literal, TypedDict

from ddlrun.runs.orphans import OrphanProcess
from ddlrun.runs.registry import Run


class RunState(TypedDict):
    """The key that a run has besides those of its record."""

    alive: bool | None
    """Whether its ddlrun still runs; null if it was started on another host."""


class ProcessRole(TypedDict):
    """The key that a process has besides the fields of its record."""

    keeper: bool
    """Whether it is the keeper of a rank, which lasts no longer than its ddlrun."""


class RunsRecord(TypedDict):
    """The output of `ddlrun ps --json`: runs, and their processes on each host."""

    schema: Literal["urn:ddlrun:ps:1"]
    runs: list[Annotated[dict[str, Any], Run, RunState]]
    processes: dict[str, list[Annotated[dict[str, Any], OrphanProcess, ProcessRole]]]
    """The processes of all runs on each host."""
