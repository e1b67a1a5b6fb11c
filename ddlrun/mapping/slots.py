"""Slots: the ranks that hosts may take, filled host by host, and those that stay unused."""

from collections.abc import Iterator

from ddlrun.hosts import HostList, fold
from ddlrun.mapping.placement import Placement
from ddlrun.wording import counted


def divides_equally(processes: int, hosts: HostList) -> bool:
    """Check if each host can have the same number of ranks."""
    share, left = divmod(processes, len(hosts))
    return share > 0 and not left and all(host.slots is None or host.slots >= share for host in hosts)


def fill_slots(processes: int, hosts: HostList) -> tuple[int, ...] | None:
    """Return the ranks of each host where each host in turn is filled, as mpirun and horovodrun do.

    None where a host has no number of slots, or all slots are too few.
    """
    left, local_sizes = processes, []
    for host in hosts:
        if host.slots is None:
            return None
        local_sizes.append(min(left, host.slots))
        left -= local_sizes[-1]
    return None if left else tuple(local_sizes)


def unused_slots(placement: Placement) -> Iterator[str]:
    """Yield a note for hosts with more slots than ranks, where hosts differ and slots are a request for ranks."""
    hosts, topology = placement.hosts, placement.topology
    sizes = [(topology.local_size(index), host.slots) for index, host in enumerate(hosts)]
    if hosts.slots_are_capacity or len(set(sizes)) == 1:
        return
    names: dict[tuple[int, int], list[str]] = {}
    for host, (ranks, slots) in zip(hosts, sizes, strict=True):
        if slots is not None and slots > ranks:
            names.setdefault((ranks, slots), []).append(host.name)
    for (ranks, slots), unused in names.items():
        yield f"{fold(unused)}: {slots - ranks} of {counted(slots, 'slot')} unused"
