"""Racks that were found by measuring, as a hostfile, as text and as JSON."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ddlrun.hosts import Host, HostList, fold
from ddlrun.mapping.rack_layout import by_rack
from ddlrun.units import render_rate, render_seconds

NAMES = ("rack", "aisle", "hall")


class MeasuredHierarchy(NamedTuple):
    """Hosts, with racks where a scheduler or hostfile says them, and what ddlrun.measure found of them."""

    hosts: HostList
    found: dict[str, Any]

    @property
    def certain(self) -> bool:
        """Whether all levels are beyond doubt."""
        return not any(level["doubts"] for level in self.found["levels"])

    def racks(self) -> list[tuple[str, ...]]:
        """Return the hosts of each rack, racks of one aisle beside each other; one rack where the network is flat."""
        names = self.hosts.names
        levels = self.found["levels"]
        if not levels:
            return [names]
        # A group of the last level has its racks one after the other.
        order = [host for group in levels[-1]["groups"] for host in group]
        place = {host: at for at, host in enumerate(order)}
        racks = sorted(levels[0]["groups"], key=lambda group: min(place[host] for host in group))
        return [tuple(names[host] for host in sorted(group)) for group in racks]

    def ordered(self) -> list[Host]:
        """Return the hosts rack by rack, with slots as they were."""
        slots = {host.name: host.slots for host in self.hosts}
        return [Host(name, slots[name], f"r{number}") for number, rack in enumerate(self.racks(), 1) for name in rack]

    def shape(self) -> tuple[int, int]:
        """Return Y and Z: hosts of a group that leaves no rack, and how many of them there are."""
        racks = self.racks()
        common = math.gcd(*map(len, racks))
        return (common, len(self.hosts) // common) if common > 1 or len(racks) == 1 else (len(self.hosts), 1)

    def told(self) -> tuple[str, bool] | None:
        """Return who else says racks, and whether they are the same; None: nobody."""
        racks = by_rack(self.hosts)
        if not racks:
            return None
        said = {frozenset(host.name for host in rack) for rack in racks.values()}
        return self.hosts.source, said == set(map(frozenset, self.racks()))


def render_hierarchy(hierarchy: MeasuredHierarchy) -> str:
    """Write what was found on one screen."""
    return "".join(f"{line}\n" for line in _lines(hierarchy))


def _lines(hierarchy: MeasuredHierarchy) -> Iterator[str]:
    found, count = hierarchy.found, len(hierarchy.hosts)
    spent = f"{found['rounds']} rounds of pairs, {render_seconds(found['seconds'])}"
    if not hierarchy.certain:
        yield f"{count} hosts, racks not certain ({spent})"
        for level in found["levels"]:
            for why, some in level["doubts"]:
                yield f"  {why}: {fold(hierarchy.hosts.names[host] for host in some)}"
        yield "other jobs on these hosts or links? run it again when they are quiet"
        return
    racks = hierarchy.racks()
    if len(racks) == 1:
        yield f"{count} hosts, flat: nobody slows others down ({spent})"
    else:
        yield f"{count} hosts in {len(racks)} racks ({spent})"
        for number, rack in enumerate(racks, 1):
            yield f"  r{number}: {fold(rack)}"
    yield from _evidence(hierarchy)
    y, z = hierarchy.shape()
    yield f"topology: Xx{y}x{z} (X learners per host); -o FILE writes such a hostfile for launch"


def _evidence(hierarchy: MeasuredHierarchy) -> Iterator[str]:
    near, far = hierarchy.found["latency"]
    if not hierarchy.found["levels"]:
        yield f"a pair, all at once: {render_rate(hierarchy.found['rate'])} each way"
    for number, level in enumerate(hierarchy.found["levels"]):
        name = NAMES[min(number, len(NAMES) - 1)]
        yield (
            f"a pair in one {name}, all at once: {render_rate(level['inside'])} each way; "
            f"across: {render_rate(level['across'])}, {level['inside'] / level['across']:.2g} times less"
        )
    if far is None:
        yield f"latency: {render_seconds(near)}"
    elif near is not None:
        yield f"latency in a rack {render_seconds(near)}, across {render_seconds(far)}"
    if (told := hierarchy.told()) is not None:
        other = "; ".join(fold(host.name for host in rack) for rack in by_rack(hierarchy.hosts).values())
        yield f"{told[0]} says {'the same racks' if told[1] else f'other racks: {other}'}"


def hierarchy_dict(hierarchy: MeasuredHierarchy) -> dict[str, Any]:
    """Return what `--json` prints: bytes/s of a pair each way, seconds; hosts by name."""
    names, found = hierarchy.hosts.names, hierarchy.found
    told = hierarchy.told()
    y, z = hierarchy.shape()
    return {
        "certain": hierarchy.certain,
        "racks": [list(rack) for rack in hierarchy.racks()] if hierarchy.certain else None,
        "topology": f"Xx{y}x{z}" if hierarchy.certain else None,
        "levels": [
            {
                "groups": [[names[host] for host in group] for group in level["groups"]],
                "inside": level["inside"], "across": level["across"],
                "doubts": [{"why": why, "hosts": [names[host] for host in some]} for why, some in level["doubts"]],
            }
            for level in found["levels"]
        ],
        "latency": dict(zip(("inside", "across"), found["latency"], strict=True)),
        "said": None if told is None else {"by": told[0], "same": told[1]},
        "rounds": found["rounds"],
        "seconds": found["seconds"],
    }  # fmt: skip
