"""Which hosts take part when some cannot: spare ones take their place, or the topology shrinks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, fold
from ddlrun.topology import Topology


class HostAssignment(NamedTuple):
    """The hosts of a job, those that stand by, and the racks that the first are in."""

    hosts: HostList
    spares: tuple[Host, ...]
    racks: int
    """Z (times A): the hosts are in their order, rack by rack."""
    said: tuple[str, ...] = ()
    """What was replaced or left out, and why."""

    @property
    def per_rack(self) -> int:
        """Y."""
        return len(self.hosts) // self.racks


def refill(crew: HostAssignment, bad: Mapping[str, str], least: Topology | None) -> HostAssignment:
    """Return a crew without the bad hosts (name -> why): spares take their places, or Y or Z shrinks to `least`.

    The order of the others stays, so each rack keeps its hosts. Raises InputError where neither is possible.
    """
    spares = [host for host in crew.spares if host.name not in bad]
    hosts: list[Host | None] = []
    said = []
    for host in crew.hosts:
        if host.name not in bad:
            hosts.append(host)
        elif spares:
            hosts.append(spares.pop(0)._replace(slots=host.slots))
            said.append(f"{hosts[-1].name} takes the place of {host.name}: {bad[host.name]}")  # type: ignore[union-attr]
        else:
            hosts.append(None)
    if None not in hosts:
        kept = tuple(host for host in hosts if host is not None)
        return HostAssignment(crew.hosts.take(kept), tuple(spares), crew.racks, tuple(said))
    return _shrink(crew, hosts, bad, least, said)


def _shrink(
    crew: HostAssignment, hosts: Sequence[Host | None], bad: Mapping[str, str], least: Topology | None, said: list[str]
) -> HostAssignment:
    gone = [host.name for host in crew.hosts if host.name in bad]
    if least is None:
        raise InputError(f"nothing takes the place of {fold(gone)}; name --spare-hosts, or allow fewer: --min-topology")
    _, fewest, fewest_racks = (*least.dims, 1, 1)[:3]
    size = crew.per_rack
    alive = [[host for host in hosts[at : at + size] if host is not None] for at in range(0, len(hosts), size)]
    shapes = [(per_rack, sum(len(rack) >= per_rack for rack in alive)) for per_rack in range(size, fewest - 1, -1)]
    fit = [(per_rack, racks) for per_rack, racks in shapes if racks >= max(1, fewest_racks)]
    if not fit:
        raise InputError(f"without {fold(gone)} there are fewer hosts than --min-topology {least} needs")
    per_rack, racks = max(fit, key=lambda shape: shape[0] * shape[1])
    kept = tuple(host for rack in alive if len(rack) >= per_rack for host in rack[:per_rack])
    out = [host for rack in alive for host in rack if host not in kept]
    said.append(f"{size}x{crew.racks} hosts shrink to {per_rack}x{racks}: {fold(gone)} cannot ({bad[gone[0]]})")
    if out:
        said.append(f"left out, as racks must be equal: {fold(host.name for host in out)}")
    return HostAssignment(crew.hosts.take(kept), tuple(out), racks, tuple(said))
