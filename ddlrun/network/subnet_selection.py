"""Selection of the network that a job uses, from the addresses of its hosts."""

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import PreflightError, spell_options
from ddlrun.hosts import by_number, fold
from ddlrun.network.addresses import Address, Subnet, parse_cidr
from ddlrun.units import render_rate

# More hosts, or subnets, are counted instead of named.
MOST_NAMED = 64
# The names that container and virtual machine software gives its bridges, whose addresses are local to a host. Docker's
# own networks are br- and 12 digits; br-ex, br-mgmt and the like are networks of hosts.
BRIDGES = r"(docker|virbr|br-[0-9a-f]{12}$|lxc|lxdbr|cni|flannel|podman|veth|vmnet|vboxnet|kube-|cali|cilium|weave)"


class RejectedSubnet(NamedTuple):
    """A subnet that is not used; `local`: loopback or link-local of IPv6, which MPI leaves out too."""

    subnet: str
    reason: str
    local: bool = False


class Network(NamedTuple):
    """The network that a job uses; without subnets the choice is left to MPI.

    `interfaces` and `addresses` are those of each host there; `requested`: the user named it; `daemons`: ddlrun's own
    host is on it too, so that its daemons can use it; `own_names_mislead`: a host resolves its own name to a loopback
    address, where Gloo would listen.
    """

    subnets: tuple[str, ...]
    interfaces: Mapping[str, tuple[str, ...]]
    addresses: Mapping[str, str]
    reason: str
    rejected: tuple[RejectedSubnet, ...] = ()
    requested: bool = False
    daemons: bool = True
    own_names_mislead: bool = False

    @property
    def needs_variables(self) -> bool:
        """Whether MPI and Gloo must be given the subnets: the user named them, or they could choose others."""
        chosen = self.requested or self.own_names_mislead
        return bool(self.subnets) and (chosen or not all(rejected.local for rejected in self.rejected))

    @property
    def summary(self) -> str:
        """The subnets that are used and those that are not, with the reasons, in one line."""
        subnets = ", ".join(self.subnets) if len(self.subnets) <= MOST_NAMED else f"{len(self.subnets)} subnets"
        chosen = f"{subnets}: {self.reason}" if self.subnets else self.reason
        parts = [chosen, *(f"not {rejected.subnet}: {rejected.reason}" for rejected in self.rejected[:MOST_NAMED])]
        if len(self.rejected) > MOST_NAMED:
            parts.append(f"and {len(self.rejected) - MOST_NAMED} more subnets")
        return "; ".join(parts)


def choose_network(
    addresses: Mapping[str, Sequence[Address]],
    cidr: str | None = None,
    interfaces: Sequence[str] = (),
    known: Collection[str] = (),
) -> Network:
    """Return the network of hosts (host -> its addresses): the fastest subnet that all of them share.

    A subnet is as fast as its slowest host. Without a common subnet, each host has one address, if possible one
    of `known`: the addresses of the hosts' names. `cidr` and `interfaces` (names; each host uses those that it has)
    overrule the choice. Raises InputError on a malformed CIDR, PreflightError with the hosts without an address there.
    """
    if cidr is not None or interfaces:
        return _requested_network(addresses, cidr, interfaces)
    subnets = _by_subnet(addresses)
    reasons = {subnet: _rejection(members, addresses) for subnet, members in subnets.items()}
    rejected = [
        RejectedSubnet(subnet, reason, local=_is_local(next(iter(subnets[subnet].values()))[0]))
        for subnet, reason in reasons.items()
        if reason
    ]
    usable = sorted((subnet for subnet, reason in reasons.items() if not reason), key=lambda name: _rank(subnets[name]))
    if not usable:
        return _routed_network(addresses, subnets, tuple(rejected), known)
    best, *others = usable
    speed = _speed(subnets[best])
    for other in others:
        slower = 0 < _speed(subnets[other]) < speed
        reason = f"slower: {_render_speed(subnets[other])}" if slower else f"{best} does as well"
        rejected.append(RejectedSubnet(other, reason))
    reason = "the fastest that all hosts share" if others else "the only usable subnet that all hosts share"
    if speed > 0:
        reason += f", {_render_speed(subnets[best])}"
    return _network(subnets[best], reason, tuple(rejected))


def _routed_network(
    addresses: Mapping[str, Sequence[Address]],
    subnets: Mapping[str, Mapping[str, Sequence[Address]]],
    rejected: tuple[RejectedSubnet, ...],
    known: Collection[str],
) -> Network:
    """Return the network of hosts that reach each other by routes: one address of each, IPv4 where all have one."""
    unfit = {subnet for subnet, members in subnets.items() if _unfit(members)}
    fit = {
        host: [address for address in own if address.up and address.subnet not in unfit]
        for host, own in addresses.items()
    }
    ipv4 = {host: [address for address in own if ":" not in address.ip] for host, own in fit.items()}
    fit = ipv4 if all(ipv4.values()) else fit
    if not all(fit.values()):
        reason = "left to MPI: the hosts share no subnet; name one: --network"
        return Network(subnets=(), interfaces={}, addresses={}, reason=reason, rejected=rejected)
    common = frozenset[str].intersection(*(frozenset(address.interface for address in own) for own in fit.values()))

    def preference(address: Address) -> tuple[bool, bool, bool, bool, int]:
        virtual, bridge = address.kind != "device", address.kind == "bridge"
        return address.ip not in known, address.interface not in common, bridge, virtual, -address.speed

    by_host = {host: [min(own, key=preference)] for host, own in fit.items()}
    chosen = _network(by_host, "an address of each host, as they share no subnet", ())
    return chosen._replace(rejected=tuple(subnet for subnet in rejected if subnet.subnet not in chosen.subnets))


