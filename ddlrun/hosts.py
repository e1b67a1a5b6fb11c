"""Host lists and hostfiles <-> HostList."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ddlrun.errors import InputError

# A host expression that stands for more hosts than this is a slip of the finger.
MOST_HOSTS = 1_000_000

# Patterns stay text: `re` compiles what a run uses, and keeps it.
_NAME = r"(?![-.])[A-Za-z0-9._-]{1,253}(?<![-.])"
_BRACKET = r"\[([^\[\]]*)\]"
_RANGE = r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,9}))?)?"


class Host(NamedTuple):
    """One host: its name, how many ranks it may take (None: not said) and its rack (None: not said)."""

    name: str
    slots: int | None = None
    rack: str | None = None


class HostList:
    """Hosts in the order of ranks, each once, and where the list came from; never changed.

    `loose`: the slots are what a scheduler gave, cores perhaps, not a number of ranks that somebody wants.
    """

    __slots__ = ("hosts", "loose", "names", "source")

    def __init__(self, hosts: tuple[Host, ...], source: str, *, loose: bool = False) -> None:
        if not hosts:
            raise InputError(f"{source}: no hosts there; name at least one")
        self.names = tuple(host.name for host in hosts)
        if len(set(self.names)) < len(hosts):
            raise InputError(*_duplicates(hosts, source))
        self.hosts = hosts
        self.source = source
        self.loose = loose

    def take(self, hosts: Iterable[Host]) -> "HostList":
        """Return a list of these hosts that has everything else of this one."""
        return HostList(tuple(hosts), self.source, loose=self.loose)

    def __len__(self) -> int:
        return len(self.hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __str__(self) -> str:
        return fold(self.names)


def _duplicates(hosts: Iterable[Host], source: str) -> list[str]:
    first: dict[str, int] = {}
    problems = []
    for place, host in enumerate(hosts, 1):
        if first.setdefault(host.name, place) != place:
            problems.append(
                f"{source}: host {host.name!r} stands twice, at places {first[host.name]} and {place}; "
                f"name a host once ({host.name}:2 gives it 2 slots)"
            )
    return problems


def fold(names: Iterable[str]) -> str:
    """Write names shortly, in their order.

    >>> fold(["n1", "n2", "n3", "a"])
    'n[1-3],a'
    """
    names = list(names)
    if len(names) < 2:
        return "".join(names)
    from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415 - 20 ms that most commands do not need

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
    """Parse a comma list: names, ranges `n[01-16]`, IPv4, IPv6, each with `:slots` if wanted.

    A range's hosts come in ascending order. Raises InputError with the column of each bad element.

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
            hosts += (Host(one, slots) for one in _expand(name, place))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return HostList(tuple(hosts), where)


def parse_hostfile(text: str, where: str) -> HostList:
    """Parse a hostfile in any of its dialects; `where` is the file's name.

    A line: `host`, `host slots=4 max_slots=8`, `host:4`, `host 4`, ranges, a `rack=` word; `#` starts
    a comment. A host on several lines keeps its first place; its slots add up, a bare line counting
    one (as PBS writes them). Raises InputError with line and column of each problem.
    """
    found: dict[str, Host] = {}
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = list(re.finditer(r"\S+", line.partition("#")[0]))
        try:
            for host in _parse_line(words, f"{where}, line {number}") if words else ():
                found[host.name] = _merge(found.get(host.name), host, f"{where}, line {number}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return HostList(tuple(found.values()), where)


def render_hostfile(hosts: Iterable[Host]) -> str:
    """Write hosts as `parse_hostfile` and Open MPI read them, one a line."""
    return "".join(
        host.name
        + (f" slots={host.slots}" if host.slots is not None else "")
        + (f" rack={host.rack}" if host.rack is not None else "")
        + "\n"
        for host in hosts
    )


def _merge(before: Host | None, host: Host, place: str) -> Host:
    if before is None:
        return host
    if None not in (before.rack, host.rack) and before.rack != host.rack:
        raise InputError(f"{place}: {host.name} is in rack {host.rack}, but in {before.rack} further up; leave one out")
    slots = (1 if before.slots is None else before.slots) + (1 if host.slots is None else host.slots)
    return Host(host.name, slots, host.rack or before.rack)


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
                f"{here}: {word.group()!r} is not known or comes twice; a line is: host slots=4 max_slots=8 rack=r1"
            )
    return [Host(one, slots, rack) for one in _expand(name, f"{place}, column {words[0].start() + 1}")]


