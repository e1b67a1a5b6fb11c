"""NCCL's log (NCCL_DEBUG=INFO): the network of each host, as NCCL has chosen it, and what is wrong with it.

NCCL goes on with sockets where it cannot use an RDMA device, without an error: a job is then many times slower.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ddlrun.hosts import fold
from ddlrun.wording import printable

# `host:pid:thread [device] NCCL INFO text`, after what a launcher or a container has put before it.
LINE = r"(?:^|\s)([^\s:]+):\d+:\d+ \[\d+\] (?:\S+ )?NCCL (?:INFO|WARN) (.*)"
SOCKET = "Socket"


@dataclass(frozen=True, slots=True)
class NcclInit:
    """The start of a communicator in a rank."""

    rank: int
    ranks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NcclHost:
    """NCCL on a host, as the log of one rank or several shows it."""

    networks: tuple[str, ...] = ()
    """Such as IB, Socket or a plug-in's name; more than one if ranks or communicators differ."""
    rdma: tuple[str, ...] = ()
    """RDMA devices, such as mlx5_0:1/RoCE."""
    interfaces: tuple[str, ...] = ()
    """The interfaces of sockets, such as eth0."""
    bootstrap: str = ""
    """The interface over which ranks meet."""
    gpu_direct: bool | None = None
    """Whether the network reads the memory of GPUs; None: not known."""
    refused: tuple[str, ...] = ()
    """RDMA devices that could not be opened."""
    disabled: bool = False
    """Whether NCCL_IB_DISABLE forbids RDMA."""
    inits: tuple[NcclInit, ...] = ()

    @property
    def text(self) -> str:
        """The network in words, such as `IB (mlx5_0:1/IB) with GPUDirect RDMA`."""
        names = self.interfaces if self.networks == (SOCKET,) else self.rdma
        devices = f" ({', '.join(names)})" if names else ""
        bootstrap = f", bootstrap over {self.bootstrap}" if self.bootstrap else ""
        return f"{self.network}{devices}{bootstrap}"

    @property
    def network(self) -> str:
        """The networks in words, such as `IB without GPUDirect RDMA`."""
        direct = {True: " with GPUDirect RDMA", False: " without GPUDirect RDMA", None: ""}[self.gpu_direct]
        return " and ".join(self.networks) + direct


class TransportProblem(Enum):
    """The kinds of findings."""

    SOCKETS = "sockets"
    """A host uses sockets, although it has RDMA devices."""
    HOSTS_DIFFER = "hosts_differ"
    """Hosts use different networks, or some of them without GPUDirect RDMA."""
    UNEXPECTED = "unexpected"
    """A host uses another network than the expected one."""


@dataclass(frozen=True, slots=True)
class TransportFinding:
    """A problem, with the hosts that have it."""

    problem: TransportProblem
    hosts: tuple[str, ...]
    text: str


def parse_nccl_log(lines: Iterable[str]) -> dict[str, NcclHost]:
    """Return the state of NCCL on each host whose network it names; other lines are ignored.

    >>> parse_nccl_log(["n1:7:9 [0] NCCL INFO Using network Socket"])["n1"].networks
    ('Socket',)
    """
    hosts: dict[str, NcclHost] = {}
    for line in lines:
        match = re.search(LINE, line) if "NCCL" in line else None
        if match is not None:
            host = printable(match[1])
            hosts[host] = _add(hosts.get(host, NcclHost()), match[2])
    return {name: host for name, host in hosts.items() if host.networks}


def _add(host: NcclHost, text: str) -> NcclHost:
    """Return a host with the contents of one more line."""
    for pattern, add in READERS:
        match = re.search(pattern, text)
        if match is not None:
            return add(host, match)
    return host


def _add_devices(host: NcclHost, match: re.Match[str]) -> NcclHost:
    devices = re.findall(r"\[\d+\]([^\s\[]+)", match[2])
    if match[1] == SOCKET:
        names = [device.partition(":")[0] for device in devices]
        return replace(host, interfaces=_join(host.interfaces, names))
    return replace(host, rdma=_join(host.rdma, devices))