def _requested_network(addresses: Mapping[str, Sequence[Address]], cidr: str | None, names: Sequence[str]) -> Network:
    within = None if cidr is None else parse_cidr(cidr)
    by_host = {host: list(_matching(own, within, names)) for host, own in addresses.items()}
    option = f"`--network` {cidr or ','.join(names)}"
    missing = [host for host, matching in by_host.items() if not matching]
    if missing:
        present = [address for address in addresses[missing[0]] if not _local_kind(address)]
        there = ", ".join(f"{address.interface} {address.ip}/{address.prefix}" for address in present)
        subject = f"{missing[0]} has " if len(missing) > 1 else "there is "
        raise PreflightError(f"{option}: no address on {fold(missing)}; {subject}{there or 'none'}")
    used = {address.subnet for matching in by_host.values() for address in matching}
    unused = {address.subnet: address for own in addresses.values() for address in own if address.subnet not in used}
    rejected = [
        RejectedSubnet(subnet, _local_kind(address) or "not requested", local=_is_local(address))
        for subnet, address in unused.items()
    ]
    chosen = _network(by_host, spell_options(option), tuple(rejected))._replace(requested=True)
    return chosen if within is None else chosen._replace(subnets=(str(within),))


def _matching(addresses: Iterable[Address], within: Subnet | None, names: Sequence[str]) -> Iterator[Address]:
    """Yield the addresses that were requested: IPv4 ones, or else IPv6 ones, or else link-local IPv4 ones."""
    matching = [
        address
        for address in addresses
        if address.up and (not names or address.interface in names)
        if within is None or ipaddress.ip_address(address.ip) in within
    ]
    routable = [address for address in matching if not _local_kind(address)]
    link_local = [address for address in matching if _local_kind(address) == "link-local" and ":" not in address.ip]
    ipv4 = [address for address in routable if ":" not in address.ip]
    yield from ipv4 or routable or link_local


def _network(by_host: Mapping[str, Sequence[Address]], reason: str, rejected: tuple[RejectedSubnet, ...]) -> Network:
    return Network(
        subnets=tuple(dict.fromkeys(address.subnet for own in by_host.values() for address in own)),
        interfaces={host: tuple(dict.fromkeys(address.interface for address in own)) for host, own in by_host.items()},
        addresses={host: max(own, key=lambda address: address.speed).ip for host, own in by_host.items()},
        reason=reason,
        rejected=rejected,
    )


def _by_subnet(addresses: Mapping[str, Sequence[Address]]) -> dict[str, dict[str, list[Address]]]:
    """Return subnet -> host -> its addresses there."""
    subnets: dict[str, dict[str, list[Address]]] = {}
    for host, own in addresses.items():
        for address in own:
            subnets.setdefault(address.subnet, {}).setdefault(host, []).append(address)
    return subnets


def _local_kind(address: Address) -> str | None:
    """Return the kind of an address that reaches no other network: loopback or link-local; None for others."""
    ip = ipaddress.ip_address(address.ip)
    if ip.is_loopback:
        return "loopback"
    return "link-local" if ip.is_link_local else None


def _is_local(address: Address) -> bool:
    """Return True if MPI leaves the address out, too: it takes link-local ones of IPv4, as BMCs have, for networks."""
    return _local_kind(address) == "loopback" or (_local_kind(address) is not None and ":" in address.ip)


def _unfit(members: Mapping[str, Sequence[Address]]) -> str | None:
    """Return the reason why the addresses of a subnet do not reach other hosts; None if they may."""
    every = [(host, address) for host, addresses in members.items() for address in addresses]
    if kind := _local_kind(every[0][1]):
        return kind
    for _, address in every:
        if re.match(BRIDGES, address.interface):
            return f"{address.interface} is a bridge for containers or virtual machines"
    return _duplicate(every)


def _rejection(members: Mapping[str, Sequence[Address]], hosts: Collection[str]) -> str | None:
    """Return the reason why the hosts cannot use a subnet with these members; None if they can."""
    if unfit := _unfit(members):
        return unfit
    missing = len(hosts) - len(members)
    absent = (host for host in hosts if host not in members)
    if missing > MOST_NAMED:  # each host may have a subnet of its own: linear in the hosts, not quadratic
        return f"not on {next(absent)} and {missing - 1} more"
    if missing:
        return f"not on {fold(absent)}"
    every = ((host, address) for host, addresses in members.items() for address in addresses)
    return next((f"{address.interface} is down on {host}" for host, address in every if not address.up), None)


def _duplicate(every: Sequence[tuple[str, Address]]) -> str | None:
    """Return a sentence on an address that several hosts have, as bridges of the same software do."""
    owners: dict[str, set[str]] = {}
    for host, address in every:
        owners.setdefault(address.ip, set()).add(host)
    first = every[0][1]
    for ip, hosts in owners.items():
        if len(hosts) > 1:
            kind = f"{first.interface} is a bridge, and " if first.kind == "bridge" else ""
            return f"{kind}{ip} is the address of {fold(sorted(hosts, key=by_number))} alike"
    return None


def _rank(members: Mapping[str, Sequence[Address]]) -> tuple[int, bool, bool]:
    """Return the key that sorts subnets: the fastest first, devices before virtual interfaces, IPv4 before IPv6."""
    every = [address for addresses in members.values() for address in addresses]
    return -_speed(members), any(address.kind != "device" for address in every), ":" in every[0].ip


def _speed(members: Mapping[str, Sequence[Address]]) -> int:
    return min(max(address.speed for address in addresses) for addresses in members.values())


def _render_speed(members: Mapping[str, Sequence[Address]]) -> str:
    return render_rate(1e6 / 8 * _speed(members))
