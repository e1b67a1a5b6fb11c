"""Check of the cores of a rank file on their machine, and what each major of Open MPI takes instead."""

from collections.abc import Iterator, Sequence

from ddlrun.machine import Machine
from ddlrun.machine.cpus import cpu_list
from ddlrun.mapping.lint_findings import LintCode, LintFinding
from ddlrun.mapping.rankfile_entries import RankEntry
from ddlrun.mapping.slot_notation import render_slots
from ddlrun.mapping.slot_reading import Pus, pus_of, read_slots
from ddlrun.mapping.slot_text import CoreRange, cores_of


def check_cores(entry: RankEntry, ranges: Sequence[CoreRange], machine: Machine) -> Iterator[LintFinding]:
    """Check a line's cores on their machine; a core that does not exist hides all else."""
    missing = missing_cores(entry, ranges, machine)
    if missing is not None:
        yield missing
        return
    yield from _check_reading(entry, ranges, machine)
    cores = cores_of(ranges, machine)
    if not all(core.usable for core in cores):
        yield _finding(LintCode.UNUSABLE_CORES, entry, machine)
    if len({core.package for core in cores}) > 1:
        yield _finding(LintCode.SEVERAL_PACKAGES, entry, machine)


def missing_cores(entry: RankEntry, ranges: Sequence[CoreRange], machine: Machine) -> LintFinding | None:
    """Return a finding for the first of a line's packages or cores that the machine does not have."""
    if not machine.packaged and any(cores.package is not None for cores in ranges):
        return _finding(LintCode.NO_PACKAGES, entry, machine)
    for cores in ranges:
        high, package = cores.high or 0, cores.package
        finding = (
            _missing_on_host(entry, machine, high)
            if package is None
            else _missing_in_package(entry, machine, package, high)
        )
        if finding is not None:
            return finding
    return None


def _missing_on_host(entry: RankEntry, machine: Machine, high: int) -> LintFinding | None:
    last = len(machine.cores) - 1
    return _finding(LintCode.UNKNOWN_CORE, entry, machine, core=high, last=last) if high > last else None


def _missing_in_package(entry: RankEntry, machine: Machine, package: int, high: int) -> LintFinding | None:
    packages = machine.packages
    if package >= len(packages):
        return _finding(LintCode.UNKNOWN_PACKAGE, entry, machine, package=package, last=len(packages) - 1)
    if not packages[package]:
        others = cpu_list(number for number, cores in enumerate(packages) if cores)
        return _finding(LintCode.EMPTY_PACKAGE, entry, machine, package=package, packages=others)
    last = len(packages[package]) - 1
    return _finding(LintCode.OUTSIDE_PACKAGE, entry, machine, package=package, last=last) if high > last else None


def _check_reading(entry: RankEntry, ranges: Sequence[CoreRange], machine: Machine) -> Iterator[LintFinding]:
    """Find what Open MPI 5.0 reads otherwise than it is meant; 4.1 reads all cores that exist as they are meant."""
    if machine.cores_are_threads:
        yield _finding(LintCode.CORES_ARE_THREADS, entry, machine)
        return
    meant = pus_of(cores_of(ranges, machine))
    if read_slots(ranges, machine, 5) == meant:
        return
    misread = next(cores for cores in ranges if read_slots([cores], machine, 5) != pus_of(cores_of([cores], machine)))
    text = render_slots(cores_of(ranges, machine), machine)
    correction = f"write slot={text}" if text else "launch it with Open MPI 4.1: no slot text suits both versions"
    if misread.package is None:
        yield _finding(LintCode.MIXED_SMT, entry, machine, correction=correction)
        return
    empty = [number for number, cores in enumerate(machine.packages[: misread.package]) if not cores]
    if empty:
        yield _finding(LintCode.PACKAGE_GAP, entry, machine, package=empty[0], correction=correction)
    else:
        yield _finding(LintCode.UNEQUAL_PACKAGES, entry, machine, correction=correction)


def _finding(code: LintCode, entry: RankEntry, machine: Machine, **values: object) -> LintFinding:
    """Return a finding on a line's cores, with the reading of each major."""
    ranges = entry.ranges or ()
    readings = {
        "reading_4": _effect(read_slots(ranges, machine, 4), machine, "fails with two cryptic lines"),
        "reading_5": _effect(read_slots(ranges, machine, 5), machine, "refuses the line"),
    }
    place = f"slot={entry.slot} on {entry.host} ({machine})"
    return LintFinding(code, entry.line, entry.column, {"place": place, **readings, **values})


def _effect(reading: Pus | None, machine: Machine, refusal: str) -> str:
    """Return a clause on what a major does with a line."""
    if reading is None:
        return refusal
    if not reading:
        return "silently leaves the rank unbound"
    whole = [core for core in machine.cores if pus_of([core]) <= reading]
    if pus_of(whole) == reading:
        return f"silently takes cores {cpu_list(core.logical_index for core in whole)} of the host"
    return f"silently takes CPUs {cpu_list(reading)}"
