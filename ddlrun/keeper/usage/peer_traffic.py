"""The traffic of a host to others over TCP, and the time in which data is on its way: the counters of sock_diag(7).

A link is busy while sent data waits for its acknowledgement, less the time in which the receiver has no room for more.
So bytes by busy time is the rate of the link, also where ranks seldom send. For the layouts see inet_diag.h and tcp.h
of Linux.
"""

from __future__ import annotations

import _socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

AF_INET, AF_INET6, AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG = 2, 10, 16, 3, 4
SOCK_DIAG_BY_FAMILY, DUMP, ERROR, DONE = 20, 0x301, 2, 3
TCP, ESTABLISHED, INFO = 6, 1 << 1, 2
HEADER_BYTES, MESSAGE_BYTES = 16, 72
"""Bytes of a nlmsghdr, and of an inet_diag_msg."""
# Of tcp_info: acknowledged bytes; us of busy time, without room at the receiver, and without data to send.
ACKNOWLEDGED, BUSY, NO_ROOM, NO_DATA, INFO_BYTES = 120, 168, 176, 184, 192
# Peers to which less is sent in an interval are left out: most of its time is latency.
LEAST_BYTES = 1 << 18
MOST_PEERS = 16


class PeerTraffic:
    """The traffic of this host to others."""

    def __init__(self) -> None:
        self._before: dict[bytes, tuple[int, int]] | None = None
        self._works = True
        self.take()

    def take(self) -> list[tuple[str, int, int]]:
        """Return each pair `OURS>THEIRS` of addresses, the bytes that arrived since the last call, and ms of busy time.

        The list is empty where the kernel does not answer.
        """
        totals: dict[str, list[int]] = {}
        now = {}
        for pair, connection, sent, busy in self._read():
            now[connection] = sent, busy
            before = (sent, busy) if self._before is None else self._before.get(connection, (0, 0))
            total = totals.setdefault(pair, [0, 0])
            total[0] += sent - before[0]
            total[1] = max(total[1], busy - before[1])  # connections of a pair are busy at the same time
        self._before = now
        rows = [(pair, sent, max(0, busy) // 1000) for pair, (sent, busy) in totals.items() if sent >= LEAST_BYTES]
        return sorted(rows, key=lambda row: -row[1])[:MOST_PEERS]

    def _read(self) -> list[tuple[str, bytes, int, int]]:
        if not self._works:
            return []
        try:
            return [row for family in (AF_INET, AF_INET6) for row in read_connections(family)]
        except OSError:  # an old kernel, or a sandbox
            self._works = False
            return []


def read_connections(family: int) -> Iterator[tuple[str, bytes, int, int]]:
    """Yield the connections to other hosts: addresses, an identifier, acknowledged bytes and us of busy time."""
    request = bytes((family, TCP, 1 << (INFO - 1), 0)) + _number(ESTABLISHED, 4) + bytes(48)
    header = (HEADER_BYTES + len(request), 4), (SOCK_DIAG_BY_FAMILY, 2), (DUMP, 2), (1, 4), (0, 4)
    kernel = _socket.socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG)
    try:
        kernel.settimeout(1)
        kernel.send(b"".join(_number(*field) for field in header) + request)
        while True:
            data, start = kernel.recv(1 << 17), 0
            while start < len(data):
                length, kind = _read(data, start, 4), _read(data, start + 4, 2)
                if kind in (DONE, ERROR):
                    return
                yield from parse_connection(family, data[start + HEADER_BYTES : start + length])
                start += length + 3 & ~3
    finally:
        kernel.close()


def parse_connection(family: int, message: bytes) -> Iterator[tuple[str, bytes, int, int]]:
    """Parse an inet_diag_msg and its tcp_info; yield nothing for a connection inside the host."""
    width = 4 if family == AF_INET else 16
    ours, theirs = (_socket.inet_ntop(family, message[start : start + width]) for start in (8, 24))
    info = find_info(message)
    if ours != theirs and len(info) >= INFO_BYTES:
        busy = _read(info, BUSY, 8) - _read(info, NO_ROOM, 8) - _read(info, NO_DATA, 8)
        pair = f"{ours}>{theirs}".replace("::ffff:", "")  # IPv4 over a socket of IPv6
        yield pair, message[4:52], _read(info, ACKNOWLEDGED, 8), busy


def find_info(message: bytes) -> bytes:
    """Return the tcp_info of a message; empty if it has none."""
    start = MESSAGE_BYTES
    while start + 4 <= len(message):
        length, kind = _read(message, start, 2), _read(message, start + 2, 2)
        if kind == INFO:
            return message[start + 4 : start + length]
        start += max(length + 3 & ~3, 4)
    return b""


def _number(value: int, size: int) -> bytes:
    return value.to_bytes(size, sys.byteorder)


def _read(data: bytes, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], sys.byteorder)
