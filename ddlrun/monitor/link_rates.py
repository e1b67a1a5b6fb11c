"""Rates of the links between hosts, from the traffic that the hosts report, and the hosts whose links are slower."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from ddlrun.monitor.samples import HostSample

# Of a pair of hosts in all samples together; busy times are sums of whole milliseconds.
LEAST_BYTES = 1 << 20
LEAST_BUSY_SECONDS = 0.02
# Of all links of a slow host together: others hardly matter.
LEAST_SLOW_SECONDS = 1.0
# The links of a host are slow if the fastest one has less than this share of the usual rate.
SLOW = 0.7
MEGABIT = 125_000


class Traffic(NamedTuple):
    """The bytes from one host to another, and the seconds in which data was on its way."""

    sent: float = 0.0
    busy: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second while data was on its way."""
        return self.sent / self.busy


class SlowLinks(NamedTuple):
    """A host whose links are all slower than those between other hosts; rates in bytes per second and direction."""

    host: str
    rate: float
    usual: float


def find_slow_links(hosts: Mapping[str, Sequence[HostSample]]) -> list[SlowLinks]:
    """Return the hosts to and from which data takes longer than between the other hosts."""
    pairs = add_traffic(hosts)
    found = []
    for host in hosts:
        own = [traffic for pair, traffic in pairs.items() if host in pair]
        others = [traffic.rate for pair, traffic in pairs.items() if host not in pair]
        if len(own) < 2 or not others or sum(traffic.busy for traffic in own) < LEAST_SLOW_SECONDS:
            continue
        rates, usual = [traffic.rate for traffic in own], median(others)
        if max(rates) < SLOW * usual:
            found.append(SlowLinks(host, median(rates), usual))
    return found


def add_traffic(hosts: Mapping[str, Sequence[HostSample]]) -> dict[tuple[str, str], Traffic]:
    """Return (sender, receiver) -> the traffic in all samples, where there was enough of it to know the rate."""
    owners = {peer.address: host for host, samples in hosts.items() for sample in samples for peer in sample.peers}
    pairs: dict[tuple[str, str], Traffic] = {}
    for host, samples in hosts.items():
        for seconds, peer in ((sample.seconds, peer) for sample in samples for peer in sample.peers):
            pair = host, owners.get(peer.peer, host)
            sent, busy = pairs.get(pair, Traffic())
            pairs[pair] = Traffic(sent + peer.sent * seconds, busy + peer.busy * seconds)
    return {
        pair: traffic
        for pair, traffic in pairs.items()
        if pair[0] != pair[1] and traffic.sent >= LEAST_BYTES and traffic.busy >= LEAST_BUSY_SECONDS
    }
