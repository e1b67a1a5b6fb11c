"""Node files of PBS, LSF and Cobalt, with one host per line."""

from collections.abc import Iterable, Mapping

from ddlrun.errors import InputError
from ddlrun.host_names import check_host_name
from ddlrun.hosts import Host, HostList


def count_hosts(names: Iterable[str]) -> dict[str, int]:
    """Count how often each name occurs, in the order of the first occurrences."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def parse_nodefile(text: str, where: str) -> dict[str, int]:
    r"""Return the slots of each host: every line is a slot, and lines of a host need not be adjacent.

    Raises InputError with the line of each invalid name.

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


def make_host_list(slots: Mapping[str, int], source: str) -> HostList:
    """Return the hosts with their slots; one slot on every host means that no number of ranks was requested."""
    has_slots = set(slots.values()) != {1}
    hosts = tuple(Host(name, count if has_slots else None) for name, count in slots.items())
    return HostList(hosts, source, slots_are_capacity=True)
