"""Slot texts as each major of Open MPI reads them, PU by PU.

Both majors count packages and cores in hwloc's order, and count a package without usable cores where hwloc does.
Open MPI 4.1 counts cores over the host, or inside the package that a text names. Open MPI 5.0 differs in two ways:

- It counts `P:a-b` over the host, beginning at P times the number of cores of package P.
- It counts `a-b` in PUs instead of cores if the first core has a single PU.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ddlrun.machine import Core, Machine
from ddlrun.mapping.slot_text import CoreRange

Pus = frozenset[int]
"""OS indexes of PUs."""


def read_slots(ranges: Sequence[CoreRange], machine: Machine, major: int) -> Pus | None:
    """Return the PUs to which Open MPI `major` binds a rank with these ranges.

    None: it refuses the line. No PUs: it leaves the rank unbound.
    """
    pus: set[int] = set()
    if machine.cores_uncounted:
        return None
    for cores in ranges:
        reading = _READERS[major](cores, machine)
        if reading is None:
            return None
        pus |= reading
    return frozenset(pus)


def pus_of(cores: Iterable[Core]) -> Pus:
    """Return the PUs of cores."""
    return frozenset(pu.os_index for core in cores for pu in core.pus)


def host_units(machine: Machine) -> Sequence[Core]:
    """Return the cores, or a core for each PU, that Open MPI 5.0 counts over the host."""
    if len(machine.cores[0].pus) > 1:
        return machine.cores
    return [core._replace(pus=(pu,)) for core in machine.cores for pu in core.pus]


def _read_4(cores: CoreRange, machine: Machine) -> Pus | None:
    inside = machine.cores if cores.package is None else _package(machine, cores.package)
    return None if inside is None else _take(inside, cores.low, cores.high)


def _read_5(cores: CoreRange, machine: Machine) -> Pus | None:
    if machine.cores_are_threads:
        return None
    if cores.package is None:
        return _take(host_units(machine), cores.low, cores.high)
    inside = _package(machine, cores.package)
    if inside is None or cores.low is None:
        return None if inside is None else pus_of(inside)
    return _take(machine.cores[cores.package * len(inside) :], cores.low, cores.high)


_READERS: Mapping[int, Callable[[CoreRange, Machine], Pus | None]] = {4: _read_4, 5: _read_5}


def _package(machine: Machine, package: int) -> Sequence[Core] | None:
    """Return the cores of a package; None: the machine does not have it."""
    packages = machine.packages
    return packages[package] if machine.packaged and package < len(packages) else None


def _take(units: Sequence[Core], low: int | None, high: int | None) -> Pus | None:
    """Return the PUs of units `low` to `high`, of all units without bounds; None: there are not so many."""
    if low is None or high is None:
        return pus_of(units)
    return pus_of(units[low : high + 1]) if high < len(units) else None
