"""Replacement of failed hosts: by spare hosts, or by a smaller topology."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, fold
from ddlrun.topology import Topology


class HostAssignment(NamedTuple):
    """The hosts of a job, rack by rack, its spare hosts, and the number of racks.

    `racks` is Z times A. `notes` list what was replaced or left out, and why.
    """

    hosts: HostList
    spares: tuple[Host, ...]
    racks: int
    notes: tuple[str, ...] = ()

    @property
    def per_rack(self) -> int:
        """Y."""
        return len(self.hosts) // self.racks


class _Shape(NamedTuple):
    """Equal racks: their number and their size."""

    per_rack: int
    racks: int


def replace_hosts(assignment: HostAssignment, failed: Mapping[str, str], smallest: Topology | None) -> HostAssignment:
    """Return an assignment without the failed hosts, each with its reason, whose spares take their places.

    The other hosts keep their order, so that each rack keeps its hosts. Without enough spares, Y or Z shrinks, down to
    the smallest topology (None: not at all). Raises InputError where there are not enough hosts left.
    """
    spares = [host for host in assignment.spares if host.name not in failed]
    hosts: list[Host | None] = []
    notes = []
    for host in assignment.hosts:
        if host.name not in failed:
            hosts.append(host)
        elif spares:
            spare = spares.pop(0)
            hosts.append(spare._replace(slots=host.slots))
            notes.append(f"{spare.name} takes the place of {host.name}: {failed[host.name]}")
        else:
            hosts.append(None)
    present = [host for host in hosts if host is not None]
    if len(present) == len(hosts):
        return HostAssignment(assignment.hosts.take(present), tuple(spares), assignment.racks, tuple(notes))
    left = assignment._replace(spares=(), notes=tuple(notes))
    return _shrink(left, hosts, failed, smallest)


def _shrink(
    assignment: HostAssignment, hosts: Sequence[Host | None], failed: Mapping[str, str], smallest: Topology | None
) -> HostAssignment:
    """Return an assignment to the largest equal racks of the hosts that are left; None stands for a failed host."""
    lost = [host.name for host in assignment.hosts if host.name in failed]
    if smallest is None:
        raise InputError(
            f"nothing takes the place of {fold(lost)}; name `--spare-hosts`, or allow fewer: `--min-topology`"
        )
    size = assignment.per_rack
    racks = [[host for host in hosts[first : first + size] if host is not None] for first in range(0, len(hosts), size)]
    shape = _largest_shape(racks, size, smallest)
    if shape is None:
        raise InputError(f"without {fold(lost)} there are fewer hosts than `--min-topology` {smallest} needs")
    members = [host for rack in racks if len(rack) >= shape.per_rack for host in rack[: shape.per_rack]]
    left_out = [host for rack in racks for host in rack if host not in members]
    before, after = f"{size}x{assignment.racks}", f"{shape.per_rack}x{shape.racks}"
    notes = [*assignment.notes, f"{before} hosts shrink to {after} without {fold(lost)} ({failed[lost[0]]})"]
    if left_out:
        notes.append(f"left out, as racks must be equal: {fold(host.name for host in left_out)}")
    return HostAssignment(assignment.hosts.take(members), tuple(left_out), shape.racks, tuple(notes))


def _largest_shape(racks: Sequence[Sequence[Host]], size: int, smallest: Topology) -> _Shape | None:
    """Return the shape with the most hosts, and the most per rack; None if all are below the smallest topology."""
    _, fewest, fewest_racks = (*smallest.dims, 1, 1)[:3]
    shapes = [
        _Shape(per_rack, sum(len(rack) >= per_rack for rack in racks)) for per_rack in range(size, fewest - 1, -1)
    ]
    fitting = [shape for shape in shapes if shape.racks >= max(1, fewest_racks)]
    return max(fitting, key=lambda shape: shape.per_rack * shape.racks, default=None)
