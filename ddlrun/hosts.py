"""Host lists and hostfiles: parse, render and abbreviate."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ddlrun.errors import InputError

# A host expression that means more hosts than this is a typing error.
MOST_HOSTS = 1_000_000

# The patterns stay text: `re` compiles and caches those that a run uses.
_NAME = r"(?![-.])[A-Za-z0-9._-]{1,253}(?<![-.])"
_BRACKET = r"\[([^\[\]]*)\]"
_RANGE = r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,9}))?)?"


class Host(NamedTuple):
    """A host: its name, its slots (how many ranks it may take) and its rack; None where these are not specified."""

    name: str
    slots: int | None = None
    rack: str | None = None


class HostList:
    """Immutable list of distinct hosts in rank order, with the source that it was read from.

    `slots_are_capacity`: the slots are what a scheduler allocated (perhaps cores), not a requested number of ranks.
    """

    __slots__ = ("hosts", "names", "slots_are_capacity", "source")

    def __init__(self, hosts: tuple[Host, ...], source: str, *, slots_are_capacity: bool = False) -> None:
        if not hosts:
            raise InputError(f"{source}: no hosts; name at least one")
        self.names = tuple(host.name for host in hosts)
        if len(set(self.names)) < len(hosts):
            raise InputError(*_duplicates(hosts, source))
        self.hosts = hosts
        self.source = source
        self.slots_are_capacity = slots_are_capacity

    def take(self, hosts: Iterable[Host]) -> "HostList":
        """Return a copy of this list with other hosts."""
        return HostList(tuple(hosts), self.source, slots_are_capacity=self.slots_are_capacity)

    def __len__(self) -> int:
        return len(self.hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __str__(self) -> str:
        return fold(self.names)


def _duplicates(hosts: Iterable[Host], source: str) -> list[str]:
    first_positions: dict[str, int] = {}
    problems = []
    for position, host in enumerate(hosts, 1):
        first = first_positions.setdefault(host.name, position)
        if first != position:
            problems.append(
                f"{source}: host {host.name!r} is listed twice, at positions {first} and {position}; "
                f"list each host once ({host.name}:2 gives it 2 slots)"
            )
    return problems


def fold(names: Iterable[str]) -> str:
    """Abbreviate host names to ranges, in their order.

    >>> fold(["n1", "n2", "n3", "a"])
    'n[1-3],a'
    """
    names = list(names)
    if len(names) < 2:
        return "".join(names)
    from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415 - 20 ms; most commands do not need it

    runs: list[list[str]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        if runs and stem == runs[-1][0].rstrip("0123456789"):
            runs[-1].append(name)
        else:
            runs.append([name])
    folded = [NodeSet.fromlist(run) if all(re.fullmatch(_NAME, name) for name in run) else [] for run in runs]
    return ",".join(
        str(nodes) if list(nodes) == run else ",".join(run) for nodes, run in zip(folded, runs, strict=True)
    )


def parse_hosts(text: str, where: str = "hosts") -> HostList:
    """Parse a comma-separated list of names, ranges `n[01-16]`, IPv4 and IPv6 addresses, each with optional `:slots`.

    Hosts of a range are in ascending order. Raises InputError with the column of each malformed element.

    >>> [host.name for host in parse_hosts("b,a[1-2]:4")]
    ['b', 'a1', 'a2']
    """
    hosts: list[Host] = []
    problems: list[str] = []
    column = 1
    for element in _split(text):
        place = f"{where}, column {column + len(element) - len(element.lstrip())}"
        column += len(element) + 1
        try:
            name, slots = _split_slots(element.strip(), place)
            hosts += (Host(host, slots) for host in _expand(name, place))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return HostList(tuple(hosts), where)


def parse_hostfile(text: str, where: str) -> HostList:
    """Parse a hostfile in any of its dialects; `where` is the file's name.

    A line is `host`, `host slots=4 max_slots=8`, `host:4` or `host 4`, with ranges and `rack=NAME` allowed; `#` starts
    a comment. A host on several lines keeps its first position, and its slots add up; a line without slots counts as
    one, as in PBS node files. Raises InputError with the line and column of each problem.
    """
    hosts: dict[str, Host] = {}
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = list(re.finditer(r"\S+", line.partition("#")[0]))
        try:
            for host in _parse_line(words, f"{where}, line {number}") if words else ():
                hosts[host.name] = _merge(hosts.get(host.name), host, f"{where}, line {number}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return HostList(tuple(hosts.values()), where)


def render_hostfile(hosts: Iterable[Host]) -> str:
    """Render hosts as a hostfile for `parse_hostfile` and Open MPI, one host per line."""
    return "".join(
        host.name
        + (f" slots={host.slots}" if host.slots is not None else "")
        + (f" rack={host.rack}" if host.rack is not None else "")
        + "\n"
        for host in hosts
    )


def _merge(earlier: Host | None, host: Host, place: str) -> Host:
    """Combine a host's line with its earlier lines. Raises InputError where their racks differ."""
    if earlier is None:
        return host
    if None not in (earlier.rack, host.rack) and earlier.rack != host.rack:
        raise InputError(
            f"{place}: {host.name} is in rack {host.rack}, but in {earlier.rack} on an earlier line; leave one out"
        )
    slots = (1 if earlier.slots is None else earlier.slots) + (1 if host.slots is None else host.slots)
    return Host(host.name, slots, host.rack or earlier.rack)


