"""The host of this rank: its name, its addresses in the network of the job, and its sockets."""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from ddlrun.errors import InputError

if TYPE_CHECKING:
    import _socket
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
    reachable = [text for text in (*of_host_name, *all_addresses) if not ipaddress.ip_address(text).is_loopback]
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


BACKLOG = 4096
# A host that does not reply counts as lost after 90 s: the first probe, the pause between probes, their number.
KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}


class TooManyFilesError(OSError):
    """No more files may be open in this process, or on this host; `strerror` has the remedy."""


def name_host() -> str:
    """Return a name of this host that all its processes have in common, and no other host has."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{os.uname().nodename} {file.read().strip()}"


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a socket that listens at an address of this host; port 0: any free one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=BACKLOG)


def begin_to_connect(address: str, port: int) -> socket.socket:
    """Return a non-blocking socket that connects to an address. Raises OSError; TooManyFilesError."""
    link = None
    while link is None:
        try:
            link = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            raise_file_limit(error)
    link.setblocking(False)
    try:
        with suppress(BlockingIOError):
            link.connect((address, port))
    except OSError:
        link.close()
        raise
    return link


def raise_file_limit(error: OSError) -> None:
    """Raise this process's limit of open files if that is the error. Raises the error; TooManyFilesError."""
    if error.errno not in {errno.EMFILE, errno.ENFILE}:
        raise error
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * soft if most == resource.RLIM_INFINITY else min(2 * soft, most)
    if error.errno == errno.ENFILE:
        raise TooManyFilesError(error.errno, "too many open files on this host: raise fs.file-max") from error
    if wanted <= soft:
        text = f"too many open files: raise this process's limit of {most} (ulimit -Hn)"
        raise TooManyFilesError(error.errno, text) from error
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def find_own_address(master: str) -> str:
    """Return the address of this host in the network in which it reaches the host `master`."""
    family, _, _, _, place = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # which sends nothing
        return str(probe.getsockname()[0])


def set_options(file: _socket.socket) -> None:
    """Let a socket send messages at once, and notice a lost host."""
    file.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    file.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        file.setsockopt(socket.IPPROTO_TCP, option, value)
