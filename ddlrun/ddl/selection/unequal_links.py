"""Unequal hosts and links of a job: the text that describes them, and the layout that all ranks use."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddlrun.block_sizing import JobLinks, divide_blocks, is_equal
from ddlrun.ddl.schedules.weighted_schedule import HostLayout
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LINKS = "DDLRUN_DDL_LINKS"
# The hosts of each rack, from `ddlrun launch`.
RACKS = "DDLRUN_RACKS"
FIELDS = ("nics", "racks", "uplinks")
# A factor of a sum such as 3*100+50.
MOST_HOSTS = 1_000_000
_TERM = r"(?:([0-9]{1,7})\*)?([0-9]{1,15}(?:\.[0-9]{1,9})?)"


@dataclass(frozen=True, slots=True)
class HostGroups:
    """The hosts of a job, rack by rack: the ranks of each one, and the number of hosts of each rack."""

    ranks: tuple[tuple[int, ...], ...]
    racks: tuple[int, ...]


def parse_links(text: str) -> dict[str, tuple[float, ...]]:
    """Parse "nics=3*100+50,racks=2+2,uplinks=2*400": rates in any unit, and the hosts of each rack.

    Raises InputError.

    >>> parse_links("nics=3*100+50")
    {'nics': (100.0, 100.0, 100.0, 50.0)}
    """
    lists = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        terms = [re.fullmatch(_TERM, term) for term in value.split("+")]
        numbers = [float(term[2]) for term in terms if term for _ in range(min(int(term[1] or 1), MOST_HOSTS))]
        if name not in FIELDS or None in terms or min(numbers, default=0) <= 0:
            raise InputError(
                f"{LINKS} {text!r}: {part.strip()!r} is not NAME=NUMBERS with {', '.join(FIELDS)}; write for "
                "example nics=3*100+50,racks=2+2,uplinks=2*400"
            )
        lists[name] = tuple(numbers)
    return lists


def make_layout(text: str, hosts: HostGroups, *, is_part: bool = False) -> HostLayout | None:
    """Return the layout of unequal hosts or links; None if all are equal.

    Args:
        text: The rates, as for `parse_links`; without them all NICs are equal.
        hosts: The hosts of the group. Racks in the text replace these.
        is_part: The group is a part of the job. On other hosts than the text describes it uses no rates.

    Raises InputError if the text is wrong, or describes other hosts than those of the whole job.
    """
    lists, count = parse_links(text), len(hosts.ranks)
    racks = tuple(int(size) for size in lists.get("racks", hosts.racks))
    links = JobLinks(lists.get("nics", (1.0,) * count), racks, lists.get("uplinks", ()))
    problems = [
        f"{LINKS} {text!r}: {there} {name}, but the job has {expected}"
        for name, there, expected in (
            ("NICs", len(links.nics), count),
            ("hosts in racks", sum(racks), count),
            ("uplinks", len(links.uplinks) or len(racks), len(racks)),
        )
        if there != expected
    ]
    if problems and not is_part:
        raise InputError(*problems)
    return make_layout("", hosts) if problems else layout_of(links, hosts)


def layout_of(links: JobLinks, hosts: HostGroups) -> HostLayout | None:
    """Return the layout of hosts with these links; None if all hosts and links are equal."""
    same_ranks = len({len(ranks) for ranks in hosts.ranks}) == 1
    if len(hosts.ranks) == 1 or (same_ranks and is_equal(links)):
        return None
    return HostLayout(hosts.ranks, divide_blocks(links))


def with_racks(hosts: HostGroups, environ: Mapping[str, str]) -> HostGroups:
    """Return the hosts with the racks of the launch, which does not know those of a part of the job."""
    racks = tuple(int(size) for size in environ.get(RACKS, "").split("+") if size.isdecimal())
    return replace(hosts, racks=racks) if sum(racks) == len(hosts.ranks) else hosts


def degraded_hosts(nics: Sequence[float], names: Sequence[str]) -> list[str]:
    """Return a sentence for each host whose NIC is slower than the median.

    >>> degraded_hosts((100.0, 100.0, 51.0, 100.0), ("h1", "h2", "h3", "h4"))
    ["h3's NIC carries 51 % of the others'"]
    """
    usual = statistics.median_high(nics)
    return [
        f"{name}'s NIC carries {100 * rate / usual:.0f} % of the others'"
        for rate, name in zip(nics, names, strict=True)
        if rate < usual
    ]
