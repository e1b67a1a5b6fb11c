"""Rates of the links between hosts, from the traffic that the hosts report, and the hosts whose links are slower."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from ddlrun.monitor.samples import HostSample

# Of a pair of hosts in all samples together.
LEAST_BYTES = 1 << 20
LEAST_BUSY_SECONDS = 0.5
# The links of a host are slow if the fastest one has less than this share of the usual rate.
SLOW = 0.7
MEGABIT = 125_000


class SlowLinks(NamedTuple):
    """A host whose links are all slower than those between other hosts; rates in bytes per second and direction."""

    host: str
    rate: float
    usual: float


def find_slow_links(hosts: Mapping[str, Sequence[HostSample]]) -> list[SlowLinks]:
    """Return the hosts to and from which data takes longer than between the other hosts."""
    rates = pair_rates(hosts)
    found = []
    for host in hosts:
        own = [rate for pair, rate in rates.items() if host in pair]
        others = [rate for pair, rate in rates.items() if host not in pair]
        if len(own) > 1 and others and max(own) < SLOW * median(others):
            found.append(SlowLinks(host, median(own), median(others)))
    return found


def pair_rates(hosts: Mapping[str, Sequence[HostSample]]) -> dict[tuple[str, str], float]:
    """Return (sender, receiver) -> bytes per second while data was on its way, where there was enough of it."""
    owners = {peer.address: host for host, samples in hosts.items() for sample in samples for peer in sample.peers}
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for host, samples in hosts.items():
        for sample in samples:
            for peer in sample.peers:
                sent, busy = totals.get((host, owners.get(peer.peer, host)), (0.0, 0.0))
                totals[host, owners.get(peer.peer, host)] = (
                    sent + peer.sent * sample.seconds,
                    busy + peer.busy * sample.seconds,
                )
    return {
        pair: sent / busy
        for pair, (sent, busy) in totals.items()
        if pair[0] != pair[1] and sent >= LEAST_BYTES and busy >= LEAST_BUSY_SECONDS
    }
