"""The address of rank 0's host at which the ranks of torch.distributed meet."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Variables in which the launcher, or the user, names the interfaces of the job's network.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def find_rendezvous_address(environ: Mapping[str, str], *, one_host: bool) -> str:
    """Return an address of this host that all ranks reach.

    The first of: MASTER_ADDR; the address of an interface in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME; the address of
    the host name; any address. Raises InputError if there are several hosts and only loopback addresses.
    """
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    by_interface = _read_addresses()
    for name in _interfaces(environ):
        if name in by_interface:
            return by_interface[name][0]
    of_host_name = _resolve_host_name()
    if one_host:
        return of_host_name[0] if of_host_name else "127.0.0.1"
    all_addresses = [address for addresses in by_interface.values() for address in addresses]
    reachable = [address for address in (*of_host_name, *all_addresses) if not _is_loopback(address)]
    if not reachable:
        raise InputError(
            f"host {socket.gethostname()!r} has no address that other hosts reach; set MASTER_ADDR to rank 0's, or "
            f"{INTERFACES[0]} to the interface's name"
        )
    return reachable[0]


def _interfaces(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield interfaces by name. Of NCCL's formats only `=name` is one: `^name` excludes, a bare name is a prefix."""
    for variable in INTERFACES:
        names = environ.get(variable, "")
        if variable.startswith("GLOO") or names.startswith("="):
            yield from (name.partition(":")[0] for name in names.removeprefix("=").split(",") if name)


def _read_addresses() -> dict[str, list[str]]:
    """Return the addresses of each interface, IPv4 first, without the link-local ones of IPv6."""
    import psutil  # noqa: PLC0415 - 17 ms, for torch.distributed alone

    by_interface = {}
    for name, entries in psutil.net_if_addrs().items():
        usable = [
            entry for entry in entries if entry.family in {socket.AF_INET, socket.AF_INET6} and "%" not in entry.address
        ]
        if usable:
            ipv4_first = sorted(usable, key=lambda entry: entry.family != socket.AF_INET)
            by_interface[name] = [entry.address for entry in ipv4_first]
    return by_interface


def _resolve_host_name() -> list[str]:
    try:
        entries = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(address[0]) for *_, address in entries if "%" not in str(address[0])]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
