"""Machines as the hwloc of an mpirun counts them: with or without the cores that a cgroup of version 2 hides."""

from collections.abc import Mapping

from ddlrun.machine import Machine, MachineNoteCode


def count_hidden(machines: Mapping[str, Machine], *, hidden: bool) -> dict[str, Machine]:
    """Return the machines of hosts with the numbering of an hwloc that counts `hidden` cores, or does not.

    Equal machines stay the same object.
    """
    convert = _with_hidden_cores if hidden else _without_note
    converted = {id(machine): convert(machine) for machine in machines.values() if machine.complete_cores}
    return {host: converted.get(id(machine), machine) for host, machine in machines.items()}


def _with_hidden_cores(machine: Machine) -> Machine:
    package_of = {pu.os_index: core.package for core in machine.complete_cores for pu in core.pus}
    renumbered: dict[int | None, int] = {core.package: package_of[core.pus[0].os_index] for core in machine.cores}
    nics = machine.nics
    return machine._replace(
        cores=machine.complete_cores,
        gpus=tuple(gpu._replace(package=renumbered.get(gpu.package)) for gpu in machine.gpus),
        nics=None if nics is None else tuple(nic._replace(package=renumbered.get(nic.package)) for nic in nics),
        empty_packages=(),
        complete_cores=(),
    )


def _without_note(machine: Machine) -> Machine:
    notes = tuple(note for note in machine.notes if note.code is not MachineNoteCode.CORES_HIDDEN)
    return machine._replace(notes=notes, complete_cores=())
