"""Rates of the links between hosts, from the traffic that the hosts report, and the hosts whose links are slower."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddlrun.metrics.samples import HostSample

# Of a pair of hosts in all samples together; busy times are sums of whole milliseconds, so that short ones are unknown.
LEAST_BYTES = 1 << 20
SHORTEST_BUSY_SECONDS = 0.02
# Of all links of a slow host together: others hardly matter.
LEAST_SLOW_SECONDS = 1.0
# The links of a host are slow if the fastest one has less than this share of the usual rate.
SLOW = 0.7
# Hosts that are so many times faster than the one with the slowest links do not limit the job; their rates vary.
MOST_FASTER = 2


@dataclass(frozen=True, slots=True)
class PairTraffic:
    """The bytes from one host to another, and the seconds in which data was on its way."""

    sent: float = 0.0
    busy: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second while data was on its way."""
        return self.sent / max(self.busy, SHORTEST_BUSY_SECONDS)


@dataclass(frozen=True, slots=True)
class SlowLinks:
    """A host whose links are all slower than those between other hosts; rates in bytes per second and direction."""

    host: str
    rate: float
    usual: float


def find_slow_links(hosts: Mapping[str, Sequence[HostSample]]) -> list[SlowLinks]:
    """Return the hosts to and from which data takes longer than between the other hosts."""
    pairs = add_traffic(hosts)
    busy = {host: sum(traffic.busy for pair, traffic in pairs.items() if host in pair) for host in hosts}
    slow: list[SlowLinks] = []
    # The links of a slow host are slow at their other ends, too; it has the most of them.
    for host in sorted(hosts, key=lambda host: -busy[host]):
        own = [traffic for pair, traffic in pairs.items() if host in pair]
        others = {pair: traffic for pair, traffic in pairs.items() if host not in pair}
        if len(own) < 2 or not others or sum(traffic.busy for traffic in own) < LEAST_SLOW_SECONDS:
            continue
        rates, usual = [traffic.rate for traffic in own], median(traffic.rate for traffic in others.values())
        if max(rates) < SLOW * usual and (not slow or median(rates) < MOST_FASTER * slow[0].rate):
            slow.append(SlowLinks(host, median(rates), usual))
            pairs = others
    return slow


def add_traffic(hosts: Mapping[str, Sequence[HostSample]]) -> dict[tuple[str, str], PairTraffic]:
    """Return (sender, receiver) -> the traffic in all samples, where there was enough of it to know the rate."""
    owners = {peer.address: host for host, samples in hosts.items() for sample in samples for peer in sample.peers}
    pairs: dict[tuple[str, str], PairTraffic] = {}
    for host, samples in hosts.items():
        for seconds, peer in ((sample.seconds, peer) for sample in samples for peer in sample.peers):
            pair = host, owners.get(peer.peer, host)
            earlier = pairs.get(pair, PairTraffic())
            sent, busy = peer.sent * seconds, peer.busy * seconds
            pairs[pair] = PairTraffic(earlier.sent + sent, earlier.busy + busy)
    return {pair: traffic for pair, traffic in pairs.items() if pair[0] != pair[1] and traffic.sent >= LEAST_BYTES}
