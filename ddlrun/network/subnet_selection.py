"""Each host's addresses -> the subnet that a job uses, and the variables that say so to MPI, NCCL and Gloo."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.environment.exports import MOST_CHARACTERS
from ddlrun.errors import InputError, PreflightError
from ddlrun.hosts import fold
from ddlrun.units import render_rate

TYPE_CHECKING = False  # typing's own is the same to a type checker
if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

# POSIX sh that prints a line an address, `@net NAME ADDRESS/PREFIX STATE SPEED KIND`; it writes nothing.
# Without `ip` it prints what hostname, /proc/net/route and /proc/net/if_inet6 say.  SPEED is in Mbit/s, -1: unknown.
SCRIPT = r"""
net() {
  there=/sys/class/net/$1 state=unknown speed=-1 kind=virtual
  { read -r state <"$there/operstate"; read -r speed <"$there/speed"; } 2>/dev/null
  [ -n "$speed" ] || speed=-1
  if [ -d "$there/bridge" ]; then
    kind=bridge
    for port in "$there"/brif/*; do [ ! -e "/sys/class/net/${port##*/}/device" ] || kind=device; done
  elif [ -e "$there/device" ] || [ -d "$there/bonding" ]; then
    kind=device
    for rate in "$there"/device/infiniband/*/ports/*/rate; do
      [ "$speed" -gt 0 ] || ! read -r gigabits _ <"$rate" || speed=$((${gigabits%%.*} * 1000))
    done 2>/dev/null
  fi
  echo "@net $1 $2 $state $speed $kind"
}
if command -v ip >/dev/null 2>&1; then
  ip -o addr show 2>/dev/null | while read -r _ name family address rest; do
    case $family,$rest in
      *,*' temporary '*|*,*' deprecated '*|*,*' tentative '*) ;;
      inet,*|inet6,*) net "$name" "$address" ;;
    esac
  done
else
  echo "@ips $(hostname -I 2>/dev/null)"
  while read -r name to gateway _ _ _ _ mask _; do echo "@route $name $to $gateway $mask"; done </proc/net/route
  while read -r address _ prefix _ _ name; do echo "@inet6 $name $address $prefix"; done </proc/net/if_inet6
  for name in /sys/class/net/*; do net "${name##*/}" -; done
fi 2>/dev/null
"""

# More hosts, or subnets, are counted instead of named.
MOST_NAMED = 64
# What container and virtual machine software calls its bridges; their addresses lead nowhere else.
BRIDGES = r"(docker|virbr|br-|lxc|lxdbr|cni|flannel|podman|veth|vmnet|vboxnet|kube-|cali|cilium|weave)"


class Address(NamedTuple):
    """One address of a host, and of its interface: whether it is up, its speed in Mbit/s (-1: not known) and kind."""

    interface: str
    ip: str
    prefix: int
    up: bool = True
    speed: int = -1
    kind: str = "device"

    @property
    def subnet(self) -> str:
        """The subnet as CIDR."""
        import ipaddress  # noqa: PLC0415 - 3 ms, for jobs over several hosts alone

        return str(ipaddress.ip_interface(f"{self.ip}/{self.prefix}").network)


class Network(NamedTuple):
    """What a job talks over: its subnets, each host's interfaces and address there, and why; empty: left to MPI."""

    subnets: tuple[str, ...]
    interfaces: Mapping[str, tuple[str, ...]]
    addresses: Mapping[str, str]
    reason: str
    rejected: tuple[tuple[str, str], ...] = ()
    """Subnets that are not used, and why."""
    daemons: bool = True
    """Whether mpirun's own host is there too, so that its daemons can use it."""

    @property
    def matters(self) -> bool:
        """Whether it must be said: it was asked for, or MPI (which leaves out loopback) could choose otherwise."""
        asked = self.reason.startswith("--")
        return bool(self.subnets) and (asked or any(why not in _OBVIOUS.values() for _, why in self.rejected))

    @property
    def said(self) -> str:
        """What is used and why, what is not and why not, in one line."""
        chosen = f"{', '.join(self.subnets)}: {self.reason}" if self.subnets else self.reason
        more = len(self.rejected) - MOST_NAMED
        left = [f"and {more} subnets more"] if more > 0 else []
        return "; ".join([chosen, *(f"not {subnet}: {why}" for subnet, why in self.rejected[:MOST_NAMED]), *left])


