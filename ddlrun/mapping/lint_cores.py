"""Check of the cores of a rank file on their machine, with the cores that each major of Open MPI takes instead."""

import re
from collections.abc import Iterator, Sequence

from ddlrun.machine import Core, Machine
from ddlrun.mapping.lint_findings import LintCode, LintFinding
from ddlrun.mapping.rankfile_entries import RankEntry
from ddlrun.mapping.slot_dialects import read_text
from ddlrun.mapping.slot_notation import render_slots
from ddlrun.mapping.slot_reading import Pus, pus_of, read_slots
from ddlrun.mapping.slot_text import CoreRange, cores_of
from ddlrun.ranges import render_ranges

_REFUSALS = {4: "fails with two cryptic lines", 5: "refuses the line"}
_REFUSAL_OVER_HOST = "ends with 1 and no message at all"  # 4.1, of cores over the host
_FIRST_CORE = "takes the first core alone, or fails with two cryptic lines"
# What each major does with commas in a slot text where the machine is not known.
_COMMAS = {
    LintCode.COMMA: {"reading_4": _FIRST_CORE},
    LintCode.COMMA_AFTER_RANGE: {"reading_4": _FIRST_CORE, "reading_5": "drops what follows a range"},
    LintCode.COMMA_BEFORE_PACKAGE: {"reading_5": "counts what follows in the first package, or drops it"},
}
# The code for commas by whether 4.1 and 5.0 read them as they are meant.
_COMMA_CODES = {
    (False, True): LintCode.COMMA,
    (False, False): LintCode.COMMA_AFTER_RANGE,
    (True, False): LintCode.COMMA_BEFORE_PACKAGE,
}


def check_cores(entry: RankEntry, ranges: Sequence[CoreRange], machine: Machine | None) -> Iterator[LintFinding]:
    """Check a line's cores on their machine, if it is known; a core that does not exist hides all else."""
    missing = None if machine is None else missing_cores(entry, ranges, machine)
    if missing is not None:
        yield missing
    if machine is None or missing is not None or machine.cores_are_threads:
        yield from _check_commas(entry)
    if machine is None or missing is not None:
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
        others = render_ranges(number for number, cores in enumerate(packages) if cores)
        return _finding(LintCode.EMPTY_PACKAGE, entry, machine, package=package, packages=others)
    last = len(packages[package]) - 1
    return _finding(LintCode.OUTSIDE_PACKAGE, entry, machine, package=package, last=last) if high > last else None


def _check_commas(entry: RankEntry) -> Iterator[LintFinding]:
    """Find commas that one of the majors reads otherwise than they are meant on most machines."""
    if entry.problem in _COMMAS:
        values = {"slot": entry.slot, **_COMMAS[entry.problem]}
        yield LintFinding(entry.problem, entry.line, entry.column, values)


def _check_reading(entry: RankEntry, ranges: Sequence[CoreRange], machine: Machine) -> Iterator[LintFinding]:
    """Find what a major reads otherwise than it is meant."""
    if machine.cores_are_threads:
        yield _finding(LintCode.CORES_ARE_THREADS, entry, machine)
        return
    cores = cores_of(ranges, machine)
    uncertain = next((part.package for part in ranges if part.package is not None), None)
    if machine.packages_uncertain and uncertain is not None:
        correction = _correction(cores, machine, "ddlrun gen-rankfile --open-mpi 4 or 5 writes a file for one version")
        yield _finding(LintCode.PACKAGES_UNCERTAIN, entry, machine, package=uncertain, correction=correction)
        return
    meant = pus_of(cores)
    as_meant = read_text(entry.slot, machine, 4) == meant, read_text(entry.slot, machine, 5) == meant
    if all(as_meant):
        return
    if as_meant == (False, True) and entry.problem is None:
        yield _finding(LintCode.FOR_OPEN_MPI_5, entry, machine)
        return
    if entry.problem is not None:
        yield _finding(_COMMA_CODES[as_meant], entry, machine, slot=entry.slot)
        return
    misread = next(part for part in ranges if read_slots([part], machine, 5) != pus_of(cores_of([part], machine)))
    other = "launch it with Open MPI 4.1: no slot text suits both versions"
    yield _misread(entry, misread.package, machine, _correction(cores, machine, other))


def _correction(cores: Sequence[Core], machine: Machine, other: str) -> str:
    """Return the remedy: the slot text for both majors, or `other` where there is none."""
    text = render_slots(cores, machine)
    return f"write slot={text}" if text else other


def _misread(entry: RankEntry, package: int | None, machine: Machine, correction: str) -> LintFinding:
    """Return the finding on cores over the host (None), or inside a package, that Open MPI 5.0 misreads."""
    if package is None:
        return _finding(LintCode.MIXED_SMT, entry, machine, correction=correction)
    empty = [number for number, cores in enumerate(machine.packages[:package]) if not cores]
    if empty:
        return _finding(LintCode.PACKAGE_GAP, entry, machine, package=empty[0], correction=correction)
    return _finding(LintCode.UNEQUAL_PACKAGES, entry, machine, correction=correction)


def _finding(code: LintCode, entry: RankEntry, machine: Machine, **values: object) -> LintFinding:
    """Return a finding on a line's cores, with the reading of each major."""
    readings = {f"reading_{major}": _reading(entry.slot, machine, major) for major in (4, 5)}
    place = f"slot={entry.slot} on {entry.host} ({machine})"
    return LintFinding(code, entry.line, entry.column, {"place": place, **readings, **values})


def _reading(text: str, machine: Machine, major: int) -> str:
    """Return a clause on what a major does with a slot text."""
    pus = read_text(text, machine, major)
    if pus is None:
        over_host = major == 4 and not re.search("[:sS]", text)
        return _REFUSAL_OVER_HOST if over_host else _REFUSALS[major]
    return f"silently takes {_shown(pus, machine)}" if pus else "silently leaves the rank unbound"


def _shown(pus: Pus, machine: Machine) -> str:
    whole = [core for core in machine.cores if pus_of([core]) <= pus]
    if pus_of(whole) == pus:
        return f"cores {render_ranges(core.logical_index for core in whole)} of the host"
    return f"CPUs {render_ranges(pus)}"
