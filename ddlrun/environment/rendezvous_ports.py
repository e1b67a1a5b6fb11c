"""Ports on which the ranks find each other: the same on all hosts, taken from the run's id, and free."""

import _socket  # socket itself takes 6 ms to import
import binascii
import re
from collections.abc import Callable

from ddlrun.errors import PreflightError

# Below what Linux gives to clients by itself (net.ipv4.ip_local_port_range, from 32768 on), and not those of the TCP
# check, which stay busy for a minute (preflight/tcp.py).
FIRST, LAST = 20000, 27999
# POSIX sh that prints `@ports` and the local ports in use from 0x4000 to 0x7FFF, in hexadecimal.
SCRIPT = r"""
echo "@ports $(sed -n 's/^ *[0-9]*: [0-9A-F]*:\([4-7][0-9A-F]\{3\}\) .*/\1/p' /proc/net/tcp /proc/net/tcp6 2>/dev/null |
  sort -u | tr '\n' ' ')"
"""


def parse_ports(text: str) -> frozenset[int]:
    """Parse what follows SCRIPT's `@ports`.

    >>> sorted(parse_ports("4E20 752f"))
    [20000, 29999]
    """
    return frozenset(int(word, 16) for word in text.split() if re.fullmatch(r"[0-9A-Fa-f]{4}", word))


def choose_ports(run_id: str, count: int, is_free: Callable[[int], bool]) -> int:
    """Return the first of `count` free ports in a row; where the search begins, the run's id says.

    Raises PreflightError where there are none.
    """
    span = LAST + 1 - FIRST - (count - 1)
    start = binascii.crc32(run_id.encode()) % max(1, span)
    port = run = 0
    for step in range(span + count):
        port = FIRST + (start + step) % (LAST + 1 - FIRST)
        run = 0 if port == FIRST else run  # a row does not go round the end
        run = run + 1 if is_free(port) else 0
        if run == count:
            return port - count + 1
    raise PreflightError(
        f"no {count} ports in a row from {FIRST} to {LAST} are free on all hosts; set MASTER_ADDR and MASTER_PORT "
        "yourself with --framework torch, or none with --framework mpi"
    )


def is_free_here(port: int) -> bool:
    """Tell whether nobody on this machine has a TCP port."""
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
