"""Notations for the cores of a rank, and the choice of one that Open MPI reads as meant."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

from ddlrun.machine import Core, Machine, MachineNoteCode
from ddlrun.mapping.slot_reading import host_units, pus_of, read_slots
from ddlrun.mapping.slot_text import CoreRange, render_core_ranges
from ddlrun.ranges import find_runs, is_successor

BOTH_MAJORS = (4, 5)
# Both majors drop what is beyond in a slot text.
MOST_SLOT = 64


def render_slots(
    cores: Sequence[Core], machine: Machine, majors: Collection[int] = BOTH_MAJORS, *, most: int = MOST_SLOT
) -> str | None:
    """Write a rank's cores in the first notation that both majors read as meant, or else each of `majors`.

    Of these, it is the first one of up to `most` characters, or the shortest. None: there is no such notation.
    """
    meant = pus_of(cores)
    texts: list[str] = []
    for readers in (BOTH_MAJORS, majors):
        for ranges in _notations(cores, machine):
            if all(read_slots(ranges, machine, major) == meant for major in readers):
                texts.append(render_core_ranges(ranges))
                if len(texts[-1]) <= most:
                    return texts[-1]
    return min(texts, key=len, default=None)


def no_notation(machine: Machine) -> str:
    """Return the reason why no slot text suits both majors, and the remedy."""
    if machine.cores_uncounted:
        return f"{MachineNoteCode.CORES_UNCOUNTED.value}; ddlrun launch --process-manager ddlrun needs none"
    if machine.cores_are_threads:
        return f"{MachineNoteCode.CORES_ARE_THREADS.value}; ddlrun gen-rankfile --open-mpi 4 writes one for 4.1"
    packages = "its packages differ in size" if machine.packaged else "it has no packages that hwloc counts"
    if machine.packages_uncertain:
        packages = "the numbers of its packages are uncertain"
    return (
        "Open MPI 4.1 and 5.0 read no slot text alike for all of its cores: the first core has one hardware thread, "
        f"others have more, and {packages}; ddlrun gen-rankfile --open-mpi 4 or 5 writes the file for one version"
    )


def _notations(cores: Sequence[Core], machine: Machine) -> Iterator[Sequence[CoreRange]]:
    """Yield the ranges of each notation, the most readable one first; only Open MPI 5.0 may read the last one."""
    inside = tuple(_inside_packages(cores))
    over_host = tuple(_runs(None, [core.logical_index for core in cores]))
    one_package = len({core.package for core in cores}) == 1
    # `P:a-b;Q:c-d` would do for most ranks on several packages, but grows too long for many packages.
    readable = (inside, over_host) if one_package and machine.uniform else (over_host, inside)
    if machine.packages_uncertain:
        yield over_host
    else:
        yield from (*readable, tuple(_whole_packages(inside, machine)))
    meant = pus_of(cores)
    yield tuple(_runs(None, [place for place, unit in enumerate(host_units(machine)) if pus_of([unit]) <= meant]))


def _inside_packages(cores: Sequence[Core]) -> Iterator[CoreRange]:
    for package, inside in groupby(cores, key=lambda core: core.package):
        # Each run names its package: after a comma, 4.1 would drop the rest and 5.0 keep it.
        yield from _runs(package, [core.index_in_package for core in inside])


def _whole_packages(inside: Sequence[CoreRange], machine: Machine) -> Iterator[CoreRange]:
    """Yield ranges inside packages, without bounds for all cores of a package: 5.0 counts nothing there."""
    sizes = Counter(core.package for core in machine.cores)
    for part in inside:
        whole = part.package is not None and (part.low, part.high) == (0, sizes[part.package] - 1)
        yield CoreRange(part.package, None, None) if whole else part


def _runs(package: int | None, numbers: Sequence[int]) -> Iterator[CoreRange]:
    """Yield a range for each run of consecutive numbers."""
    for low, high in find_runs(numbers, is_successor):
        yield CoreRange(package, low, high)
