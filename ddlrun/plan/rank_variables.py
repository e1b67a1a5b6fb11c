"""The variables that each rank finds, as its keeper will set them."""

from collections.abc import Mapping

from ddlrun.environment.secrets import redact
from ddlrun.keeper.binding import VISIBLE_GPUS, RankBinding, binding_values, parse_binding
from ddlrun.keeper.framework_environment import framework_values
from ddlrun.mapping.placement import PlacedRank
from ddlrun.plan.plan import Plan

# Encodings that the keeper of a rank decodes.
INTERNAL = frozenset(
    f"DDLRUN_{name}"
    for name in (
        *("OWN", "WORKERS", "PORTS", "SEATS", "SPARES", "NARROW", "IFNAMES", "PATH"),
        *("RANK_VARIABLES", "STARTED_BY", "PMI", "STRICT_BINDING", "STDIN"),
    )
)


def shared_variables(plan: Plan) -> dict[str, str]:
    """Return the variables that ddlrun sets to the same value for all ranks; secrets are redacted."""
    variables = {
        name: value
        for name, value in sorted(plan.variables)
        if name not in INTERNAL and not name.startswith(plan.manager.private)
    }
    return redact(variables)


def own_variables(plan: Plan, environ: Mapping[str, str], placed: PlacedRank) -> dict[str, str]:
    """Return the variables that one rank has for itself; `environ` is ddlrun's own environment."""
    inherited = {name: environ[name] for name in plan.exports if name in environ}
    variables = {**inherited, **dict(plan.variables)}
    size, local_rank, host = plan.placement.topology.size, placed.binding.local_rank, placed.host.name
    numbers = map(str, (placed.rank, local_rank, size))
    own = dict(zip(plan.manager.rank_variables, numbers, strict=True)) if plan.manager.mpi_library else {}
    planned = parse_binding(variables, placed.rank, local_rank, size)
    if planned is not None:
        own |= binding_values(variables, planned, host=host, rank=placed.rank, size=size)
        own |= _visible_gpus(planned)
    own |= framework_values(variables, placed.rank, local_rank, size)
    return redact(dict(sorted(own.items())))


def _visible_gpus(planned: RankBinding) -> dict[str, str]:
    """Return the variable that selects a rank's GPUs. Their UUIDs are known on their host alone."""
    if not planned.gpus:
        return {}
    gpus = [gpu if gpu.isdigit() else f"<UUID of {gpu}>" for gpu in planned.gpus]
    return {VISIBLE_GPUS.get(planned.vendor, "ZE_AFFINITY_MASK"): ",".join(gpus)}
