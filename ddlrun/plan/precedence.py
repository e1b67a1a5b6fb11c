"""Precedence: which variable wins over which, and which option over which.

docs/reference/precedence.md shows these tables.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ddlrun.environment.open_mpi import MCA, PRRTE


class EnvironmentLayer(NamedTuple):
    """A source of variables for the ranks."""

    name: str
    variables: str
    """What the layer sets, as docs/reference/precedence.md has it."""
    yields: bool
    """Whether a variable of ddlrun's own environment stays as it is; otherwise the layer replaces it."""


# From the lowest to the highest: a layer wins over those before it.
ENVIRONMENT_LAYERS = (
    EnvironmentLayer("network", "The subnet or the interfaces of MPI, NCCL, Gloo and UCX", yields=True),
    EnvironmentLayer(
        "rendezvous",
        "Where ranks meet: `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_*`, `ROLE_NAME`, `JAX_COORDINATOR_ADDRESS`; "
        "exported ones stay, except loopback addresses in a job over several hosts",
        yields=False,
    ),
    EnvironmentLayer(
        "frameworks",
        "What each rank needs to set the variables of its frameworks: `DDLRUN_OWN`, `DDLRUN_WORKERS`, `DDLRUN_PORTS`",
        yields=False,
    ),
    EnvironmentLayer(
        "collectives",
        f"`coll/han` in place of Horovod's hierarchical allreduce: `{MCA}coll_han_*`",
        yields=True,
    ),
    EnvironmentLayer(
        "profile", "What `ddlrun network tune` measured as best: Horovod's variables, `DDLRUN_DDL_TUNING`", yields=True
    ),
    EnvironmentLayer("mpi4py", "The MPI library that belongs to mpirun: `MPI4PY_LIBMPI`", yields=True),
    EnvironmentLayer("daemons", f"How mpirun starts its daemons: `{MCA}plm_*`, `{PRRTE}*`, `SLURM_*`", yields=False),
    EnvironmentLayer(
        "defaults", f"`DDL_OPTIONS` without `--mode`, `PYTHONUNBUFFERED`, `{MCA}mpi_yield_when_idle`", yields=True
    ),
    EnvironmentLayer(
        "job",
        "Topology, places and threads of the ranks: `DDLRUN_*`, `OMP_*`, `DDL_OPTIONS` with `--mode`",
        yields=False,
    ),
    EnvironmentLayer("user", "Your own variables, see below", yields=False),
    EnvironmentLayer(
        "transport", "`--tcp`; without it, the components of MPI that start fast, where you chose none", yields=False
    ),
)

# Within the layer "user", from the lowest to the highest.
USER_VARIABLES = (
    "Horovod's options in the help of launch",
    "env in the config files, and DDLRUN_ENV",
    "--env NAME=VALUE",
)

# From the lowest to the highest: an option has its value from the last of these that gives one.
OPTION_SOURCES = (
    "ddlrun's default",
    "the user's config file",
    "the project's config file",
    "--config-file",
    "DDLRUN_OPTION in the environment",
    "the command line",
)
DEFAULT, USER_FILE, PROJECT_FILE, NAMED_FILE, VARIABLE, COMMAND_LINE = OPTION_SOURCES


class OptionGroup(NamedTuple):
    """Options that say the same thing in different ways: one from a higher source hides the others."""

    name: str
    parameters: tuple[str, ...]


EXCLUSIVE_GROUPS = (
    OptionGroup("hosts", ("hosts", "hostfile")),
    OptionGroup("shape", ("topology", "ranks_per_host", "nodes", "racks", "aisles", "processes")),
)

# From the highest to the lowest: the hosts come from the first of these that gives any.
HOST_SOURCES = (
    "--hosts or --hostfile",
    "the hosts of --rankfile",
    "the scheduler's job",
    "the hosts of --machine DIR",
    "this machine",
)

# From the highest to the lowest: the rank order comes from the first of these that applies.
RANK_ORDER_SOURCES = (
    "--rank-order",
    "--mode or --framework ddl",
    "the scheduler's job",
    "contiguous on each host",
)


def merge_layers(layers: Mapping[str, Mapping[str, str]], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of all layers, by name of layer; `environ` is ddlrun's own environment."""
    merged: dict[str, str] = {}
    for layer in ENVIRONMENT_LAYERS:
        variables = layers[layer.name]
        merged |= {name: value for name, value in variables.items() if not (layer.yields and name in environ)}
    return merged