_OBVIOUS = {"loopback": "loopback", "link_local": "link-local"}


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse what SCRIPT printed; lines that are none of its own are left out.

    >>> parse_addresses("@net eth0 10.0.0.1/16 up 10000 device")
    (Address(interface='eth0', ip='10.0.0.1', prefix=16, up=True, speed=10000, kind='device'),)
    """
    lines = [line.split() for line in text.splitlines() if line.startswith("@")]
    links = {words[1]: words[3:6] for words in lines if words[0] == "@net" and len(words) == 6}
    named = [(words[1], words[2]) for words in lines if words[0] == "@net" and len(words) == 6 and words[2] != "-"]
    found = []
    for name, address in (*named, *_without_ip(lines)):
        ip, _, prefix = address.partition("/")
        state, speed, kind = links.get(name, ("unknown", "-1", "virtual"))
        if prefix.isdigit() or not prefix:
            whole = 128 if ":" in ip else 32
            fast = int(speed) if speed.isdigit() else -1
            found.append(Address(name, ip, int(prefix or whole), state != "down", fast, kind))
    return tuple(found)


def _without_ip(lines: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield interface and address as the kernel's tables have them: each of a host's IPv4 addresses by its route."""
    import ipaddress  # noqa: PLC0415 - see Address

    routes = []
    for words in lines:
        if words[0] == "@route" and len(words) == 5 and re.fullmatch(r"0+", words[3]) and words[4] != "00000000":
            to, mask = (int.from_bytes(bytes.fromhex(word)[::-1], "big") for word in (words[2], words[4]))
            routes.append((words[1], ipaddress.ip_network((to, mask.bit_count()))))
        elif words[0] == "@inet6" and len(words) == 4:
            yield words[1], f"{ipaddress.IPv6Address(int(words[2], 16))}/{int(words[3], 16)}"
    for ip in (ip for words in lines if words[0] == "@ips" for ip in words[1:] if "." in ip):
        for name, network in routes:
            if ipaddress.ip_address(ip) in network:
                yield name, f"{ip}/{network.prefixlen}"
                break


def choose_network(
    addresses: Mapping[str, Sequence[Address]], wanted: str | None = None, interfaces: Sequence[str] = ()
) -> Network:
    """Return what the hosts (host -> its addresses) talk over: the fastest subnet that all of them share.

    A subnet is as fast as its slowest host. `wanted` (CIDR) and `interfaces` (names; each host uses those that it
    has) overrule. Raises InputError on a CIDR that is none, PreflightError naming the hosts that are not on it.
    """
    if wanted is not None or interfaces:
        return _as_told(addresses, wanted, interfaces)
    subnets = _by_subnet(addresses)
    rejected = {subnet: why for subnet, there in subnets.items() if (why := _why_not(there, addresses))}
    usable = sorted((subnet for subnet in subnets if subnet not in rejected), key=lambda one: _rank(subnets[one]))
    if not usable:
        return Network(
            (), {}, {}, "left to MPI: the hosts share no subnet; name one: --network", tuple(rejected.items())
        )
    best = usable[0]
    speed = _speed(subnets[best])
    for other in usable[1:]:
        slower = 0 < _speed(subnets[other]) < speed
        rejected[other] = f"slower: {_shown(subnets[other])}" if slower else f"{best} does as well"
    why = "the only usable subnet that all hosts share" if len(usable) == 1 else "the fastest that all hosts share"
    return _network(subnets[best], f"{why}{f', {_shown(subnets[best])}' if speed > 0 else ''}", tuple(rejected.items()))


