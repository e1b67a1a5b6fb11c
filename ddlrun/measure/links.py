"""What the links of each level carry: pairs of learners alone, and all that share a link at once."""

from ddlrun.measure.meetings import Pair
from ddlrun.measure.traffic import Traffic
from ddlrun.network.fabric import LEVELS, Fabric, Link
from ddlrun.topology import Topology


def pairs_of(topology: Topology) -> dict[str, list[Pair]]:
    """Return the pairs that load one link of each level, ranks contiguous on hosts, hosts rack by rack.

    A host's own link: neighbours inside the first host. A NIC: all learners of the first host with the second one's.
    An uplink: all of the first rack with the second one's.
    """
    x, y, *others = topology.dims
    pairs = {"host": [(rank, rank + 1) for rank in range(0, x - 1, 2)]}
    pairs["nic"] = [(rank, rank + x) for rank in range(x)] if y > 1 else []
    pairs["uplink"] = [(rank, rank + x * y) for rank in range(x * y)] if others and others[0] > 1 else []
    return {level: some for level, some in pairs.items() if some}


def measure_links(traffic: Traffic, topology: Topology) -> dict[str, dict[str, float]]:
    """Return for each level the seconds of a message and the bytes/s of a pair alone, and of all that share the link.

    Of a NIC that is nowhere alone (one host a rack) the uplink's figures are its own.
    """
    found = {}
    for level, pairs in pairs_of(topology).items():
        traffic.warm_up(pairs[:1])
        alone = max(traffic(pairs[:1])[0] for _ in range(2))
        if len(pairs) > 1:
            traffic.warm_up(pairs)
        together = max(sum(traffic(pairs)) for _ in range(2))
        found[level] = {"latency": traffic.latencies[pairs[0]], "alone": alone, "together": together}
    if "uplink" in found and "nic" not in found:
        found["nic"] = found.pop("uplink")
    return found


def fabric_of(links: dict[str, dict[str, float]], topology: Topology, source: str) -> Fabric:
    """Return the measured links as `ddlrun plan --network` takes them: what data got, so no payload."""
    made = []
    for level in LEVELS:
        one = links.get(level)
        rate = 0.0 if one is None else one["alone" if level == "host" else "together"]
        made.append(Link() if one is None else Link(rate, one["latency"]))
    per_rack = topology.dims[1] if "uplink" in links else None
    return Fabric(tuple(made), "measured", source, per_rack)
