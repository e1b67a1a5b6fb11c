"""Host lists and hostfiles: parse, render and abbreviate."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ddlrun.errors import InputError, spell_options
from ddlrun.host_names import BRACKET, NAME, expand_names
from ddlrun.ranges import find_runs, render_range

# The words of Open MPI's hostfiles. A host may have max_slots alone: then these are its slots.
_HOSTFILE_WORD = r"[^\s=]+(?:\s*=\s*\S*)?|=\S*"
_SLOTS = "slots|count|cpu"
_MOST_SLOTS = rf"max[-_](?:{_SLOTS})|(?:{_SLOTS})[-_]max"
_SSH_CONFIG = "has no effect in a hostfile of ddlrun; set {} of the host in ~/.ssh/config"
FOREIGN_WORDS = {
    **dict.fromkeys(("username", "user-name", "user_name"), _SSH_CONFIG.format("User")),
    "port": _SSH_CONFIG.format("Port"),
}


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


def _duplicates(hosts: tuple[Host, ...], source: str) -> list[str]:
    first_positions: dict[str, int] = {}
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + (host.slots or 1)
    problems = []
    for position, host in enumerate(hosts, 1):
        first = first_positions.setdefault(host.name, position)
        if first != position:
            problems.append(
                f"{source}: host {host.name!r} is listed twice, at positions {first} and {position}; "
                f"list each host once ({host.name}:{slots[host.name]} gives it {slots[host.name]} slots)"
            )
    return problems


def fold(names: Iterable[str]) -> str:
    """Abbreviate host names to ranges, in their order.

    >>> fold(["n3", "n1", "n2", "a", "m09", "m10"])
    'n[3,1-2],a,m[09-10]'
    """
    stems: list[tuple[str, list[str]]] = []  # each with its numbers
    for name in names:
        stem, number = _split_number(name)
        if not (number and stems and stems[-1][0] == stem and stems[-1][1] != [""]):
            stems.append((stem, []))
        stems[-1][1].append(number)
    return ",".join(f"{stem}{_fold_numbers(numbers)}" for stem, numbers in stems)


def by_number(name: str) -> tuple[str, int, str]:
    """Return a key that sorts host names by their last number.

    >>> sorted(["n10", "n2", "a"], key=by_number)
    ['a', 'n2', 'n10']
    """
    stem, number = _split_number(name)
    return stem, int(number or 0), number


def _split_number(name: str) -> tuple[str, str]:
    """Split a name before its last digits; names with other characters are not split."""
    digits = re.search(r"[0-9]{1,18}$", name) if re.fullmatch(NAME, name) else None
    return (name[: digits.start()], digits[0]) if digits else (name, "")


def _fold_numbers(numbers: list[str]) -> str:
    runs = find_runs(numbers, lambda low, high: high == str(int(low) + 1).zfill(len(low)))
    text = ",".join(render_range(low, high) for low, high in runs)
    return text if not text or text.isdecimal() else f"[{text}]"


def parse_hosts(text: str, where: str = "hosts") -> HostList:
    """Parse a comma-separated list of names, ranges `n[01-16]`, IPv4 and IPv6 addresses, each with optional `:slots`.

    Hosts keep the order in which they are written; the list may end with a comma. Raises
    InputError with the column of each malformed element.

    >>> [host.name for host in parse_hosts("b,a[3,1-2]:4")]
    ['b', 'a3', 'a1', 'a2']
    """
    return HostList(tuple(parse_host_words(text, where)), spell_options(where))


def parse_host_words(text: str, where: str) -> list[Host]:
    """Parse as `parse_hosts` does, but allow hosts that occur several times, and none at all."""
    hosts: list[Host] = []
    problems: list[str] = []
    column = 1
    for element in _split(text.removesuffix(",")):
        place = f"{where}, column {column + len(element) - len(element.lstrip())}"
        column += len(element) + 1
        try:
            name, slots = _split_slots(element.strip(), place)
            hosts += (Host(host, slots) for host in expand_names(name, place))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return hosts


def parse_hostfile(text: str, where: str) -> HostList:
    """Parse a hostfile in any of its dialects; `where` is the file's name.

    A line is `host`, `host slots=4 max_slots=8`, `host:4` or `host 4`, with ranges and `rack=NAME` allowed. Open MPI's
    other words for slots, blanks around =, and its comments (#, // and /* */) are read, too. A host on several lines
    keeps its first position, and its slots add up. If a host is repeated, each line without slots counts as one, as in
    PBS node files. Raises InputError with the line and column of each problem.
    """
    hosts: dict[str, Host] = {}
    has_line_per_slot = False
    problems: list[str] = []
    for number, line in enumerate(blank_comments(text).splitlines(), 1):
        words = list(re.finditer(_HOSTFILE_WORD, line))
        try:
            for host in _parse_line(words, f"{where}, line {number}") if words else ():
                has_line_per_slot = has_line_per_slot or (host.name in hosts and host.slots is None)
                hosts[host.name] = _merge(hosts.get(host.name), host, f"{where}, line {number}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    default = 1 if has_line_per_slot else None
    return HostList(tuple(host._replace(slots=host.slots or default) for host in hosts.values()), where)


def blank_comments(text: str) -> str:
    r"""Replace Open MPI's comments by blanks: what follows # or // in a line, and /* */ over several.

    >>> blank_comments("a //b\nc /* d\n*/ e # f")
    'a    \nc     \n   e    '
    """
    return re.sub(r"(?s:/\*.*?(?:\*/|\Z))|(?:#|//).*", lambda match: re.sub(".", " ", match[0]), text)


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
    if "," in re.sub(BRACKET, "", name):
        raise InputError(f"{place}: {name!r} is not a host name; write one host per line, without commas")
    rack = most = None
    for word in words[1:]:
        here = f"{place}, column {word.start() + 1}"
        key, equals, value = (part.strip() for part in word.group().partition("="))
        if not equals and slots is None and word is words[1]:
            slots = _parse_slots(key, here)
        elif re.fullmatch(_SLOTS, key) and slots is None:
            slots = _parse_slots(value, here)
        elif re.fullmatch(_MOST_SLOTS, key) and most is None:
            most = _parse_slots(value, here)
        elif key == "rack" and rack is None and value:
            rack = value
        elif key in FOREIGN_WORDS:
            raise InputError(f"{here}: {word.group()!r} {FOREIGN_WORDS[key]}")
        else:
            remedy = _remedy_of_word(words[0].group(), key)
            raise InputError(f"{here}: {word.group()!r} is unknown or repeated; {remedy}")
    if slots is not None and most is not None and most < slots:
        raise InputError(f"{place}: slots={slots} is more than max_slots={most}; correct one of them")
    slots = most if slots is None else slots
    return [Host(host, slots, rack) for host in expand_names(name, f"{place}, column {words[0].start() + 1}")]


def _remedy_of_word(first: str, key: str) -> str:
    """Return the remedy of a word that is unknown, or repeated, in a line that begins with `first`."""
    if first == "rank":
        return "a rank file is an option of its own: `--rankfile` FILE"
    if re.fullmatch(_SLOTS, key) and ":" in first:
        return "the number after the colon is that of slots; set Port in ~/.ssh/config, or -p PORT for all"
    return "write a line as: host slots=4 max_slots=8 rack=r1"


def _split(text: str) -> list[str]:
    """Split a list at the commas outside brackets."""
    return re.findall(r"(?:\[[^\]]*\]?|[^,\[])+|(?<=,)(?=,|$)|^(?=,|$)", text)


def _split_slots(text: str, place: str) -> tuple[str, int | None]:
    """Split `a:4`, `[::1]:4` or `::1` into name and slots."""
    literal = re.fullmatch(r"\[([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\](?::(.*))?", text)
    if literal:
        return literal[1], None if literal[2] is None else _parse_slots(literal[2], place)
    if re.sub(BRACKET, "", text).count(":") != 1:
        return text, None
    name, _, slots = text.rpartition(":")
    return name, _parse_slots(slots, place)


def _parse_slots(text: str, place: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        raise InputError(f"{place}: {text!r} is not a number of slots; write an integer of at least 1")
    return int(text)
