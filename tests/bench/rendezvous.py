"""Rendezvous of MPI ranks through the agents' PMI-1 servers: `python -m tests.bench.rendezvous`, a table in Markdown.

Simulated ranks and the servers of all hosts share one process, so the time is that of all hosts one after the other.
Each rank starts as MPICH does, puts an address of 300 bytes, enters a barrier, and gets addresses: in `divided` the
ranks of a host get all of them together, each its part; in `all` each rank gets all. The goal is 2 s for 1,000 ranks.
"""

import resource
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddlrun.agent.pmi import PmiServer
from ddlrun.agent.pmi_root import PmiRoot
from tests.bench.options import bench_parser

ADDRESS = "a" * 300
START = (
    "cmd=init pmi_version=1 pmi_subversion=1",
    "cmd=get_maxes",
    "cmd=get_appnum",
    "cmd=get_my_kvsname",
    "cmd=get kvsname=job key=PMI_process_mapping",
)
LONGEST_REPLY = 4096


class Case(NamedTuple):
    """The sizes of a rendezvous, and the number of addresses that each rank gets."""

    name: str
    hosts: int
    ranks_per_host: int
    gets: int


FULL = (Case("divided", 10, 100, 10), Case("all", 10, 100, 1000))
SMOKE = (Case("divided", 2, 2, 2), Case("all", 2, 2, 4))


class SimulatedRanks:
    """All ranks of a job, each with a connection to the server of its host."""

    def __init__(self, case: Case) -> None:
        size = case.hosts * case.ranks_per_host
        self._servers = {
            host: PmiServer(range(host, size, case.hosts), size, "job", "(vector,(0,1,1))")
            for host in range(case.hosts)
        }
        self._root = PmiRoot(self._servers)
        opened = [self._servers[rank % case.hosts].open(rank) for rank in range(size)]
        self._ranks = [socket.socket(fileno=fd) for fd in opened]
        self._owners = {fd: server for server in self._servers.values() for fd in server.readable()}
        self._epoll = select.epoll()
        for fd in self._owners:
            self._epoll.register(fd, select.EPOLLIN)

    def query(self, line: Callable[[int], str]) -> None:
        """Let each rank send a request and read its reply. Raises RuntimeError if a request failed."""
        for number, rank in enumerate(self._ranks):
            rank.send(line(number).encode() + b"\n")
        self._serve()
        for rank in self._ranks:
            if b"rc=0" not in rank.recv(LONGEST_REPLY):
                raise RuntimeError("a request failed")

    def _serve(self) -> None:
        waiting = len(self._ranks)
        while waiting:
            events = self._epoll.poll()
            for fd, _ in events:
                self._owners[fd].on_readable(fd)
            waiting -= len(events)
        for host, server in self._servers.items():
            for message in server.take_messages():
                for other, reply in self._root.on_message(host, message):
                    self._servers[other].on_message(reply)

    def close(self) -> None:
        """Close all connections."""
        self._epoll.close()
        for rank in self._ranks:
            rank.close()
        for fd, server in self._owners.items():
            server.close(fd)


def measure(case: Case) -> Sequence[object]:
    """Return a row of the table."""
    size = case.hosts * case.ranks_per_host
    ranks = SimulatedRanks(case)
    start = time.monotonic()
    for request in START:
        ranks.query(lambda _, request=request: request)  # type: ignore[misc]
    ranks.query(lambda rank: f"cmd=put kvsname=job key=-bc-{rank} value={ADDRESS}")
    ranks.query(lambda _: "cmd=barrier_in")
    for number in range(case.gets):
        ranks.query(lambda rank, number=number: f"cmd=get kvsname=job key=-bc-{(rank + number) % size}")  # type: ignore[misc]
    seconds = time.monotonic() - start
    ranks.close()
    requests = size * (len(START) + 2 + case.gets)
    return case.name, case.hosts, size, requests, f"{seconds:.2f}", f"{seconds / requests * 1e6:.1f}"


def main() -> None:
    """Print the table."""
    cases = SMOKE if bench_parser(__doc__).parse_args().smoke else FULL
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("| gets | hosts | ranks | requests | s | µs per request |\n|---|---|---|---|---|---|")
    for case in cases:
        print(f"| {' | '.join(map(str, measure(case)))} |", flush=True)


if __name__ == "__main__":
    main()
