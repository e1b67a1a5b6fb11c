"""Environment variables that keep MPI, UCX, NCCL and Gloo to a network."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping

from ddlrun.environment.exports import MOST_CHARACTERS
from ddlrun.environment.open_mpi import MCA
from ddlrun.network.subnet_selection import Network

# As a word of the process manager's command line, or in a line of a file that is not a comment.
_USER_SETTING = r"(?m)^[^#\n]*(tcp|prte)_if_(in|ex)clude\b"
# It returns the variables that keep daemons to a network, from "include" or "exclude" and the value.
DaemonVariables = Callable[[str, str], Mapping[str, str]]


def choose_variables(
    network: Network | None,
    daemons: DaemonVariables,
    environ: Mapping[str, str],
    mca_texts: Iterable[str],
    *,
    rdma: bool,
) -> tuple[dict[str, str], list[str]]:
    """Return the variables to set for a network, and notes on those that the user or the site has set, which stay.

    `mca_texts` are the process manager's arguments and the texts of the files in which MCA parameters stand.
    """
    if network is None or not network.needs_variables:
        return {}, []
    variables, notes = network_variables(network, daemons, rdma=rdma)
    for name in sorted(variables):
        both = (name.replace("_exclude", "_include"), name.replace("_include", "_exclude"))  # Open MPI stops at both
        setting = next((variable for variable in both if variable in environ), None)
        if setting is None and "_MCA_" in name and any(re.search(_USER_SETTING, text) for text in mca_texts):
            setting = "tcp_if_include or tcp_if_exclude in --mpi-args or an MCA file"
        if setting is not None:
            del variables[name]
            notes.append(f"{setting}: left as you set it")
    return variables, list(dict.fromkeys(notes))


def network_variables(
    network: Network, daemons: DaemonVariables, *, rdma: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Return the variables that keep MPI, UCX, NCCL and Gloo to a network, and notes on what they cannot express.

    `rdma`: a host has an RDMA device; UCX is then left to choose.
    """
    if len(network.interfaces) == 1 or not network.subnets:
        return {}, []
    variables, notes = _mpi_variables(network, daemons)
    kinds = set(network.interfaces.values())
    if not kinds:  # the hosts were not checked
        return variables, notes
    names = _names(network)
    variables["NCCL_SOCKET_IFNAME"] = f"={names}"
    if len(kinds) == 1:
        variables["GLOO_SOCKET_IFNAME"] = names
        if not rdma:
            variables["UCX_NET_DEVICES"] = names
        return variables, notes
    by_host = " ".join(f"{host}={','.join(interfaces)}" for host, interfaces in network.interfaces.items())
    if len(by_host) <= MOST_CHARACTERS:
        variables["DDLRUN_IFNAMES"] = by_host
        notes.append("GLOO_SOCKET_IFNAME: set on each host, as their interfaces differ in name")
    else:
        notes.append("GLOO_SOCKET_IFNAME: left to Gloo; the interfaces of all hosts are too long for a variable")
    return variables, notes


def _mpi_variables(network: Network, daemons: DaemonVariables) -> tuple[dict[str, str], list[str]]:
    """Return the subnets for MPI and its daemons; of IPv6 the interfaces.

    Open MPI 4.1.4 and 5.0.11 stop at an IPv6 subnet, and at an interface that one of the hosts does not have. At a
    subnet that one of them does not have they hang.
    """
    same_names = len(set(network.interfaces.values())) == 1
    ipv6 = any(":" in subnet for subnet in network.subnets)
    name, value = f"{MCA}btl_tcp_if_include", "" if ipv6 else _cover(network)
    if same_names and (ipv6 or len(network.subnets) > 1):
        value = _names(network)
    if not value:
        name, value = f"{MCA}btl_tcp_if_exclude", _excluded(network)
    notes = ["network: left to MPI, which takes IPv6 networks by interface alone, the same on all hosts"]
    variables = {name: value} if value else {}
    if value and network.daemons:
        variables |= daemons(name.rpartition("_")[2], value)
    return variables, [] if same_names or not ipv6 else notes


def _cover(network: Network) -> str:
    """Return the smallest subnet that has all those of a network; empty if it has any that is not used."""
    first, *others = (ipaddress.IPv4Network(subnet) for subnet in network.subnets)
    while not all(other.subnet_of(first) for other in others):
        first = first.supernet()
    unused = [ipaddress.ip_network(subnet.subnet) for subnet in network.rejected if ":" not in subnet.subnet]
    return "" if others and any(first.overlaps(subnet) for subnet in unused) else str(first)


def _excluded(network: Network) -> str:
    """Return the IPv4 subnets that are not used, with MPI's own default, the loopback; empty if there are none."""
    rejected = [subnet.subnet for subnet in network.rejected if not subnet.local and ":" not in subnet.subnet]
    joined = ",".join(["127.0.0.0/8", *rejected])
    return joined if rejected and len(joined) <= MOST_CHARACTERS else ""


def _names(network: Network) -> str:
    return ",".join(sorted({name for interfaces in network.interfaces.values() for name in interfaces}))
