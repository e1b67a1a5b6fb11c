"""The use of a host: its CPUs, memory, swap space and network interfaces.

A report has the fields of HOST_FIELDS, separated by spaces. A word per network interface follows, with its name and
the fields of NIC_FIELDS, separated by colons; and a word per other host, @OURS>THEIRS with two addresses and the fields
of PEER_FIELDS. Then there is a line per GPU (see gpus.py).
"""

from __future__ import annotations

import os

from ddlrun.keeper.proc_files import TICK_MS, parse_counters, read_file
from ddlrun.keeper.tcp_connections import read_connections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.keeper.tcp_connections import TcpConnection

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

# Peers to which less is sent in an interval are left out: most of its time is latency.
LEAST_BYTES = 1 << 18
MOST_PEERS = 16


class HostUsageReader:
    """The counters of the host."""

    def __init__(self) -> None:
        """Begin now."""
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
        nics = self._take_nics()
        peers = [f"@{pair}:{sent}:{busy_ms}" for pair, sent, busy_ms in self._traffic.take()]
        self._reports += 1
        numbers = f"{cpus} {busy} {memory} {available} {swapped * PAGE_BYTES} {retransmitted}"
        return " ".join([numbers, *nics, *peers])

    def _take_nics(self) -> list[str]:
        nics = parse_nics(read_file("/proc/net/dev"))[:MOST_NICS]
        if self._reports % SPEED_REPORTS == 0:
            self._speeds = {name: read_speed(name) for name, _ in nics}
        rows = [(name, [self._speeds.get(name, 0), *self._since(name, counters)]) for name, counters in nics]
        return [":".join([name.decode(errors="replace"), *map(str, values)]) for name, values in rows]

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
        for connection in self._read():
            now[connection.identifier] = sent, busy = connection.acknowledged, connection.busy
            before = (sent, busy) if self._before is None else self._before.get(connection.identifier, (0, 0))
            total = totals.setdefault(f"{connection.ours}>{connection.theirs}", [0, 0])
            total[0] += sent - before[0]
            total[1] = max(total[1], busy - before[1])  # connections of a pair are busy at the same time
        self._before = now
        rows = [(pair, sent, max(0, busy) // 1000) for pair, (sent, busy) in totals.items() if sent >= LEAST_BYTES]
        return sorted(rows, key=lambda row: -row[1])[:MOST_PEERS]

    def _read(self) -> list[TcpConnection]:
        """Return the connections to other hosts."""
        try:
            return [link for link in read_connections() if link.ours != link.theirs] if self._works else []
        except OSError:
            self._works = False
            return []
