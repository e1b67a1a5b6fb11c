"""Lenient parser of rank files: every line that places a rank, and the syntax problems of the others."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddlrun.machine import Core, Machine
from ddlrun.mapping.lint_findings import LintCode, LintFinding
from ddlrun.mapping.slot_dialects import read_text
from ddlrun.mapping.slot_reading import pus_of
from ddlrun.mapping.slot_text import CoreRange, cores_of, parse_slots

_LINE = r"\s*rank\s+(\d+)\s*=\s*([^\s=#]+)\s+slots?\s*=\s*([^\s#]*)([^#]*?)\s*(#.*)?"
_NO_SLOT = r"\s*rank\s+\d+\s*=\s*[^\s=#]+\s*(#.*)?"
_BLANK = r"\s*((#|//).*)?"
_FOR_ONE_MAJOR = r"#.*, for Open MPI ([45]) alone\s"  # written by rankfile.render
_LONGEST_RANK = 9


class RankEntry(NamedTuple):
    """A line that places a rank; `column` is where its slot text begins.

    `ranges` is None where the slot text is unreadable. `problem` is that of the slot text.
    """

    line: int
    rank: int
    host: str
    slot: str
    column: int
    ranges: tuple[CoreRange, ...] | None
    problem: LintCode | None
    comment: str


def read_entries(text: str) -> tuple[list[RankEntry], list[LintFinding]]:
    """Parse a rank file; return its entries, and a finding for each problem of its syntax.

    Commas in readable slot texts are left to `check_cores`.
    """
    entries: list[RankEntry] = []
    findings: list[LintFinding] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line.endswith("\r"):
            findings.append(LintFinding(LintCode.CR_LF, number, len(line)))
        entry, problems = _read_line(number, line.rstrip("\r"))
        findings += problems
        if entry is not None:
            entries.append(entry)
    if _is_comment(lines[-1]) or (entries and entries[-1].line == len(lines) and entries[-1].comment):
        findings.append(LintFinding(LintCode.NO_LAST_NEWLINE, len(lines), None))
    if not entries:
        findings.append(LintFinding(LintCode.NO_RANKS, None, None))
    return entries, findings


def declared_major(text: str) -> int | None:
    """Return the major version for which alone a rank file is written, by its first line."""
    match = re.match(_FOR_ONE_MAJOR, text)
    return int(match[1]) if match else None


def count_as_declared(
    text: str, entries: Sequence[RankEntry], machine_of: Callable[[str], Machine | None]
) -> list[RankEntry]:
    """Return the entries with the cores that Open MPI 5.0 takes, where the file is written for it alone."""
    if declared_major(text) != 5:
        return [*entries]
    return [_count_by_5(entry, machine_of(entry.host)) for entry in entries]


def _count_by_5(entry: RankEntry, machine: Machine | None) -> RankEntry:
    """Return the entry with the cores that Open MPI 5.0 takes, or unchanged if it takes no whole cores."""
    pus = None if machine is None or entry.ranges is None else read_text(entry.slot, machine, 5)
    if machine is None or not pus:
        return entry
    cores = [core for core in machine.cores if pus_of([core]) <= pus]
    if pus_of(cores) != pus:
        return entry
    return entry._replace(ranges=tuple(CoreRange(None, core.logical_index, core.logical_index) for core in cores))


def parse_host_names(text: str) -> tuple[str, ...]:
    """Return the hosts of a rank file, in the order of their first ranks."""
    entries = sorted(read_entries(text)[0], key=lambda entry: entry.rank)
    return tuple(dict.fromkeys(entry.host for entry in entries))


def parse_places(text: str, machine_of: Callable[[str], Machine]) -> dict[int, tuple[str, tuple[Core, ...]]]:
    """Return each rank's host and cores, of a file in which `lint` finds no error."""
    entries = count_as_declared(text, read_entries(text)[0], machine_of)
    return {entry.rank: (entry.host, cores_of(entry.ranges or (), machine_of(entry.host))) for entry in entries}


def quote(text: str) -> str:
    """Quote a text for a message; a long one is cut."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _is_comment(line: str) -> bool:
    return bool(line.strip() and re.fullmatch(_BLANK, line.rstrip("\r")))


def _read_line(number: int, line: str) -> tuple[RankEntry | None, list[LintFinding]]:
    if re.fullmatch(_BLANK, line):
        return None, []
    if re.fullmatch(_NO_SLOT, line):
        return None, [LintFinding(LintCode.NO_SLOT, number, 1, {"text": quote(line.strip())})]
    match = re.fullmatch(_LINE, line)
    if not match or len(match[1]) > _LONGEST_RANK or not (match[3] + match[4]).replace("\t", " ").isprintable():
        return None, [LintFinding(LintCode.NOT_A_LINE, number, 1, {"text": quote(line)})]
    return _read_entry(number, match)


def _read_entry(number: int, match: re.Match[str]) -> tuple[RankEntry, list[LintFinding]]:
    column = match.start(3) + 1
    slots = parse_slots(match[3])
    findings = []
    if slots.problem is not None and slots.ranges is None:
        values = {"slot": match[3], "shown": quote(match[3]), "term": quote(slots.term)}
        findings.append(LintFinding(slots.problem, number, column, values))
    if match[4].strip():
        values = {"text": quote(match[4].strip())}
        findings.append(LintFinding(LintCode.TRAILING_WORDS, number, match.start(4) + 1, values))
    entry = RankEntry(
        line=number,
        rank=int(match[1]),
        host=match[2],
        slot=match[3],
        column=column,
        ranges=slots.ranges,
        problem=slots.problem,
        comment=match[5] or "",
    )
    return entry, findings
