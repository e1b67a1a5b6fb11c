"""Measured racks as a hostfile, as text and as JSON."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddlrun.hosts import Host, HostList, fold
from ddlrun.mapping.rack_layout import by_rack
from ddlrun.units import render_rate, render_seconds

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.network.measurements import MeasuredLevel, RacksResult

NAMES = ("rack", "aisle", "hall")


@dataclass(frozen=True, slots=True)
class RackComparison:
    """The source that declares racks (a scheduler, a hostfile), and whether the measured racks are the same."""

    source: str
    same: bool


@dataclass(frozen=True, slots=True)
class MeasuredHierarchy:
    """Hosts, with their declared racks where there are any, and the JSON result of ddlrun.measure for them."""

    hosts: HostList
    result: "RacksResult"

    @property
    def certain(self) -> bool:
        """Whether no level is in doubt."""
        return not any(level["doubts"] for level in self.result["levels"])

    def racks(self) -> list[tuple[str, ...]]:
        """Return the hosts of each rack, racks of one aisle next to each other; one rack where the network is flat."""
        names = self.hosts.names
        levels = self.result["levels"]
        if not levels:
            return [names]
        # A group of the last level lists its racks one after another.
        order = [host for group in levels[-1]["groups"] for host in group]
        place = {host: at for at, host in enumerate(order)}
        racks = sorted(levels[0]["groups"], key=lambda group: min(place[host] for host in group))
        return [tuple(names[host] for host in sorted(group)) for group in racks]

    def ordered(self) -> list[Host]:
        """Return the hosts rack by rack, with their slots."""
        slots = {host.name: host.slots for host in self.hosts}
        return [Host(name, slots[name], f"r{number}") for number, rack in enumerate(self.racks(), 1) for name in rack]

    def shape(self) -> tuple[int, int]:
        """Return Y and Z: the greatest common divisor of the racks' sizes and its count; without one, a single rack."""
        racks = self.racks()
        common = math.gcd(*map(len, racks))
        return (common, len(self.hosts) // common) if common > 1 or len(racks) == 1 else (len(self.hosts), 1)

    def compare(self) -> RackComparison | None:
        """Compare the racks with the declared ones; None where none are declared."""
        racks = by_rack(self.hosts)
        if not racks:
            return None
        declared = {frozenset(host.name for host in rack) for rack in racks.values()}
        return RackComparison(self.hosts.source, declared == set(map(frozenset, self.racks())))


def render_hierarchy(hierarchy: MeasuredHierarchy) -> str:
    """Render the racks, the rates that show them, and doubts, on one screen."""
    return "".join(f"{line}\n" for line in _lines(hierarchy))


def _lines(hierarchy: MeasuredHierarchy) -> Iterator[str]:
    result, count = hierarchy.result, len(hierarchy.hosts)
    spent = f"{result['rounds']} rounds of pairs, {render_seconds(result['seconds'])}"
    if not hierarchy.certain:
        yield f"{count} hosts, racks not certain ({spent})"
        for level in result["levels"]:
            for reason, hosts in level["doubts"]:
                yield f"  {reason}: {fold(hierarchy.hosts.names[host] for host in hosts)}"
        yield "other jobs on these hosts or links? run it again when they are quiet"
        return
    racks = hierarchy.racks()
    if len(racks) == 1:
        yield f"{count} hosts, flat: no host slows others down ({spent})"
    else:
        yield f"{count} hosts in {len(racks)} racks ({spent})"
        for number, rack in enumerate(racks, 1):
            yield f"  r{number}: {fold(rack)}"
    yield from _evidence(hierarchy)
    y, z = hierarchy.shape()
    yield f"topology: Xx{y}x{z} (X ranks per host); -o FILE writes a hostfile with these racks"


def _evidence(hierarchy: MeasuredHierarchy) -> Iterator[str]:
    near, far = hierarchy.result["latency"]
    if not hierarchy.result["levels"]:
        yield f"per pair, all at once: {render_rate(hierarchy.result['rate'])} per direction"
    for number, level in enumerate(hierarchy.result["levels"]):
        name = NAMES[min(number, len(NAMES) - 1)]
        yield (
            f"per pair, all at once: inside a {name} {render_rate(level['inside'])} per direction; "
            f"between {name}s {render_rate(level['across'])}, {level['inside'] / level['across']:.2g} times slower"
        )
    latencies = [(name, seconds) for name, seconds in (("in a rack", near), ("across", far)) if seconds is not None]
    yield f"latency {', '.join(f'{name} {render_seconds(seconds)}' for name, seconds in latencies)}"
    if (comparison := hierarchy.compare()) is not None:
        declared = "; ".join(fold(host.name for host in rack) for rack in by_rack(hierarchy.hosts).values())
        yield f"racks of {comparison.source}: {'the same' if comparison.same else declared}"


def hierarchy_dict(hierarchy: MeasuredHierarchy) -> dict[str, Any]:
    """Return the JSON of --json: bytes/s of a pair per direction, seconds, names of hosts."""
    names, result = hierarchy.hosts.names, hierarchy.result
    comparison = hierarchy.compare()
    y, z = hierarchy.shape()
    inside, across = result["latency"]
    return {
        "certain": hierarchy.certain,
        "racks": [list(rack) for rack in hierarchy.racks()] if hierarchy.certain else None,
        "topology": f"Xx{y}x{z}" if hierarchy.certain else None,
        "levels": [_level_dict(level, names) for level in result["levels"]],
        "latency": {"inside": inside, "across": across},
        "declared": None if comparison is None else {"source": comparison.source, "equal": comparison.same},
        "rounds": result["rounds"],
        "seconds": result["seconds"],
    }


def _level_dict(level: "MeasuredLevel", names: Sequence[str]) -> dict[str, Any]:
    return {
        "groups": [[names[host] for host in group] for group in level["groups"]],
        "inside": level["inside"],
        "across": level["across"],
        "doubts": [{"reason": reason, "hosts": [names[host] for host in hosts]} for reason, hosts in level["doubts"]],
    }
