"""Files with a host a line: what PBS, LSF and Cobalt leave."""

from collections.abc import Iterable

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, check_host_name


def count_hosts(names: Iterable[str]) -> dict[str, int]:
    """Return how often each name comes, in the order of its first."""
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def parse_nodefile(text: str, where: str) -> dict[str, int]:
    r"""Return slots by host: each line is a slot, and a host may come back later in the file.

    Raises InputError with the line of a name that is none.

    >>> parse_nodefile("b\na\nb\n", "nodefile")
    {'b': 2, 'a': 1}
    """
    problems: list[str] = []
    names = []
    for number, line in enumerate(text.splitlines(), 1):
        name = line.strip()
        if not name:
            continue
        try:
            names.append(check_host_name(name, f"{where}, line {number}"))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return count_hosts(names)


def with_slots(slots: dict[str, int], source: str) -> HostList:
    """Return the hosts; where each has one slot, nobody has said how many ranks it takes."""
    said = set(slots.values()) != {1}
    return HostList(tuple(Host(name, count if said else None) for name, count in slots.items()), source, slots_are_capacity=True)
