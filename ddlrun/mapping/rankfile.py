"""Rank files: parse and render, limited to what Open MPI 4.1 and 5.0 read alike, or the version that runs.

docs/explanation/rank-files.md lists what each major does with other files.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ddlrun.errors import InputError, PlacementError
from ddlrun.hosts import fold
from ddlrun.machine import Core, Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.slot_notation import BOTH_MAJORS, MOST_SLOT, no_notation, render_slots
from ddlrun.topology import AXES, Topology

# Open MPI 4.1 writes past a buffer where a host name, 6 characters and the slot text are longer than this together:
# Debian's build aborts, others go on or crash. 5.0 silently drops the end of a slot text that is too long.
MOST_CHARACTERS = 63
BETWEEN = 6

# Names that both majors parse unchanged and launch on.
_NAME = (
    r"(?:0|[1-9][0-9]{0,8}"  # a number is parsed as such: 007 would become host 7
    r"|(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
    r"|(?![0-9]+$)[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
    r"|[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)+)"
)
# Words of the grammar of rank files and hostfiles, which also have _ for -.
KEYWORDS = frozenset(
    "rank slot slots username user-name count cpu cores sockets boards port max-slots slots-max max-cpu cpu-max "
    "max-count count-max sockets-per-board cores-per-socket".split()
)

_LINE = r"rank (\d+)=(\S+) slot=(\S+)"


class RankFileLine(NamedTuple):
    """One line of a rank file, with its slot text unparsed."""

    rank: int
    host: str
    slot: str


def render(placement: Placement, title: str, majors: Collection[int] = BOTH_MAJORS) -> Iterator[str]:
    """Yield the rank file in blocks, one per host, in memory that does not grow with the ranks.

    Both majors read it alike if that is possible, otherwise each of `majors` reads it as meant.

    Raises PlacementError if a host or its cores cannot be written so.
    """
    check_names(placement.hosts.names, majors)
    slots: dict[int, list[str]] = {}
    problems = []
    for indexes, machine, bindings in placement.groups():
        most = _most_slot(max((placement.hosts.names[index] for index in indexes), key=len), majors)
        texts = [render_slots(_whole_cores(binding, machine), machine, majors, most=most) for binding in bindings]
        slots[id(bindings)] = [text for text in texts if text is not None]
        if None in texts:
            names = fold(placement.hosts.names[index] for index in indexes)
            problems.append(f"{names}: {no_notation(machine)}")
    problems = problems or (_too_long(placement, slots, majors) if majors else [])
    if problems:
        raise PlacementError(*problems)
    return _blocks(placement, f"{title}{_restriction(placement, majors)}", slots)


def _whole_cores(binding: LocalRankPlacement, machine: Machine) -> list[Core]:
    """Return a rank's cores with all of their threads: a rank file cannot name some of them."""
    return [machine.cores[core.logical_index] for core in binding.cores]


def _restriction(placement: Placement, majors: Collection[int]) -> str:
    """Return an addition to the title of a file that only one major reads as meant, else an empty text."""
    if len(majors) > 1 or all(
        len(render_slots(_whole_cores(binding, machine), machine, most=most) or " " * MOST_CHARACTERS) <= most
        for indexes, machine, bindings in placement.groups()
        for most in [min(_most_slot(placement.hosts.names[index], BOTH_MAJORS) for index in indexes)]
        for binding in bindings
    ):
        return ""
    return "".join(f", for Open MPI {major} alone" for major in majors)


def _blocks(placement: Placement, title: str, slots: Mapping[int, Sequence[str]]) -> Iterator[str]:
    yield _header(placement, title)
    # With a template per group of equal hosts, a host's block is two operations, whatever the number of its ranks.
    templates = {key: "".join(f"rank %d=\0 slot={slot}\n" for slot in texts) for key, texts in slots.items()}
    for index, (host, bindings) in enumerate(zip(placement.hosts, placement.bindings, strict=True)):
        numbers = tuple(placement.topology.ranks_of(index, placement.order))
        yield templates[id(bindings)].replace("\0", host.name) % numbers


def parse(text: str, where: str = "rank file") -> tuple[RankFileLine, ...]:
    """Parse the output of `render`; comments and blank lines are skipped.

    Raises InputError with a line that is not `rank N=HOST slot=CORES`.
    """
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(_LINE, line)
        if not match:
            raise InputError(f"{where}, line {number}: {line!r} is not 'rank N=HOST slot=CORES'")
        lines.append(RankFileLine(int(match[1]), match[2], match[3]))
    return tuple(lines)