def _split(text: str) -> list[str]:
    """Split at commas that stand outside of brackets."""
    return re.findall(r"(?:\[[^\]]*\]?|[^,\[])+|(?<=,)(?=,|$)|^(?=,|$)", text)


def _split_slots(text: str, place: str) -> tuple[str, int | None]:
    """Part `a:4`, `[::1]:4` and `::1` into name and slots."""
    literal = re.fullmatch(r"\[([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\](?::(.*))?", text)
    if literal:
        return literal[1], None if literal[2] is None else _parse_slots(literal[2], place)
    if re.sub(_BRACKET, "", text).count(":") != 1:
        return text, None
    name, _, slots = text.rpartition(":")
    return name, _parse_slots(slots, place)


def _parse_slots(text: str, place: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        raise InputError(f"{place}: {text!r} slots; it must be an integer of at least 1")
    return int(text)


def _expand(text: str, place: str) -> list[str]:
    if "[" not in text and "]" not in text:
        return [check_host_name(text, place)]
    count = math.prod(_count(match[1], text, place) for match in re.finditer(_BRACKET, text))
    stem = re.sub(_BRACKET, "0", text)
    if "[" in stem or "]" in stem:
        raise InputError(f"{place}: {text!r} has a bracket without its partner; a range is n[1-4,7] or n[01-16]")
    if "][" in text:
        raise InputError(f"{place}: {text!r} has two brackets side by side; write the names out, or n[1-2]-[1-4]")
    check_host_name(stem, place)
    if count > MOST_HOSTS:
        raise InputError(f"{place}: {text!r} stands for {count} hosts; at most {MOST_HOSTS} are possible")
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415 - 20 ms that a plain list does not need

    names = list(NodeSet(text, resolver=RESOLVER_NOGROUP))
    if len(names) < count:
        raise InputError(f"{place}: {text!r} names a host twice; its ranges overlap")
    return names


def _count(ranges: str, text: str, place: str) -> int:
    """Count what a bracket stands for, before anything that large is made."""
    total = 0
    for part in ranges.split(","):
        match = re.fullmatch(_RANGE, part)
        if not match:
            raise InputError(f"{place}: {part!r} in {text!r} is not a range; write n[1-4,7] or n[01-16]")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or not step:
            raise InputError(f"{place}: the range {part!r} in {text!r} is empty; write the smaller number first")
        if match[2] and match[1].startswith("0") and len(match[1]) > 1 and len(match[1]) != len(match[2]):
            raise InputError(f"{place}: the ends of {part!r} in {text!r} are padded differently; write them alike")
        total += (high - low) // step + 1
    return total


def check_host_name(name: str, place: str) -> str:
    """Return the name. Raises InputError where it is none; `place` is where it stands."""
    if re.fullmatch(_NAME, name) or _is_ipv6(name):
        return name
    if not name:
        raise InputError(f"{place}: a host name is missing there")
    if "@" in name:
        raise InputError(f"{place}: {name!r} names a user; put User into ~/.ssh/config and leave the host alone")
    raise InputError(f"{place}: {name!r} is not a host name; letters, digits, '.', '-' and '_' are possible")


def _is_ipv6(name: str) -> bool:
    if name.count(":") < 2:
        return False
    import ipaddress  # noqa: PLC0415 - rarely needed

    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return "%" not in name
