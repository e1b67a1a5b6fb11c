"""Cost of an allreduce over hosts whose NICs have different rates, with blocks sized by `block_sizing`."""

from collections.abc import Mapping, Sequence

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, WEIGHTED, AllreduceAlgorithm
from ddlrun.block_sizing import JobLinks, divide_blocks, nic_loads, uplink_loads
from ddlrun.network.cost import Cost
from ddlrun.network.fabric import LEVELS, Fabric

NIC, UPLINK = LEVELS.index("nic"), LEVELS.index("uplink")


def nic_rates(fabric: Fabric, hosts: Sequence[str], count: int) -> tuple[float, ...]:
    """Return the rate of each host's NIC. Without names the hosts that the description lists come last."""
    listed = dict(fabric.nics)
    usual = fabric.links[NIC].capacity
    rates = [listed.get(host, usual) for host in hosts]
    if not hosts:
        slow = list(listed.values())[:count]
        rates = [usual] * (count - len(slow)) + slow
    return tuple(rates)


def split_racks(hosts: int, per_rack: int) -> tuple[int, ...]:
    """Return the number of hosts of each rack, of which only the last may have fewer.

    >>> split_racks(5, 3)
    (3, 2)
    """
    return tuple(min(per_rack, hosts - first) for first in range(0, hosts, per_rack))


def links_of(nics: Sequence[float], racks: Sequence[int], fabric: Fabric) -> JobLinks:
    """Return the links of hosts with these NICs, in bytes/s, in racks of these numbers of hosts."""
    uplinks = (fabric.links[UPLINK].capacity,) * len(racks) if len(racks) > 1 else ()
    return JobLinks(tuple(nics), tuple(racks), uplinks)


def unequal_cost(links: JobLinks, fabric: Fabric, size: int) -> Cost:
    """Return the cost of reducing `size` bytes over hosts with these links."""
    uplink, shares = fabric.links[UPLINK], divide_blocks(links)
    by_nic, by_uplink = nic_loads(shares), uplink_loads(shares, links.racks)
    chunk = min(BETWEEN_HOSTS.chunk, size)
    seconds_of_nics = max(
        max(load * size - fabric.links[NIC].burst, 0) / rate for load, rate in zip(by_nic, links.nics, strict=True)
    )
    seconds_of_uplinks = max((max(load * size - uplink.burst, 0) / uplink.capacity for load in by_uplink), default=0.0)
    steps = 2 if len(shares.racks) == 1 else 4
    latency = max(link.latency for link in fabric.links[: UPLINK + 1])
    volumes = [0.0] * len(LEVELS)
    volumes[NIC], volumes[UPLINK] = size * max(by_nic), size * max(by_uplink, default=0.0)
    return Cost(
        AllreduceAlgorithm("chunks", WEIGHTED, chunk, BETWEEN_HOSTS.depth),
        seconds=max(seconds_of_nics, seconds_of_uplinks) + chunk * shares.seconds + steps * latency,
        volumes=tuple(volumes),
        busiest=LEVELS[UPLINK if seconds_of_uplinks > seconds_of_nics else NIC],
        steps=steps,
    )


def describe_slow_nics(listed: Mapping[str, float], usual: float) -> list[str]:
    """Return a sentence for each host whose NIC is slower than the others.

    >>> describe_slow_nics({"h3": 51.0}, 100.0)
    ["h3's NIC carries 51 % of the others'"]
    """
    return [
        f"{host}'s NIC carries {100 * rate / usual:.0f} % of the others'"
        for host, rate in listed.items()
        if rate < usual
    ]