def _add_direct(host: NcclHost, match: re.Match[str]) -> NcclHost:
    """Return a host whose network reads the memory of GPUs, unless a line has shown that one does not."""
    return replace(host, gpu_direct=bool(match["direct"]) and host.gpu_direct is not False)


# Pattern of a text -> what it adds to the host.
READERS: tuple[tuple[str, Callable[[NcclHost, re.Match[str]], NcclHost]], ...] = (
    (r"^Using network (.+)", lambda host, match: replace(host, networks=_join(host.networks, [match[1].strip()]))),
    (r"^NET/(IB|Socket) : Using (.*)", _add_devices),
    (r"^Bootstrap ?: Using (?:\[\d+\])?([^\s:]+):", lambda host, match: replace(host, bootstrap=printable(match[1]))),
    (r"^NET/(?!Socket).* : GPU Direct RDMA (?:(?P<direct>Enabled)|Disabled) for HCA", _add_direct),
    (r" via NET/(?!Socket)[^/]+/\d+(?:\(\d+\))?(?P<direct>/GDRDMA)?", _add_direct),
    (
        r"NET/IB : Unable to open device (\S+)",
        lambda host, match: replace(host, refused=_join(host.refused, [match[1]])),
    ),
    (
        r"^Init timings.*: rank (\d+) nranks (\d+) total ([\d.]+)",
        lambda host, match: replace(
            host, inits=(*host.inits, NcclInit(rank=int(match[1]), ranks=int(match[2]), seconds=float(match[3])))
        ),
    ),
    (r"^NCCL_IB_DISABLE set by environment to 1", lambda host, _match: replace(host, disabled=True)),
)


def _join(known: tuple[str, ...], new: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *map(printable, new))))


def find_transport_problems(
    hosts: Mapping[str, NcclHost], rdma: Mapping[str, tuple[str, ...]], expected: str | None = None
) -> list[TransportFinding]:
    """Return the problems of the networks of hosts.

    Args:
        hosts: The hosts, as the log has them.
        rdma: The RDMA devices of hosts, as far as they are known.
        expected: The network that all hosts should use.
    """
    findings = []
    for name, host in hosts.items():
        devices = _join(rdma.get(name, ()), host.refused)
        if SOCKET in host.networks and (devices or host.disabled):
            text = _explain_sockets(name, host, devices)
            findings.append(TransportFinding(TransportProblem.SOCKETS, (name,), text))
    by_network: dict[str, list[str]] = {}
    for name, host in hosts.items():
        by_network.setdefault(_likely_network(host, hosts), []).append(name)
    if len(by_network) > 1:
        text = "; ".join(f"{fold(names)}: {network}" for network, names in by_network.items())
        fewest = min(by_network.values(), key=lambda names: (len(names), names))
        findings.append(TransportFinding(TransportProblem.HOSTS_DIFFER, tuple(fewest), f"hosts differ: {text}"))
    for network, names in by_network.items():
        if expected is not None and not _is_expected(hosts[names[0]], expected):
            text = f"{fold(names)}: {network} instead of {expected}"
            findings.append(TransportFinding(TransportProblem.UNEXPECTED, tuple(names), text))
    return findings


def _likely_network(host: NcclHost, hosts: Mapping[str, NcclHost]) -> str:
    """Return the network of a host, which may not have printed yet whether it has GPUDirect RDMA, as others have."""
    alike = (other for other in hosts.values() if other.networks == host.networks and other.gpu_direct is not None)
    return (host if host.gpu_direct is not None else next(alike, host)).network


def _explain_sockets(name: str, host: NcclHost, devices: tuple[str, ...]) -> str:
    if host.disabled:
        return f"{name} uses sockets: NCCL_IB_DISABLE is 1; unset it"
    reason = "it could not open" if host.refused else "although it has"
    remedy = "check ulimit -l, /dev/infiniband in containers, and NCCL_IB_HCA"
    return f"{name} uses sockets: {reason} {', '.join(devices)}; {remedy}"


def _is_expected(host: NcclHost, expected: str) -> bool:
    """Return True if a host uses only the expected network: NCCL's name, in any case, without a plug-in's version."""
    names = [re.sub(r"(ext)?(_v\d+)?$", "", name.lower()) for name in host.networks]
    return bool(names) and all(name == expected.lower() for name in names)
