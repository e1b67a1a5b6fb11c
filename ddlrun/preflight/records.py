"""Records of `ddlrun check`: the types of its JSON objects, the source of its schema."""

from typing import Annotated, Literal, TypedDict

from ddlrun.preflight.findings import Level


class FindingRecord(TypedDict):
    """The result of one check of one host."""

    host: str
    check: str
    """Name of the check, as for --checks."""
    code: str
    """Code of the result: passed, unreachable, ..."""
    level: Annotated[str, Level]
    message: str
    """The problem, or "ok"."""
    remedy: str
    """How to correct it; empty if there is nothing to correct."""


class RejectedSubnetRecord(TypedDict):
    """A subnet that is not used."""

    subnet: str
    reason: str


class NetworkRecord(TypedDict):
    """The network that a job would use."""

    subnets: list[str]
    """Its subnets; empty if the choice is left to MPI."""
    interfaces: dict[str, list[str]]
    """Its interfaces on each host."""
    addresses: dict[str, str]
    """The address of each host on it."""
    reason: str
    rejected: list[RejectedSubnetRecord]


class CheckRecord(TypedDict):
    """The output of `ddlrun check --json`: the results of all checks on all hosts."""

    schema: Literal["urn:ddlrun:check:1"]
    exit_code: int
    """0; 3 if a host cannot be reached; 5 if another check failed."""
    network: NetworkRecord | None
    """Null with fewer than two hosts."""
    findings: list[FindingRecord]
