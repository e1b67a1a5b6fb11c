"""The host of this rank: its name, its address in the job's network, and its sockets."""

from __future__ import annotations

import os
import socket

BACKLOG = 4096
# A host that does not reply counts as lost after 90 s: the first probe, the pause between probes, their number.
KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}


def name_host() -> str:
    """Return a name of this host that all its processes have in common, and no other host has."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{os.uname().nodename} {file.read().strip()}"


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a socket that listens at an address of this host; port 0: any free one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=BACKLOG)


def find_own_address(master: str) -> str:
    """Return the address of this host in the network in which it reaches the host `master`."""
    family, _, _, _, place = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # which sends nothing
        return str(probe.getsockname()[0])


def set_options(file: socket.socket) -> None:
    """Let a socket send messages at once, and notice a lost host."""
    file.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    file.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        file.setsockopt(socket.IPPROTO_TCP, option, value)
