"""Machines as mpirun counts them: by hwloc 2.2 or later, or by the hwloc 2.0 inside Open MPI 4.1."""

from collections.abc import Mapping, Sequence

from ddlrun.machine import Core, Machine, MachineNoteCode
from ddlrun.machine.depths import count_threads, types_at_several_depths
from ddlrun.machine.numbering import Allowed, CpuSets, number_cores


def count_cores(machines: Mapping[str, Machine], *, hwloc_2_0: bool) -> dict[str, Machine]:
    """Return the machines of hosts with cores numbered as hwloc 2.0 numbers them, or as later ones do.

    Machines that are the same object remain so.
    """
    convert = _with_hwloc_2_0_cores if hwloc_2_0 else _without_note
    converted = {id(machine): convert(machine) for machine in machines.values() if machine.hwloc_2_0_cores}
    return {host: converted.get(id(machine), machine) for host, machine in machines.items()}


def _with_hwloc_2_0_cores(machine: Machine) -> Machine:
    package_of = {pu.os_index: core.package for core in machine.hwloc_2_0_cores for pu in core.pus}
    renumbered: dict[int | None, int] = {core.package: package_of[core.pus[0].os_index] for core in machine.cores}
    packages = set(package_of.values())
    packaged, nics = (
        machine.packaged and len(packages) > 1,
        machine.nics,
    )  # cores of one package can as well be counted over the host
    return machine._replace(
        cores=machine.hwloc_2_0_cores,
        gpus=tuple(gpu._replace(package=renumbered.get(gpu.package)) for gpu in machine.gpus),
        nics=None if nics is None else tuple(nic._replace(package=renumbered.get(nic.package)) for nic in nics),
        packaged=packaged,
        empty_packages=tuple(sorted(set(machine.empty_packages) - packages)) if packaged else (),
        hwloc_2_0_cores=(),
    )


def _without_note(machine: Machine) -> Machine:
    notes = tuple(note for note in machine.notes if note.code is not MachineNoteCode.CORES_OF_OPEN_MPI_4)
    return machine._replace(notes=notes, hwloc_2_0_cores=())


def number_hwloc_2_0_cores(sets: CpuSets, allowed: Allowed, *, cgroup_2: bool, has_core_ids: bool) -> tuple[Core, ...]:
    """Return the cores as hwloc 2.0 numbers them; `sets` are those that it reads.

    It does not see what a cgroup of version 2 hides. Where CPU 0 is offline and /proc/cpuinfo has no core ids, it finds
    neither packages nor cores, and its PUs count as cores. Packages that it finds at several depths count as one.
    """
    if cgroup_2:
        lists = [cpus for cpus in (allowed.cpus, allowed.affinity) if cpus is not None]
        allowed = Allowed(affinity=frozenset.intersection(*lists) if lists else None)
    several = types_at_several_depths(sets, allowed)
    cores = number_cores(count_threads(sets) if "Core" in several else sets, allowed).cores
    if "Package" in several:
        cores = tuple(core._replace(package=0, index_in_package=core.logical_index) for core in cores)
    lists_cores = has_core_ids or any(0 in cpus for cpus in sets.cores)
    return cores if lists_cores else _pus_as_cores(cores, allowed.affinity)


def _pus_as_cores(cores: Sequence[Core], affinity: frozenset[int] | None) -> tuple[Core, ...]:
    core_of = {pu: core for core in cores for pu in core.pus}
    return tuple(
        core_of[pu]._replace(
            logical_index=number,
            package=0,
            index_in_package=number,
            pus=(pu,),
            usable=affinity is None or pu.os_index in affinity,
        )
        for number, pu in enumerate(sorted(core_of, key=lambda pu: pu.os_index))
    )


def number_alike(cores: Sequence[Core], others: Sequence[Core], *, packaged: bool) -> bool:
    """Check if all CPUs of `cores` are in cores with the same indexes among `others`, also inside packages."""
    own, other = (
        {
            pu.os_index: (core.logical_index, *((core.package, core.index_in_package) if packaged else ()))
            for core in counted
            for pu in core.pus
        }
        for counted in (cores, others)
    )
    return other.items() >= own.items()
