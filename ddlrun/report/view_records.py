"""Records of `ddlrun show` and `ddlrun config`: types of JSON objects, from which their schemas are generated."""

from typing import Any, TypedDict


class RankfileRecord(TypedDict):
    """The output of `ddlrun show rankfile --json`: the rank file."""

    rankfile: str
    """The text of the file."""


class CommandRecord(TypedDict):
    """The output of `ddlrun show command --json`: the command that launch runs."""

    argv: list[str]
    """The words of the command."""
    variables: dict[str, str]
    """Variables that ddlrun sets; secret values are <redacted>."""


class RankVariablesRecord(TypedDict):
    """The variables that one rank has for itself."""

    rank: int
    host: str
    variables: dict[str, str]


class EnvironmentRecord(TypedDict):
    """The output of `ddlrun show env --json`: the variables of the ranks."""

    set: dict[str, str]
    """Variables that ddlrun sets; secret values are <redacted>."""
    set_by_rank: list[str]
    """Variables whose value differs between ranks."""
    passed_on: list[str]
    """Variables that ranks get from the environment of ddlrun."""
    removed: list[str]
    """Variables that are removed from the environment of the process manager."""
    ranks: list[RankVariablesRecord]
    """The first 16 ranks, or those of --ranks."""


class HostRanksRecord(TypedDict):
    """A host with its ranks."""

    name: str
    slots: int | None
    """Number of ranks that the host takes; null if not given."""
    rack: str
    """Name or number of its rack."""
    coords: list[int]
    """Coordinates of the host: Y, Z, and A if there are aisles."""
    ranks: list[int]


class HostsRecord(TypedDict):
    """The output of `ddlrun show hosts --json`: the hosts with their ranks and racks."""

    source: str
    """The source of the list of hosts."""
    launcher: str
    """The program that starts the daemons, and the reason for it."""
    notes: list[str]
    hosts: list[HostRanksRecord]


class RackRecord(TypedDict):
    """The hosts of a rack."""

    rack: str | None
    """The name of the rack; null if no racks are declared."""
    hosts: list[str]


class TopologyRecord(TypedDict):
    """The output of `ddlrun show topology --json`: XxYxZ, and the reason for it."""

    topology: str
    """XxYxZ; for hosts with different numbers of ranks a sum, such as 4+2."""
    dims: list[int]
    """X, Y, Z, and A if there are aisles; empty for hosts with different numbers of ranks."""
    ranks_per_host: list[int]
    """The number of ranks of each host."""
    reason: str
    racks: list[RackRecord]
    source: str
    """The source of the list of hosts."""
    notes: list[str]


class SchemasRecord(TypedDict):
    """The output of `ddlrun show schema --json`: the published schemas."""

    schemas: dict[str, str]
    """The description of each schema, by its name."""


class OptionRecord(TypedDict):
    """An option of a launch."""

    option: str
    value: Any
    """None: not given, and without a default."""
    source: str
    """The kind of source, as in the table of precedence."""
    place: str | None
    """The file, the line and the key, or the environment variable; None: the command line, or ddlrun's default."""


class ConfigRecord(TypedDict):
    """The output of `ddlrun config show --json`."""

    files: list[str]
    """The config files, each of which overrides those before it."""
    options: list[OptionRecord]
    profiles: list[str]
    """The hosts and files of the profiles of ddlrun network tune that --profile auto uses there."""
    env: list[str]
    """Variables of the ranks from these files and DDLRUN_ENV; secret values are <redacted>."""