def _as_told(addresses: Mapping[str, Sequence[Address]], wanted: str | None, names: Sequence[str]) -> Network:
    within = None if wanted is None else parse_cidr(wanted)
    by_host = {host: list(_matching(there, within, names)) for host, there in addresses.items()}
    words = [f"--network {wanted}"] * (wanted is not None) + [f"--network-interface {','.join(names)}"] * bool(names)
    option = " ".join(words)
    missing = [host for host, there in by_host.items() if not there]
    if missing:
        have = ", ".join(f"{one.interface} {one.ip}/{one.prefix}" for one in addresses[missing[0]] if not _plain(one))
        one = f"{missing[0]} has " if len(missing) > 1 else "there is "
        raise PreflightError(f"{option}: no address on {fold(missing)}; {one}{have or 'none'}")
    used = {one.subnet for there in by_host.values() for one in there}
    every = [one for there in addresses.values() for one in there if one.subnet not in used]
    rejected = {one.subnet: _plain(one) or "not asked for" for one in every}
    chosen = _network(by_host, option, tuple(rejected.items()))
    return chosen if within is None else chosen._replace(subnets=(str(within),))


def _matching(
    there: Iterable[Address], within: "IPv4Network | IPv6Network | None", names: Sequence[str]
) -> Iterator[Address]:
    """Yield the addresses that are asked for; of an interface with both kinds, the IPv4 ones."""
    import ipaddress  # noqa: PLC0415 - see Address

    found = [
        one
        for one in there
        if one.up and not _plain(one) and (not names or one.interface in names)
        if within is None or ipaddress.ip_address(one.ip) in within
    ]
    old = [one for one in found if ":" not in one.ip]
    yield from old or found


def parse_cidr(text: str) -> "IPv4Network | IPv6Network":
    """Parse what --network takes. Raises InputError."""
    import ipaddress  # noqa: PLC0415 - see Address

    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise InputError(f"--network {text!r} is no subnet; write it as in 10.0.0.0/16 or fd00::/64") from error


def on(address: Address, subnets: Iterable[str]) -> bool:
    """Tell whether an address is in one of the subnets."""
    import ipaddress  # noqa: PLC0415 - see Address

    return any(ipaddress.ip_address(address.ip) in ipaddress.ip_network(subnet) for subnet in subnets)


def _network(by_host: Mapping[str, Sequence[Address]], reason: str, rejected: tuple[tuple[str, str], ...]) -> Network:
    return Network(
        tuple(dict.fromkeys(one.subnet for there in by_host.values() for one in there)),
        {host: tuple(dict.fromkeys(one.interface for one in there)) for host, there in by_host.items()},
        {host: max(there, key=lambda one: one.speed).ip for host, there in by_host.items()},
        reason,
        rejected,
    )


def _by_subnet(addresses: Mapping[str, Sequence[Address]]) -> dict[str, dict[str, list[Address]]]:
    """Return subnet -> host -> its addresses there."""
    subnets: dict[str, dict[str, list[Address]]] = {}
    for host, there in addresses.items():
        for one in there:
            subnets.setdefault(one.subnet, {}).setdefault(host, []).append(one)
    return subnets


def _plain(address: Address) -> str | None:
    """Say why an address can be nobody's network, by itself alone."""
    import ipaddress  # noqa: PLC0415 - see Address

    ip = ipaddress.ip_address(address.ip)
    return next((why for kind, why in _OBVIOUS.items() if getattr(ip, f"is_{kind}")), None)


def _why_not(there: Mapping[str, Sequence[Address]], hosts: Collection[str]) -> str | None:
    """Say why the hosts cannot use a subnet; None: they can."""
    every = [(host, one) for host, addresses in there.items() for one in addresses]
    if why := _plain(every[0][1]):
        return why
    for _, one in every:
        if re.match(BRIDGES, one.interface):
            return f"{one.interface} is a bridge for containers or virtual machines"
    owners: dict[str, set[str]] = {}
    for host, one in every:
        owners.setdefault(one.ip, set()).add(host)
    for ip, same in owners.items():
        if len(same) > 1:
            what = f"{every[0][1].interface} is a bridge, and " if every[0][1].kind == "bridge" else ""
            return f"{what}{ip} is the address of {fold(sorted(same))} alike"
    down = [f"{one.interface} is down on {host}" for host, one in every if not one.up]
    missing = len(hosts) - len(there)
    if missing > MOST_NAMED:  # there may be a subnet a host
        return f"not on {next(host for host in hosts if host not in there)} and {missing - 1} more"
    if missing:
        return f"not on {fold(host for host in hosts if host not in there)}"
    return down[0] if down else None


