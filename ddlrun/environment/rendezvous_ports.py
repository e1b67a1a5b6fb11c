"""Rendezvous ports: the ports on which ranks find each other, the same on all hosts."""

import _socket  # socket itself takes 6 ms to import
import binascii
import re
from collections.abc import Callable

from ddlrun.errors import PreflightError

# Below the ports that Linux gives to clients (net.ipv4.ip_local_port_range, from 32768 on), and apart from the ports of
# the TCP check, which stay busy for a minute (preflight/tcp.py).
FIRST, LAST = 20000, 27999


def parse_ports(text: str) -> frozenset[int]:
    """Parse ports in hexadecimal.

    >>> sorted(parse_ports("4E20 752f"))
    [20000, 29999]
    """
    return frozenset(int(word, 16) for word in text.split() if re.fullmatch(r"[0-9A-Fa-f]{4}", word))


def choose_ports(run_id: str, count: int, is_free: Callable[[int], bool]) -> range:
    """Return `count` consecutive free ports; the run's name decides where the search begins.

    Raises PreflightError where there are none.
    """
    span = LAST + 1 - FIRST - (count - 1)
    start = binascii.crc32(run_id.encode()) % max(1, span)
    run = 0
    for step in range(span + count):
        port = FIRST + (start + step) % (LAST + 1 - FIRST)
        run = 0 if port == FIRST else run  # consecutive ports do not wrap around the end
        run = run + 1 if is_free(port) else 0
        if run == count:
            return range(port - count + 1, port + 1)
    raise PreflightError(
        f"no {count} ports in a row from {FIRST} to {LAST} are free on all hosts; set MASTER_ADDR and MASTER_PORT "
        "yourself with `--framework` torch, or none with `--framework` mpi"
    )


def is_free_here(port: int) -> bool:
    """Return True for a TCP port that no process on this machine uses."""
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            probe = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:  # no IPv6 here
            continue
        try:
            probe.bind(("", port))
        except OSError:
            return False
        finally:
            probe.close()
    return True