def repeat(lines: Iterable[RankFileLine], count: int) -> Iterator[str]:
    r"""Yield the lines of `count` more ranks, which have the places of the ranks from 0 on, again and again.

    >>> list(repeat([RankFileLine(0, "a", "0-3"), RankFileLine(1, "b", "0-3")], 3))[1:]
    ['rank 3=b slot=0-3\n', 'rank 4=a slot=0-3\n']
    """
    places = sorted(lines, key=lambda line: line.rank)
    for number in range(count):
        place = places[number % len(places)]
        yield f"rank {len(places) + number}={place.host} slot={place.slot}\n"


def check_names(names: Iterable[str], majors: Collection[int] = BOTH_MAJORS) -> None:
    """Raise PlacementError for host names that one of the majors does not read as they are."""
    pairs = ((name, name_problem(name)) for name in names) if majors else ()
    problems = [(name, problem) for name, problem in pairs if problem and (problem.for_both or 4 in majors)]
    if problems:
        raise PlacementError(
            *(f"host {name!r}: {problem}; give it another name in /etc/hosts" for name, problem in problems)
        )


def _most_slot(name: str, majors: Collection[int]) -> int:
    """Return the length of the longest slot text for a host that the majors read."""
    return min(MOST_SLOT, MOST_CHARACTERS - BETWEEN - len(name)) if 4 in majors else MOST_SLOT


def _too_long(placement: Placement, slots: Mapping[int, Sequence[str]], majors: Collection[int]) -> list[str]:
    """Return a problem for each host whose longest line is too long."""
    longest = {key: max(texts, key=len) for key, texts in slots.items()}
    problems = []
    for host, bindings in zip(placement.hosts, placement.bindings, strict=True):
        name, slot = host.name, longest[id(bindings)]
        if len(slot) > _most_slot(name, majors):
            most = MOST_CHARACTERS - BETWEEN - len(slot)
            remedy = (
                f"which takes {most} characters of the name there; give it a shorter one in /etc/hosts"
                if most > 0 and 4 in majors
                else "whatever the name; the usable cores are too scattered, so use more ranks or other cores"
            )
            version = "4.1" if 4 in majors else "5.0"
            problems.append(f"host {name!r} with slot={slot}: too long for Open MPI {version}, {remedy}")
    return problems


class NameProblem(Enum):
    """Reasons why the majors do not read a host's name as it is."""

    KEYWORD = "a word of Open MPI's own grammar"
    IPV6 = "no Open MPI rank file can carry an IPv6 address"
    UNDERSCORE = "Open MPI 4.1 cannot launch on a name with _"
    NUMBER = "Open MPI reads it as a number and drops its zeros or overflows"
    LEADING_DIGIT = "Open MPI cannot parse a name that begins with a digit and has a dot"
    UNREADABLE = "Open MPI cannot parse it"

    def __str__(self) -> str:
        return self.value

    @property
    def for_both(self) -> bool:
        """Whether 5.0 does not read the name either."""
        return self is not NameProblem.UNDERSCORE


def name_problem(name: str) -> NameProblem | None:
    """Return the reason why one of the majors does not read a host's name as it is; None: both do."""
    if name.replace("_", "-") in KEYWORDS:
        return NameProblem.KEYWORD
    if re.fullmatch(_NAME, name):
        return None
    if ":" in name:
        return NameProblem.IPV6
    if "_" in name:
        return NameProblem.UNDERSCORE
    if name.isdigit():
        return NameProblem.NUMBER
    return NameProblem.LEADING_DIGIT if name[:1].isdigit() else NameProblem.UNREADABLE


def _header(placement: Placement, title: str) -> str:
    """Return the comments that rank_gen.py wrote, of the first host's machine; unequal hosts have no dimensions."""
    topology, machine = placement.topology, placement.machines[0]
    sizes = [len(package) for package in machine.packages]
    shape, dims = f"#ranks per host = {topology}", list[str]()
    if isinstance(topology, Topology):
        shape = f"#dims = {topology}"
        dims = [f"#dim{axis} = {size}" for axis, size in zip(AXES, topology.dims, strict=False)]
    rows = [
        f"#{title}",
        shape,
        f"#host = {','.join(placement.hosts.names)}",
        *dims,
        f"#sockets = {len(sizes)}",
        f"#cores = {sizes[0] if machine.uniform else ','.join(map(str, sizes))}",
    ]
    return "\n".join(rows) + "\n"
