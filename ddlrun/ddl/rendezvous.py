"""Where the ranks find each other: the address of rank 0's host that torch.distributed is told."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What the launcher, or the user, told of the job's network.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def meeting_address(environ: Mapping[str, str], *, one_host: bool) -> str:
    """Return an address of this host that all ranks reach: MASTER_ADDR, the told interface's, or the host name's.

    Raises InputError if several hosts would be told an address that leads back to each of them.
    """
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    own = _addresses()
    for name in _interfaces(environ):
        if name in own:
            return own[name][0]
    named = _of_host_name()
    if one_host:
        return named[0] if named else "127.0.0.1"
    everywhere = [address for there in own.values() for address in there if not _only_here(address)]
    found = [address for address in named if not _only_here(address)] or everywhere
    if not found:
        raise InputError(
            f"host {socket.gethostname()!r} has no address that other hosts reach; set MASTER_ADDR to rank 0's, or "
            f"{INTERFACES[0]} to the interface's name"
        )
    return found[0]


def _interfaces(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield interfaces told by name; NCCL's `^name` leaves some out, and a bare name of its is but a beginning."""
    for variable in INTERFACES:
        told = environ.get(variable, "")
        if variable.startswith("GLOO") or told.startswith("="):
            yield from (name.partition(":")[0] for name in told.removeprefix("=").split(",") if name)


def _addresses() -> dict[str, list[str]]:
    """Return interface -> its addresses, IPv4 first; those of IPv6 that hold on one link only are left out."""
    import psutil  # noqa: PLC0415 - only who starts torch.distributed asks

    found = {}
    for name, there in psutil.net_if_addrs().items():
        kept = [one for one in there if one.family in {socket.AF_INET, socket.AF_INET6} and "%" not in one.address]
        if kept:
            found[name] = [one.address for one in sorted(kept, key=lambda one: one.family != socket.AF_INET)]
    return found


def _of_host_name() -> list[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(address[0]) for *_, address in found if "%" not in str(address[0])]


def _only_here(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
