"""The host of this rank: its name, its address in the job's network, and its sockets."""

from __future__ import annotations

import errno
import os
import resource
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import _socket

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
