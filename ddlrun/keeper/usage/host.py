"""The use of a host: its CPUs, memory, swap space, network interfaces and GPUs.

A report has the fields of HOST_FIELDS, separated by spaces. A word per network interface follows, with its name and
the fields of NIC_FIELDS, separated by colons; and a word per other host, @OURS>THEIRS with two addresses and the fields
of PEER_FIELDS. Then there is a line per GPU (see gpus.py).
"""

from __future__ import annotations

import _socket
import os
import sys

from ddlrun.keeper.proc_files import TICK_MS, parse_counters, read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddlrun.keeper.usage.gpus import GpuUsageReader

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MOST_NICS = 64
# The speed of network interfaces is read at every report of this number.
SPEED_REPORTS = 60

HOST_FIELDS = ("ms", "cpus", "busy_ms", "memory_kib", "available_kib", "swapped_in_bytes", "retransmitted")
"""The numbers of a report, in their order.

busy_ms: CPU time of all processes and of the kernel.
swapped_in_bytes: Bytes that were read from swap space.
retransmitted: TCP segments that were sent again.
"""
NIC_FIELDS = ("speed", "received_bytes", "receive_errors", "sent_bytes", "send_errors")
"""The numbers of a network interface; speed is in Mbit/s, 0 if unknown. Dropped packets count as errors."""

PEER_FIELDS = ("sent_bytes", "busy_ms")
"""The numbers of the traffic to another host: acknowledged bytes of TCP, and how long data was on its way."""

# The counters of sock_diag(7): for the layouts see inet_diag.h and tcp.h of Linux.
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


class HostUsageReader:
    """The counters of the host."""

    def __init__(self, gpus: GpuUsageReader | None = None) -> None:
        """Begin now.

        Args:
            gpus: The GPUs; None: they are not reported.
        """
        self._gpus = gpus
        self._reports = 0
        self._before: dict[bytes, list[int]] = {}
        self._speeds: dict[bytes, int] = {}
        self._traffic = PeerTraffic()
        self.take()

    def take(self) -> str:
        """Return the fields of a report from `cpus` on, of the time since the last call."""
        cpus, busy = parse_cpu_time(read_file("/proc/stat"))
        memory, available, swap = parse_memory(read_file("/proc/meminfo"))
        swapped = parse_counters(read_file("/proc/vmstat")).get(b"pswpin", 0) if swap else 0
        retransmitted = parse_retransmitted(read_file("/proc/net/snmp"))
        busy, swapped, retransmitted = self._since(b"", [busy, swapped, retransmitted])
        nics = [self._render_nic(name, counters) for name, counters in self._read_nics()]
        peers = [f"@{pair}:{sent}:{busy_ms}" for pair, sent, busy_ms in self._traffic.take()]
        self._reports += 1
        numbers = f"{cpus} {busy} {memory} {available} {swapped * PAGE_BYTES} {retransmitted}"
        words = [numbers, *nics[:MOST_NICS], *peers]
        gpus = self._gpus.take() if self._gpus is not None else ""
        return "\n".join(filter(None, [" ".join(words), gpus]))

    def take_problem(self) -> str:
        """Return the reason why GPUs are not reported from now on, once; empty if there is none."""
        problem = self._gpus.take_problem() if self._gpus is not None else ""
        return f"no samples of the GPUs of {os.uname().nodename}: {problem}" if problem else ""

    def stop(self) -> None:
        """End the program that reads the GPUs."""
        if self._gpus is not None:
            self._gpus.stop()

    def _read_nics(self) -> list[tuple[bytes, list[int]]]:
        nics = parse_nics(read_file("/proc/net/dev"))
        if self._reports % SPEED_REPORTS == 0:
            self._speeds = {name: read_speed(name) for name, _ in nics}
        return nics

    def _render_nic(self, name: bytes, counters: list[int]) -> str:
        values = [self._speeds.get(name, 0), *self._since(name, counters)]
        return ":".join([name.decode(errors="replace"), *map(str, values)])

    def _since(self, name: bytes, counters: list[int]) -> list[int]:
        """Return the increase of counters since the last report."""
        before = self._before.get(name, counters)
        self._before[name] = counters
        return [max(0, now - earlier) for now, earlier in zip(counters, before)]  # noqa: B905 - of one length


def parse_cpu_time(stat: bytes) -> tuple[int, int]:
    r"""Parse /proc/stat; return the number of CPUs, and the time in ms that they were busy.

    >>> parse_cpu_time(b"cpu  10 1 5 900 50 2 3 4 0 0\ncpu0 10 1 5 900 50 2 3 4 0 0\nintr 1 2\n")
    (1, 210)
    """
    lines = stat.split(b"\n", 1025)
    user, nice, system, _, _, irq, soft_irq, *_ = map(int, lines[0].split()[1:])
    cpus = sum(line.startswith(b"cpu") for line in lines) - 1
    return cpus, (user + nice + system + irq + soft_irq) * TICK_MS


def parse_memory(meminfo: bytes) -> tuple[int, int, int]:
    r"""Parse /proc/meminfo; return the memory, the available part of it and the swap space, in KiB.

    >>> parse_memory(b"MemTotal: 24 kB\nMemFree: 8 kB\nMemAvailable: 12 kB\nSwapTotal: 0 kB\n")
    (24, 12, 0)
    """
    lines = (line.split() for line in meminfo.splitlines())
    values = {words[0]: int(words[1]) for words in lines}
    return values.get(b"MemTotal:", 0), values.get(b"MemAvailable:", 0), values.get(b"SwapTotal:", 0)


def parse_retransmitted(snmp: bytes) -> int:
    r"""Parse /proc/net/snmp; return the number of TCP segments that were sent again.

    >>> parse_retransmitted(b"Ip: A\nIp: 1\nTcp: InSegs RetransSegs\nTcp: 5 7\n")
    7
    """
    tcp = [line.split() for line in snmp.splitlines() if line.startswith(b"Tcp:")]
    return int(tcp[1][tcp[0].index(b"RetransSegs")]) if len(tcp) > 1 else 0


def parse_nics(dev: bytes) -> list[tuple[bytes, list[int]]]:
    r"""Parse /proc/net/dev; return the counters of each interface that has received or sent anything, without loopback.

    >>> parse_nics(b"Inter-|\n face |\n  lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\neth0: 9 1 2 3 0 0 0 0 8 1 1 0 0 0 0 0\n")
    [(b'eth0', [9, 5, 8, 1])]
    """
    nics = []
    for line in dev.splitlines()[2:]:
        name, _, counters = line.partition(b":")
        values = [int(word) for word in counters.split()]
        if name.strip() != b"lo" and (values[0] or values[8]):
            nics.append((name.strip(), [values[0], values[2] + values[3], values[8], values[10] + values[11]]))
    return nics


def read_speed(name: bytes) -> int:
    """Return the speed of a network interface in Mbit/s, 0 if it is unknown."""
    text = read_file(f"/sys/class/net/{name.decode(errors='replace')}/speed").strip()
    return int(text) if text.isdigit() else 0


class PeerTraffic:
    """The traffic of this host to others over TCP, and the time in which data is on its way.

    A link is busy while sent data waits for its acknowledgement, less the time in which the receiver has no room for
    more. So bytes by busy time is the rate of the link, also where ranks seldom send.
    """

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
