"""What the links of each level carry: pairs of learners alone, and all that share a link at once."""

from collections.abc import Sequence

from ddlrun.measure.pair_rates import Pair
from ddlrun.measure.traffic import Traffic
from ddlrun.network.fabric import LEVELS, Fabric, Link
from ddlrun.topology import Topology


def pairs_of(topology: Topology, racks: Sequence[int] = ()) -> dict[str, list[Pair]]:
    """Return the pairs that load one link of each level, ranks contiguous on hosts.

    A host's own link: neighbours inside the first host. A NIC: all learners of a host with those of one in its rack.
    An uplink: all of the first rack with as many of another one. `racks` numbers the rack of each host; without it
    they are as the topology has them, Y hosts in each.
    """
    x, y = topology.dims[:2]
    where = racks or [host // y for host in range(topology.hosts)]
    members: dict[int, list[int]] = {}
    for host, rack in enumerate(where):
        members.setdefault(rack, []).append(host)
    larger = max(members.values(), key=len)
    first, *others = members.values()
    across = list(zip(first, others[0], strict=False)) if others else []

    def ranks(hosts: Sequence[Pair]) -> list[Pair]:
        return [(one * x + local, other * x + local) for one, other in hosts for local in range(x)]

    pairs = {"host": [(rank, rank + 1) for rank in range(0, x - 1, 2)]}
    pairs |= {"nic": ranks([(larger[0], larger[1])] if len(larger) > 1 else []), "uplink": ranks(across)}
    return {level: some for level, some in pairs.items() if some}


def measure_links(traffic: Traffic, topology: Topology, racks: Sequence[int] = ()) -> dict[str, dict[str, float]]:
    """Return for each level the seconds of a message and the bytes/s of a pair alone, and of all that share the link.

    Of a NIC that is nowhere alone (one host a rack) the uplink's figures are its own.
    """
    found = {}
    for level, pairs in pairs_of(topology, racks).items():
        traffic.warm_up(pairs[:1])
        alone = max(traffic(pairs[:1])[0] for _ in range(2))
        if len(pairs) > 1:
            traffic.warm_up(pairs)
        together = max(sum(traffic(pairs)) for _ in range(2))
        found[level] = {"latency": traffic.latencies[pairs[0]], "alone": alone, "together": together}
    if "uplink" in found and "nic" not in found:
        found["nic"] = found.pop("uplink")
    return found


def fabric_of(links: dict[str, dict[str, float]], topology: Topology, source: str, racks: Sequence[int] = ()) -> Fabric:
    """Return the measured links as `ddlrun plan --network` takes them: what data got, so no payload."""
    made = []
    for level in LEVELS:
        one = links.get(level)
        rate = 0.0 if one is None else one["alone" if level == "host" else "together"]
        made.append(Link() if one is None else Link(rate, one["latency"]))
    largest = max(map(racks.count, racks), default=topology.dims[1])
    per_rack = largest if "uplink" in links else None
    return Fabric(tuple(made), "measured", source, per_rack)
