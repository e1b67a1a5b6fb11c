"""Horovod's hierarchical settings: which have no effect in a build and a job, and what is used instead."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ddlrun.environment.framework_builds import FrameworkBuild

# Variables of Horovod's settings that depend on its build or on the job, and what they need.
HIERARCHICAL = {
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "nccl", "HOROVOD_TORUS_ALLREDUCE": "nccl",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "gpu", "HOROVOD_NUM_NCCL_STREAMS": "nccl",
}  # fmt: skip
_UNEQUAL = "the hosts have different numbers of ranks"


class HorovodContext(NamedTuple):
    """Where Horovod is to run."""

    hosts: int
    gpus: bool
    hierarchical: Mapping[str, str]
    """The variables that switch on Open MPI's coll/han; empty: it is on."""
    chosen: str | None
    """Where the user or the site has chosen Open MPI's collectives; None: nowhere."""
    unequal: bool = False
    """Whether hosts have different numbers of ranks."""


def active_hierarchical(variables: Mapping[str, str]) -> list[str]:
    """Return the variables of settings that are on and may have no effect."""
    return [name for name in HIERARCHICAL if variables.get(name, "0") != "0"]


def plan_hierarchical_variables(
    user: Mapping[str, str], builds: Mapping[str, FrameworkBuild], context: HorovodContext
) -> tuple[dict[str, str], list[str]]:
    """Return the variables that make the user's hierarchical settings work, and notes on those that have no effect.

    Horovod 0.28 ignores them silently (common/operations.cc): allreduce needs NCCL, several hosts and a tensor on
    a GPU; allgather a GPU build and several hosts. For tensors in host memory, Open MPI's coll/han is hierarchical.
    On hosts with different numbers of ranks, Horovod reduces across hosts over one rank of each, and coll/han leaves
    the work to another component.
    """
    variables: dict[str, str] = {}
    notes = []
    unknown = any(build.problem for build in builds.values()) and not any(build.works for build in builds.values())
    effect = "may have no effect" if unknown else "has no effect"
    for name in active_hierarchical(user):
        obstacle = _obstacle(name, builds, context)
        option = f"--{name.removeprefix('HOROVOD_').replace('_', '-').lower()}"
        unequal = context.unequal and name != "HOROVOD_NUM_NCCL_STREAMS"
        if obstacle is None:
            notes += [f"{option}: {_UNEQUAL}, which makes it slower; leave it out"] if unequal else []
            continue
        if unequal:
            notes.append(f"{option} {effect}: {obstacle}, and {_UNEQUAL}")
            continue
        if name != "HOROVOD_HIERARCHICAL_ALLREDUCE" or context.hosts == 1:
            notes.append(f"{option} {effect}: {obstacle}")
            continue
        if context.chosen is None:
            variables = dict(context.hierarchical)
        notes.append(f"{option}: Horovod's own {effect} ({obstacle}); Open MPI's coll/han {_han_state(context)}")
    return variables, notes


def _han_state(context: HorovodContext) -> str:
    if context.chosen is not None:
        return f"is left to {context.chosen}"
    return "is switched on instead" if context.hierarchical else "is on by itself"


def _obstacle(name: str, builds: Mapping[str, FrameworkBuild], context: HorovodContext) -> str | None:
    """Return the reason why a setting has no effect; None: it has one."""
    need = HIERARCHICAL[name]
    obstacle = _build_obstacle(need, builds)
    if obstacle is not None:
        return obstacle
    if name != "HOROVOD_NUM_NCCL_STREAMS" and context.hosts == 1:
        return "all ranks are on one host"
    return "the hosts have no GPUs" if need == "nccl" and not context.gpus else None


def _build_obstacle(need: str, builds: Mapping[str, FrameworkBuild]) -> str | None:
    """Return the reason why no build of Horovod has what a setting needs; None: one has it."""
    working = {library: build for library, build in builds.items() if build.works}
    if not working:
        return "; ".join(build.problem for build in builds.values() if build.problem) or "Horovod is not installed"
    features = {feature for build in working.values() for feature, on in build.features.items() if on}
    library = next(iter(working))
    if need == "nccl" and "nccl" not in features:
        return f"{library} is built without NCCL"
    if need == "gpu" and not features & {"cuda", "rocm"}:
        return f"{library} is built without GPUs"
    return None


def find_collectives_choice(arguments: Iterable[str], environ: Iterable[str], files: Mapping[str, str]) -> str | None:
    """Find the argument, variable or file that chooses Open MPI's coll components; None: there is none."""
    if any(re.match(r"coll(_han_\w+)?$", word) for word in arguments):
        return "--mpi-args"
    variable = next((name for name in environ if re.match(r"OMPI_MCA_coll(_han_\w+)?$", name)), None)
    if variable is not None:
        return variable
    return next((path for path, text in files.items() if re.search(r"(?m)^[ \t]*coll(_han_\w+)?[ \t]*=", text)), None)
