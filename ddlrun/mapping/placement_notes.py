"""Notes on what a user may not expect of a placement: idle packages, GPUs without a rank, shared GPUs."""

from collections.abc import Iterator, Mapping, Sequence

from ddlrun.hosts import fold
from ddlrun.machine import UNCHECKED_NOTES, Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.mapping.share_notes import share_notes
from ddlrun.mapping.slots import unused_slots
from ddlrun.ranges import render_ranges
from ddlrun.wording import counted


def placement_notes(placement: Placement) -> list[str]:
    """Return the notes on a placement and on its machines; equal hosts share a line."""
    lines: list[str] = []
    for indexes, machine, bindings in placement.groups():
        notes = [*map(str, machine.notes), *_distant_gpus(bindings), *_idle_packages(machine, bindings)]
        notes += [*_shared_cores(bindings, placement.policy), *_taken_notes(machine, bindings, placement.policy)]
        notes += [*_gpu_notes(machine, bindings), *share_notes(machine, bindings, placement.policy)]
        names = fold(placement.hosts.names[index] for index in indexes) if notes else ""
        lines += (f"{names}: {note}" for note in notes)
    return [*lines, *unused_slots(placement)]


def unchecked_notes(machines: Mapping[str, Machine]) -> list[str]:
    """Return the notes on machines that may be larger than described; hosts with the same note share a line."""
    hosts: dict[str, list[str]] = {}
    for name, machine in machines.items():
        for note in machine.notes:
            if note.code in UNCHECKED_NOTES:
                hosts.setdefault(str(note), []).append(name)
    return [f"{fold(names)}: {note}" for note, names in hosts.items()]


def _distant_gpus(bindings: Sequence[LocalRankPlacement]) -> Iterator[str]:
    for binding in bindings:
        packages = {core.package for core in binding.cores}
        if binding.gpu is not None and binding.gpu.package is not None and binding.gpu.package not in packages:
            listed = ",".join(map(str, sorted(packages)))
            yield f"local rank {binding.local_rank} is on package {listed}, its GPU on package {binding.gpu.package}"


def _idle_packages(machine: Machine, bindings: Sequence[LocalRankPlacement]) -> Iterator[str]:
    busy = {core.package for binding in bindings for core in binding.cores}
    reason = "the ranks fit without it"
    if bindings[0].gpu:
        reason = "the GPUs in use are on other packages; see --packing"
    for package, cores in enumerate(machine.packages):
        if package not in busy and any(core.usable for core in cores):
            yield f"package {package} has no rank ({reason})"


def _shared_cores(bindings: Sequence[LocalRankPlacement], policy: PlacementPolicy) -> Iterator[str]:
    """Yield a note where there are more ranks than cores, or where a rank file gives several ranks a core."""
    cores, ranks = {core.logical_index for binding in bindings for core in binding.cores}, len(bindings)
    if len(cores) < ranks:
        how = "run unbound on" if len({binding.cores for binding in bindings}) == 1 else "share"
        most = counted(len(cores), "rank")
        yield f"{ranks} ranks {how} {counted(len(cores), 'core')}; for a core per rank, use at most {most} per host"
    elif policy.bind == "core" and not policy.cores_per_rank and len(cores) < sum(len(own.cores) for own in bindings):
        yield "ranks share cores, as the rank file says"


def _taken_notes(machine: Machine, bindings: Sequence[LocalRankPlacement], policy: PlacementPolicy) -> Iterator[str]:
    """Yield notes on CPUs and GPUs of the ranks that other runs use, too."""
    cpus = {pu.os_index for binding in bindings for core in binding.cores for pu in core.pus} & machine.in_use
    if cpus:
        unbound = "too few cores are free, so that ranks may run on all: they " if policy.cores_per_rank else "ranks "
        yield f"{unbound}share CPUs {render_ranges(cpus)} with other runs (ddlrun runs lists yours)"
    gpus = {binding.gpu.number for binding in bindings if binding.gpu and binding.gpu.pci_address in machine.in_use}
    if gpus:
        yield f"ranks share GPUs {render_ranges(gpus)} with other runs (ddlrun runs lists yours)"


def _gpu_notes(machine: Machine, bindings: Sequence[LocalRankPlacement]) -> Iterator[str]:
    ranks, gpus = len(bindings), len(machine.gpus)
    used = [binding.gpu for binding in bindings if binding.gpu]
    if gpus and not used:
        yield f"{ranks} ranks, {counted(gpus, 'GPU')}: no rank has a GPU of its own; --share-gpus assigns them in turn"
    elif gpus and len(set(used)) < ranks:
        yield f"{ranks} ranks share {len(set(used))} of {gpus} GPUs"
    elif ranks < gpus:
        yield f"GPUs in use: {','.join(str(gpu.number) for gpu in used)} ({ranks} of {gpus})"
