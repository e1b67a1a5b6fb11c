"""Check of any rank file: report what Open MPI 4.1 or 5.0 would not do as the file says, and correct the file."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from ddlrun.machine import Machine
from ddlrun.mapping.lint_cores import check_cores, missing_cores
from ddlrun.mapping.lint_findings import MISSING, LintCode, LintFinding
from ddlrun.mapping.rankfile import BETWEEN, MOST_CHARACTERS, NameProblem, name_problem
from ddlrun.mapping.rankfile_entries import RankEntry, count_as_declared, quote, read_entries
from ddlrun.mapping.slot_notation import MOST_SLOT, render_slots
from ddlrun.mapping.slot_text import cores_of, parse_slots, render_core_ranges

MachineOf = Callable[[str], Machine | None]

_MOST_LISTED = 8
_MOST_CORES = 4096


def _no_machine(_host: str) -> None:
    return None


def _counted(machine_of: MachineOf) -> MachineOf:
    """Return a function for the machines of which it is known how mpirun counts their cores."""

    def counted_machine(host: str) -> Machine | None:
        machine = machine_of(host)
        return None if machine is None or machine.cores_uncounted else machine

    return counted_machine


def lint(
    text: str,
    machine_of: MachineOf = _no_machine,
    ranks: int | None = None,
    hosts: Collection[str] | None = None,
) -> tuple[LintFinding, ...]:
    """Return every finding, by line.

    `machine_of` maps a host's name to its machine; without a machine only the text is checked. `ranks` is
    the number of processes that the file is to be launched with, `hosts` are the job's.
    """
    readable, findings = read_entries(text)
    machine_of = _counted(machine_of)
    entries = count_as_declared(text, readable, machine_of)
    for entry in entries:
        findings += _check_host(entry, hosts)
        findings += _check_length(entry)
        if entry.ranges:
            findings += check_cores(entry, entry.ranges, machine_of(entry.host))
    findings += _check_numbers(entries, ranks)
    findings += _check_sharing(entries, machine_of)
    findings += _check_ranks_per_host(entries)
    return tuple(sorted(findings, key=_position))


def _position(finding: LintFinding) -> tuple[bool, int, int]:
    """Return a sort key that puts findings about the whole file last."""
    return finding.line is None, finding.line or 0, finding.column or 0


def fix(text: str, machine_of: MachineOf = _no_machine) -> tuple[str, tuple[LintFinding, ...]]:
    """Return the file rewritten so that both majors read it alike, and what a person has to correct.

    Comments stay; rank 0 comes first. Lines that cannot be read stay as they are.
    """
    entries = count_as_declared(text, read_entries(text)[0], machine_of)
    rank_0_first = sorted(entries, key=lambda entry: entry.rank != 0)
    parts, done = list[str](), 0
    for place, entry in zip(entries, rank_0_first, strict=True):
        start, end = place.span
        parts += text[done:start], _render_entry(entry, machine_of)
        done = end
    fixed = re.sub(r"(?m)[ \t\r]+$", "", "".join([*parts, text[done:]])).rstrip("\n") + "\n"
    return fixed, lint(fixed, machine_of)


def _render_entry(entry: RankEntry, machine_of: MachineOf) -> str:
    comment = f" {entry.comment}" if entry.comment else ""
    return f"rank {entry.rank}={entry.host} slot={_meant_slots(entry, machine_of(entry.host))}{comment}"


def _meant_slots(entry: RankEntry, machine: Machine | None) -> str:
    """Return the slot text that both majors read as the author meant it, as far as that can be determined."""
    written = parse_slots(entry.slot).ranges
    if entry.ranges is None or written is None:
        return entry.slot
    if machine is None or missing_cores(entry, entry.ranges, machine) is not None:
        return render_core_ranges(written)
    return render_slots(cores_of(entry.ranges, machine), machine) or render_core_ranges(written)


def _check_length(entry: RankEntry) -> Iterator[LintFinding]:
    length = len(entry.host) + len(entry.slot)
    if length + BETWEEN > MOST_CHARACTERS:
        code = LintCode.TOO_LONG_FOR_BOTH if len(entry.slot) > MOST_SLOT else LintCode.TOO_LONG
        values = {"length": length, "limit": MOST_CHARACTERS - BETWEEN, "slot_limit": MOST_SLOT}
        yield LintFinding(code, entry.line, entry.column, values)


def _check_host(entry: RankEntry, hosts: Collection[str] | None) -> Iterator[LintFinding]:
    name, column = entry.host, entry.host_column
    code = _host_code(name)
    if code is not None:
        values = {"name": quote(name), "problem": name_problem(name)}
        yield LintFinding(code, entry.line, column, values)
    if hosts is not None and name not in hosts:
        values = {"name": quote(name), "hosts": ", ".join(sorted(hosts)[:_MOST_LISTED])}
        yield LintFinding(LintCode.FOREIGN_HOST, entry.line, column, values)


def _host_code(name: str) -> LintCode | None:
    problem = name_problem(name)
    if re.fullmatch(r"\+n\d+", name):
        return LintCode.RELATIVE_HOST
    if problem is NameProblem.UNDERSCORE:
        return LintCode.HOST_NAME_FOR_4
    if problem is not None:
        return LintCode.HOST_NAME
    is_ipv4 = name.replace(".", "").isdigit()
    return LintCode.DOTTED_HOST if "." in name and not is_ipv4 else None


def _check_numbers(entries: Sequence[RankEntry], ranks: int | None) -> Iterator[LintFinding]:
    """Find ranks that come twice, are missing, or are too many; rank 0 has to come first."""
    first_lines: dict[int, int] = {}
    for entry in entries:
        if entry.rank in first_lines:
            effect = '"Error, rank 0 is already assigned"' if entry.rank == 0 else f"{MISSING}, or takes this line"
            values = {"rank": entry.rank, "line": first_lines[entry.rank], "effect": effect}
            yield LintFinding(LintCode.DUPLICATE_RANK, entry.line, 1, values)
        first_lines.setdefault(entry.rank, entry.line)
    if 0 in first_lines and entries[0].rank != 0:
        yield LintFinding(LintCode.RANK_0_LATE, first_lines[0], 1, {"rank": entries[0].rank})
    yield from _check_missing_ranks(first_lines)
    if ranks is not None and entries and len(first_lines) != ranks:
        code = LintCode.TOO_FEW_RANKS if len(first_lines) < ranks else LintCode.TOO_MANY_RANKS
        yield LintFinding(code, None, None, {"ranks": len(first_lines), "expected": ranks})


def _check_missing_ranks(ranks: Collection[int]) -> Iterator[LintFinding]:
    last = max(ranks, default=-1)
    missing = [rank for rank in range(min(last, len(ranks) + _MOST_LISTED) + 1) if rank not in ranks]
    if missing:
        more = ", ..." if len(missing) > _MOST_LISTED else ""
        listed = ", ".join(map(str, missing[:_MOST_LISTED])) + more
        yield LintFinding(LintCode.MISSING_RANKS, None, None, {"ranks": listed, "last": last})


def _check_sharing(entries: Sequence[RankEntry], machine_of: MachineOf) -> Iterator[LintFinding]:
    """Find cores that two ranks of a host have."""
    owners: dict[tuple[str, int | None, int], int] = {}
    for entry in entries:
        shared: dict[int, tuple[int | None, int]] = {}
        for package, core in _core_keys(entry, machine_of(entry.host)):
            owner = owners.setdefault((entry.host, package, core), entry.rank)
            if owner != entry.rank:
                shared.setdefault(owner, (package, core))
        for owner, (package, core) in shared.items():
            name = f"core {core}" if package is None else f"core {core} of package {package}"
            values = {"rank": entry.rank, "core": name, "host": entry.host, "other": owner}
            yield LintFinding(LintCode.SHARED_CORE, entry.line, entry.column, values)


def _core_keys(entry: RankEntry, machine: Machine | None) -> Iterator[tuple[int | None, int]]:
    """Yield a key for each of an entry's cores: (package, core), or (None, logical index) on a known machine."""
    ranges = entry.ranges or ()
    if machine is not None and all(_has_package(machine, cores.package) for cores in ranges):
        yield from ((None, core.logical_index) for core in cores_of(ranges, machine))
        return
    for cores in ranges:
        if cores.low is not None:
            high = min(cores.high or cores.low, cores.low + _MOST_CORES)
            yield from ((cores.package, core) for core in range(cores.low, high + 1))


def _has_package(machine: Machine, package: int | None) -> bool:
    return package is None or package < len(machine.packages)


def _check_ranks_per_host(entries: Sequence[RankEntry]) -> Iterator[LintFinding]:
    """Find hosts with different numbers of ranks, which no topology XxYxZ has."""
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.host] = counts.get(entry.host, 0) + 1
    if len(set(counts.values())) > 1:
        most, least = (pick(counts, key=lambda host: counts[host]) for pick in (max, min))
        values = {"most": most, "most_ranks": counts[most], "least": least, "least_ranks": counts[least]}
        yield LintFinding(LintCode.UNEQUAL_HOSTS, None, None, values)
