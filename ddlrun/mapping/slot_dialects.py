"""Ranges of cores into which each major of Open MPI splits a slot text.

Both split at semicolons first. Inside a package, 4.1 splits at commas and then at colons, 5.0 at colons and then at
hyphens; each ignores what it does not expect.
"""

import re
from collections.abc import Iterator, Sequence

from ddlrun.machine import Machine
from ddlrun.mapping.slot_reading import Pus, read_slots
from ddlrun.mapping.slot_text import CoreRange


def read_text(text: str, machine: Machine, major: int) -> Pus | None:
    """Return the PUs to which Open MPI `major` binds a rank with a slot text, as `read_slots` does."""
    ranges = split_text(text, machine, major)
    return None if ranges is None else read_slots(ranges, machine, major)


def split_text(text: str, machine: Machine, major: int) -> Sequence[CoreRange] | None:
    """Return the ranges that Open MPI `major` takes from a slot text; None: it refuses the text."""
    ranges: list[CoreRange | None] = []
    for item in filter(None, text.split(";")):
        if ":" in item:
            ranges += _split_by_4(item.lstrip("sS")) if major == 4 else _split_by_5(item.lstrip("sS"), machine)
        elif item[0] in "sS":
            ranges += (CoreRange(package, None, None) for part in item[1:].split(",") for package in _span(part))
        else:
            ranges += (_range(None, part.split("-")) for part in item.split(","))
    known = [cores for cores in ranges if cores is not None]
    return known if len(known) == len(ranges) else None


def _split_by_4(item: str) -> Iterator[CoreRange | None]:
    for part in filter(None, item.split(",")):
        package, *fields = part.split(":")
        # A part without cores adds none, but its package has to exist.
        yield CoreRange(_number(package), 0, -1)
        yield from (_range(_number(package), field.lstrip("cC").split("-")) for field in filter(None, fields))


def _split_by_5(item: str, machine: Machine) -> Iterator[CoreRange | None]:
    package, *texts = item.split(":")
    fields = [text.lstrip("cC") for text in texts if text]
    every = next((place for place, field in enumerate(fields) if field.startswith("*")), None)
    for field in fields[:every]:
        parts = [field] if "-" in field else field.split(",")
        ranges = (_range(_number(package), part.split("-")) for part in parts)
        yield from ranges if every is None else (_existing(cores, machine) for cores in ranges)
    if every is not None:  # whatever follows
        yield CoreRange(_number(package), None, None)


def _existing(cores: CoreRange | None, machine: Machine) -> CoreRange | None:
    """Return the cores of a range that exist: beside `*`, Open MPI 5.0 forgives those that do not."""
    packages = machine.packages
    if cores is None or cores.package is None or cores.high is None or cores.package >= len(packages):
        return cores
    last = len(machine.cores) - 1 - cores.package * len(packages[cores.package])
    return cores._replace(high=min(cores.high, last))


def _range(package: int | None, bounds: Sequence[str]) -> CoreRange | None:
    """Return the range with one bound or two; None: there are more."""
    if len(bounds) > 2:
        return None
    if bounds[0] == "*" and package is not None:
        return CoreRange(package, None, None)
    return CoreRange(package, _number(bounds[0]), _number(bounds[-1]))


def _span(text: str) -> range:
    low, _, high = text.partition("-")
    return range(_number(low), _number(high or low) + 1)


def _number(text: str) -> int:
    """Return the number at the beginning of a text, 0 without one, as C's atoi does."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0