def _parse_line(words: list[re.Match[str]], place: str) -> list[Host]:
    name, slots = _split_slots(words[0].group(), f"{place}, column {words[0].start() + 1}")
    rack = None
    for word in words[1:]:
        here = f"{place}, column {word.start() + 1}"
        key, equals, value = word.group().partition("=")
        if not equals and slots is None and word is words[1]:
            slots = _parse_slots(key, here)
        elif key == "slots" and slots is None:
            slots = _parse_slots(value, here)
        elif key in ("max_slots", "max-slots"):
            _parse_slots(value, here)
        elif key == "rack" and rack is None and value:
            rack = value
        else:
            raise InputError(
                f"{here}: {word.group()!r} is unknown or repeated; write a line as: host slots=4 max_slots=8 rack=r1"
            )
    return [Host(host, slots, rack) for host in _expand(name, f"{place}, column {words[0].start() + 1}")]


def _split(text: str) -> list[str]:
    """Split a list at the commas outside brackets."""
    return re.findall(r"(?:\[[^\]]*\]?|[^,\[])+|(?<=,)(?=,|$)|^(?=,|$)", text)


def _split_slots(text: str, place: str) -> tuple[str, int | None]:
    """Split `a:4`, `[::1]:4` or `::1` into name and slots."""
    literal = re.fullmatch(r"\[([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\](?::(.*))?", text)
    if literal:
        return literal[1], None if literal[2] is None else _parse_slots(literal[2], place)
    if re.sub(_BRACKET, "", text).count(":") != 1:
        return text, None
    name, _, slots = text.rpartition(":")
    return name, _parse_slots(slots, place)


def _parse_slots(text: str, place: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        raise InputError(f"{place}: {text!r} slots; the number must be an integer of at least 1")
    return int(text)


def _expand(text: str, place: str) -> list[str]:
    """Return the host names of a name or range. Raises InputError where it is malformed."""
    if "[" not in text and "]" not in text:
        return [check_host_name(text, place)]
    count = math.prod(_count(match[1], text, place) for match in re.finditer(_BRACKET, text))
    stem = re.sub(_BRACKET, "0", text)
    if "[" in stem or "]" in stem:
        raise InputError(f"{place}: {text!r} has an unmatched bracket; write a range as n[1-4,7] or n[01-16]")
    if "][" in text:
        raise InputError(f"{place}: {text!r} has two adjacent brackets; list the names, or write n[1-2]-[1-4]")
    check_host_name(stem, place)
    if count > MOST_HOSTS:
        raise InputError(f"{place}: {text!r} means {count} hosts; at most {MOST_HOSTS} are allowed")
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415 - 20 ms; a plain list does not need it

    names = list(NodeSet(text, resolver=RESOLVER_NOGROUP))
    if len(names) < count:
        raise InputError(f"{place}: {text!r} names a host twice; write ranges that do not overlap")
    return names


def _count(ranges: str, text: str, place: str) -> int:
    """Count the values of a bracket without building the list, which may be huge."""
    total = 0
    for part in ranges.split(","):
        match = re.fullmatch(_RANGE, part)
        if not match:
            raise InputError(f"{place}: {part!r} in {text!r} is not a range; write a range as n[1-4,7] or n[01-16]")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or not step:
            raise InputError(f"{place}: the range {part!r} in {text!r} is empty; write the smaller number first")
        if match[2] and match[1].startswith("0") and len(match[1]) > 1 and len(match[1]) != len(match[2]):
            raise InputError(
                f"{place}: the ends of {part!r} in {text!r} are padded differently; pad both to the same width"
            )
        total += (high - low) // step + 1
    return total


def check_host_name(name: str, place: str) -> str:
    """Return a host name unchanged. Raises InputError, beginning with `place`, where it is not valid."""
    if re.fullmatch(_NAME, name) or _is_ipv6(name):
        return name
    if not name:
        raise InputError(f"{place}: a host name is missing")
    if "@" in name:
        raise InputError(f"{place}: {name!r} names a user; set User in ~/.ssh/config and write the host name alone")
    raise InputError(f"{place}: {name!r} is not a host name; use letters, digits, '.', '-' and '_'")


def _is_ipv6(name: str) -> bool:
    if name.count(":") < 2:
        return False
    import ipaddress  # noqa: PLC0415 - rarely needed

    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return "%" not in name
