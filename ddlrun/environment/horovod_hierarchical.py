"""Horovod's hierarchical settings: which do nothing in the build and the job that there are, and what does instead."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from ddlrun.environment.framework_builds import FrameworkBuild

# Horovod's settings that need something of its build or of the job, and what they do there.
HIERARCHICAL = {
    "hierarchical_allreduce": "nccl", "torus_allreduce": "nccl", "hierarchical_allgather": "gpu",
    "num_nccl_streams": "nccl",
}  # fmt: skip
HAN = {"OMPI_MCA_coll_han_priority": "100", "OMPI_MCA_coll_han_use_simple_allreduce": "1"}


class HorovodContext(NamedTuple):
    """Where Horovod is to run: hosts, have they GPUs, Open MPI's major, and who chose its collectives already."""

    hosts: int
    gpus: bool
    major: int
    chosen: str | None


def asked_hierarchical(knobs: Mapping[str, object]) -> list[str]:
    """Return the settings that are on and may have no effect."""
    return [name for name in HIERARCHICAL if knobs.get(name)]


def hierarchical(
    knobs: Mapping[str, object], builds: Mapping[str, FrameworkBuild], where: HorovodContext
) -> tuple[dict[str, str], list[str]]:
    """Return the variables that make hierarchical settings work, and notes on those that do nothing there.

    Horovod 0.28 says nothing of them (common/operations.cc): allreduce wants NCCL, several hosts and a tensor on a
    GPU; allgather a GPU build and several hosts. What is hierarchical for CPU tensors is Open MPI's own coll/han:
    4.1 has it off, and its allreduce in place fails above 64 KiB unless it is the simple one; 5.0 has it on.
    """
    variables: dict[str, str] = {}
    notes = []
    for name in asked_hierarchical(knobs):
        why = _idle(name, builds, where)
        if why is None:
            continue
        option = f"--{name.replace('_', '-')}"
        if name != "hierarchical_allreduce" or where.hosts == 1:
            notes.append(f"{option} has no effect: {why}")
        elif where.chosen is not None:
            notes.append(
                f"{option}: Horovod's own has no effect ({why}); Open MPI's coll/han is left to {where.chosen}"
            )
        else:
            variables = HAN if where.major == 4 else {}
            on = "is switched on instead" if variables else "is on by itself"
            notes.append(f"{option}: Horovod's own has no effect ({why}); Open MPI's coll/han {on}")
    return variables, notes


def _idle(name: str, builds: Mapping[str, FrameworkBuild], where: HorovodContext) -> str | None:
    """Say why a setting does nothing; None: it does something."""
    working = {library: build for library, build in builds.items() if build.works}
    if not working:
        return "; ".join(build.problem for build in builds.values() if build.problem) or "Horovod is not installed"
    has = {kind for build in working.values() for kind, on in build.has.items() if on}
    shown = next(iter(working))
    if HIERARCHICAL[name] == "nccl" and "nccl" not in has:
        return f"{shown} is built without NCCL"
    if HIERARCHICAL[name] == "gpu" and not has & {"cuda", "rocm"}:
        return f"{shown} is built without GPUs"
    if name != "num_nccl_streams" and where.hosts == 1:
        return "all ranks are on one host"
    return "the hosts have no GPUs" if HIERARCHICAL[name] == "nccl" and not where.gpus else None


def collectives_chosen(arguments: tuple[str, ...], environ: Mapping[str, str], files: Mapping[str, str]) -> str | None:
    """Say where Open MPI's coll components are chosen already; None: nowhere."""
    if any(re.match(r"coll(_han_\w+)?$", word) for word in arguments):
        return "--mpi-args"
    named = next((name for name in environ if re.match(r"OMPI_MCA_coll(_han_\w+)?$", name)), None)
    if named is not None:
        return named
    return next((path for path, text in files.items() if re.search(r"(?m)^[ \t]*coll(_han_\w+)?[ \t]*=", text)), None)