def _rank(there: Mapping[str, Sequence[Address]]) -> tuple[int, bool, bool]:
    every = [one for addresses in there.values() for one in addresses]
    return -_speed(there), any(one.kind != "device" for one in every), ":" in every[0].ip


def _speed(there: Mapping[str, Sequence[Address]]) -> int:
    return min(max(one.speed for one in addresses) for addresses in there.values())


def _shown(there: Mapping[str, Sequence[Address]]) -> str:
    return render_rate(1e6 / 8 * _speed(there))


def network_variables(network: Network, major: int, *, rdma: bool = False) -> tuple[dict[str, str], list[str]]:
    """Return the variables that keep MPI, NCCL and Gloo to a network, and notes on what they cannot say.

    MPI gets the subnets. Of IPv6 it gets the interfaces: Open MPI 4.1.4 and 5.0.11 know no IPv6 subnet and stop, and
    they stop at an interface that one host has not got. UCX is told where no host has an RDMA device.
    """
    if len(network.interfaces) == 1 or not network.subnets:
        return {}, []
    daemons = {4: "OMPI_MCA_oob_tcp_if_include", 5: "PRTE_MCA_prte_if_include"}[major]
    kinds = set(network.interfaces.values())
    names = ",".join(sorted({name for kind in kinds for name in kind}))
    notes = []
    where = ",".join(network.subnets)
    if ":" in where:
        where = names if len(kinds) == 1 else ""
    elif len(network.subnets) > 1 and len(kinds) == 1:  # a subnet that one host is not on is a warning
        where = names
    variables = {"OMPI_MCA_btl_tcp_if_include": where} if where else {}
    if where and network.daemons:
        variables[daemons] = where
    if not where:
        notes.append("network: left to MPI, which takes IPv6 networks by interface alone, the same on all hosts")
    if not kinds:  # nobody asked the hosts
        return variables, notes
    variables["NCCL_SOCKET_IFNAME"] = f"={names}"
    if len(kinds) == 1:
        variables["GLOO_SOCKET_IFNAME"] = names
        if not rdma:
            variables["UCX_NET_DEVICES"] = names
    else:
        listed = " ".join(f"{host}={','.join(there)}" for host, there in network.interfaces.items())
        if len(listed) <= MOST_CHARACTERS:
            variables["DDLRUN_IFNAMES"] = listed
            notes.append("GLOO_SOCKET_IFNAME: set on each host, as their interfaces differ in name")
        else:
            notes.append("GLOO_SOCKET_IFNAME: left to Gloo, as the interfaces of so many hosts fit into no variable")
    return variables, notes


def tcp_variables(major: int) -> dict[str, str]:
    """Return the variables that keep MPI, UCX and NCCL to TCP, shared memory inside of hosts."""
    return {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": {4: "self,vader,tcp", 5: "self,sm,tcp"}[major],
        "UCX_TLS": "tcp,self,sm",
        "NCCL_IB_DISABLE": "1",
    }


# As a word of mpirun's, or in a line of a file that is no comment.
_CHOSEN = r"(?m)^[^#\n]*(tcp|prte)_if_(in|ex)clude\b"


def decide(
    network: Network | None,
    major: int,
    environ: Mapping[str, str],
    chosen: Iterable[str],
    *,
    rdma: bool,
) -> tuple[dict[str, str], list[str]]:
    """Return what is set for a network, and notes on what the user or the site has set already, which stays.

    `chosen` are the arguments of mpirun and the texts of the files in which MCA parameters stand.
    """
    if network is None or not network.matters:
        return {}, []
    variables, notes = network_variables(network, major, rdma=rdma)
    for name in sorted(variables):
        other = name.replace("_include", "_exclude")  # Open MPI stops at both
        said = next((one for one in (name, other) if one in environ), None)
        if said is None and "_MCA_" in name and any(re.search(_CHOSEN, text) for text in chosen):
            said = "tcp_if_include or tcp_if_exclude in --mpi-args or an MCA file"
        if said is not None:
            del variables[name]
            notes.append(f"{said}: left as you set it")
    return variables, list(dict.fromkeys(notes))
