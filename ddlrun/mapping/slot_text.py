"""Slot texts of any rank file: parse, and render without commas inside a package."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ddlrun.machine import Core, Machine
from ddlrun.mapping.lint_findings import LintCode
from ddlrun.ranges import render_range

_SPAN = r"\d{1,5}(?:-\d{1,5})?"
_WHOLE = r"\d{1,4}(?:,\d{1,4})*"
_TERM = rf"[sS]?(?P<package>\d{{1,4}}):c?(?P<inside>\*|{_SPAN})|(?P<flat>{_SPAN})|[sS](?P<whole>{_WHOLE})"
# A list of packages (`s0,1`) is one term.
_TERMS = rf"(^|[;,])([sS]{_WHOLE}(?=;|$)|[^;,]*)"


class CoreRange(NamedTuple):
    """Cores of a slot text: `low` to `high` inside a package, or over the host; no bounds: the whole package."""

    package: int | None
    low: int | None
    high: int | None


class SlotText(NamedTuple):
    """A parsed slot text: the cores that it means, and its problem.

    `ranges` is None where it cannot be read. `term` is the part that names no cores.
    """

    ranges: tuple[CoreRange, ...] | None
    problem: LintCode | None = None
    term: str = ""


@lru_cache(maxsize=1024)
def parse_slots(text: str) -> SlotText:
    """Parse a slot text as its author meant it.

    >>> parse_slots("0:0-4;1:2").ranges
    (CoreRange(package=0, low=0, high=4), CoreRange(package=1, low=2, high=2))
    >>> parse_slots("0x1").problem
    <LintCode.NO_CORES: ...>
    """
    whole = {"": LintCode.EMPTY_SLOT, "*": LintCode.EVERY_CORE, "*:*": LintCode.EVERY_PACKAGE}.get(text)
    if whole is not None:
        return SlotText(None, whole)
    ranges: list[CoreRange] = []
    package: int | None = None
    for separator, term in re.findall(_TERMS, text):
        if not term and ranges and text.endswith(";"):
            continue
        match = re.fullmatch(_TERM, term)
        if not match:
            physical = re.fullmatch(r"[pP]\d+", term)
            return SlotText(None, LintCode.PHYSICAL if physical else LintCode.NO_CORES, term)
        if match["package"]:
            package = int(match["package"])
        elif match["flat"] and separator != ",":
            package = None  # only after a comma are cores still those of the package
        ranges += _ranges(match, package)
    if any(cores.low is not None and cores.high is not None and cores.low > cores.high for cores in ranges):
        return SlotText(None, LintCode.BACKWARDS)
    return SlotText(tuple(ranges), _comma_problem(text))


def _ranges(match: re.Match[str], package: int | None) -> list[CoreRange]:
    if match["whole"]:
        return [CoreRange(int(whole), None, None) for whole in match["whole"].split(",")]
    span = match["flat"] or match["inside"]
    if span == "*":
        return [CoreRange(package, None, None)]
    low, _, high = span.partition("-")
    return [CoreRange(package, int(low), int(high or low))]


def _comma_problem(text: str) -> LintCode | None:
    lists = [item for item in text.split(";") if "," in item and re.search("[:sS]", item)]
    mixed = ";".join(item for item in lists if not re.fullmatch(f"[sS]{_WHOLE}", item))
    if not mixed:
        return None
    if re.search(r",[^,;:]*:", mixed):
        return LintCode.COMMA_BEFORE_PACKAGE
    return LintCode.COMMA_AFTER_RANGE if re.search(r"(-\d+|[sS]\d+),", mixed) else LintCode.COMMA


def cores_of(ranges: Sequence[CoreRange], machine: Machine) -> tuple[Core, ...]:
    """Return the machine's cores in the ranges, each once, in order. Raises IndexError for an unknown package."""
    indexes: set[int] = set()
    for cores in ranges:
        inside = machine.cores if cores.package is None else machine.packages[cores.package]
        chosen = inside if cores.low is None else inside[cores.low : (cores.high or cores.low) + 1]
        indexes |= {core.logical_index for core in chosen}
    return tuple(machine.cores[index] for index in sorted(indexes))


def render_core_ranges(ranges: Sequence[CoreRange]) -> str:
    """Write ranges so that both majors read them alike, as far as that is possible without the machine."""
    separator = ";" if any(cores.package is not None for cores in ranges) else ","
    return separator.join(map(_render_range, ranges))


def _render_range(cores: CoreRange) -> str:
    inside = "*" if cores.low is None else render_range(cores.low, cores.high)
    return inside if cores.package is None else f"{cores.package}:{inside}"
