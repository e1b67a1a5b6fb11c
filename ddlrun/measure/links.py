"""Rates of the links of each level: a pair of learners alone, and all pairs that share a link at once."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from ddlrun.ddl.selection.nic_monitor import pair_hosts, round_rates
from ddlrun.measure.pair_rates import Pair
from ddlrun.measure.traffic import Traffic
from ddlrun.network.fabric import LEVELS, Fabric, Link
from ddlrun.network.measurements import LinkRates
from ddlrun.topology import Topology

# Two hosts have a single link, so neither of them is slower.
LEAST_HOSTS = 3


def pairs_of(topology: Topology, rack_numbers: Sequence[int] = ()) -> dict[str, list[Pair]]:
    """Return the pairs of ranks that load one link of each level; ranks are contiguous on hosts.

    - host: neighbours on the first host
    - nic: all learners of a host with those of another in its rack
    - uplink: all learners of the first rack with as many of another one

    `rack_numbers` has the rack of each host; without it racks are those of the topology, Y hosts each.
    """
    x, y = topology.dims[:2]
    rack_of = rack_numbers or [host // y for host in range(topology.hosts)]
    members: dict[int, list[int]] = {}
    for host, rack in enumerate(rack_of):
        members.setdefault(rack, []).append(host)
    largest = max(members.values(), key=len)
    first, *others = members.values()
    across = list(zip(first, others[0], strict=False)) if others else []

    def ranks(hosts: Sequence[Pair]) -> list[Pair]:
        return [(host * x + local, other * x + local) for host, other in hosts for local in range(x)]

    pairs = {
        "host": [(rank, rank + 1) for rank in range(0, x - 1, 2)],
        "nic": ranks([(largest[0], largest[1])] if len(largest) > 1 else []),
        "uplink": ranks(across),
    }
    return {level: of_level for level, of_level in pairs.items() if of_level}


def measure_links(traffic: Traffic, topology: Topology, rack_numbers: Sequence[int] = ()) -> dict[str, LinkRates]:
    """Return the latency of each level, and the bytes/s of a pair alone and of all that share the link.

    With one host per rack a NIC is never alone: then the figures of the uplink are reported as those of the NIC.
    """
    links: dict[str, LinkRates] = {}
    for level, pairs in pairs_of(topology, rack_numbers).items():
        traffic.warm_up(pairs[:1])
        single = max(traffic(pairs[:1])[0] for _ in range(2))
        if len(pairs) > 1:
            traffic.warm_up(pairs)
        shared = max(sum(traffic(pairs)) for _ in range(2))
        links[level] = {"latency": traffic.latencies[pairs[0]], "single": single, "shared": shared}
    if "uplink" in links and "nic" not in links:
        links["nic"] = links.pop("uplink")
    return links


def measure_nics(traffic: Traffic, topology: Topology, rack_numbers: Sequence[int] = ()) -> tuple[float, ...]:
    """Return the rate of each host's NIC in bytes/s, by exchanges between pairs of hosts; empty for two hosts."""
    if topology.hosts < LEAST_HOSTS:
        return ()
    x, y = topology.dims[:2]
    racks = [topology.hosts] if rack_numbers else [y] * (topology.hosts // y)
    best = [0.0] * topology.hosts
    for pairs in pair_hosts(racks):
        rates = traffic([(host * x + local, other * x + local) for host, other in pairs for local in range(x)])
        for number, pair in enumerate(pairs):
            rate = sum(rates[number * x : (number + 1) * x])
            for host in pair:
                best[host] = max(best[host], rate)
    return round_rates(best)


def with_nics(fabric: Fabric, rates: Sequence[float], names: Sequence[str]) -> Fabric:
    """Return the links with the hosts whose NIC's rate differs from most; `rates` is empty if none was measured."""
    if len(set(rates)) <= 1:
        return fabric
    usual = statistics.median(rates)
    at_nic = LEVELS.index("nic")
    links = list(fabric.links)
    links[at_nic] = replace(links[at_nic], bandwidth=usual)
    nics = tuple((name, rate) for name, rate in zip(names, rates, strict=True) if rate != usual)
    return replace(fabric, links=tuple(links), nics=nics)


def fabric_of(links: dict[str, LinkRates], topology: Topology, source: str, rack_numbers: Sequence[int] = ()) -> Fabric:
    """Return the measured links for `ddlrun network plan --links`; the rates are those of data, without a payload."""
    levels = []
    for level in LEVELS:
        link = links.get(level)
        if link is None:
            levels.append(Link())
        else:
            levels.append(Link(link["single"] if level == "host" else link["shared"], link["latency"]))
    largest = max(map(rack_numbers.count, rack_numbers), default=topology.dims[1])
    per_rack = largest if "uplink" in links else None
    return Fabric(tuple(levels), name="measured", source=source, hosts_per_rack=per_rack)
