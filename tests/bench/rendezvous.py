"""Rendezvous of MPI ranks through an agent's PMI-1 server: `python -m tests.bench.rendezvous`, a table in Markdown.

All hosts answer their ranks at the same time, so one host is measured: the processor time of its server. The ranks are
simulated. Each starts as MPICH does; some put values, all enter a barrier, and then the same ones get values:

- MPICH 5 (measured): one rank per host puts its address in 10 values, and gets those of each host.
- Intel MPI 2021 (measured), MPICH 4.0: the ranks of a host get the values of all ranks together, each its part.
- all: each rank gets the values of all ranks. No MPI library that was tested does that.

The goal is 2 s for 1,000 ranks.
"""

import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddlrun.agent.job import PmiRoot
from ddlrun.agent.pmi import PmiServer
from ddlrun.agent.pmi_values import KeyValues
from tests.bench.options import bench_parser
from tests.support.pmi_ranks import connect

START = (
    "cmd=init pmi_version=1 pmi_subversion=1",
    "cmd=get_maxes",
    "cmd=get_appnum",
    "cmd=get_my_kvsname",
    "cmd=get kvsname=job key=PMI_process_mapping",
)
LONGEST_REPLY = 4096


class Case(NamedTuple):
    """The sizes of a rendezvous."""

    name: str
    hosts: int
    ranks: int
    """The ranks of each host."""
    active: int
    """Those of them that put and get values."""
    puts: int
    """The values that each of these puts."""
    bytes: int
    """The length of a value."""
    gets: int
    """The values that each of these gets."""


FULL = (
    Case("MPICH 5", hosts=10, ranks=100, active=1, puts=10, bytes=800, gets=100),
    Case("MPICH 5", hosts=1000, ranks=1, active=1, puts=10, bytes=800, gets=10_000),
    Case("divided", hosts=10, ranks=100, active=100, puts=1, bytes=300, gets=10),
    Case("all", hosts=10, ranks=100, active=100, puts=1, bytes=300, gets=1000),
)
SMOKE = (
    Case("MPICH 5", hosts=2, ranks=2, active=1, puts=2, bytes=9, gets=4),
    Case("all", hosts=2, ranks=2, active=2, puts=1, bytes=9, gets=4),
)


class SimulatedHost:
    """The ranks of host 0, each with a connection to the host's server."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._messages: list[bytes] = []
        self._server = PmiServer(
            case.ranks,
            KeyValues("job", case.hosts * case.ranks, "(vector,(0,1,1))"),
            on_barrier=self._messages.append,
            on_abort=lambda _rank, _code: None,
            on_note=print,
        )
        self._root = PmiRoot(range(case.hosts))
        links = [connect(self._server, rank) for rank in range(case.ranks)]
        self._ranks = [socket.socket(fileno=fd) for _, fd in links]
        self._rank_of = {link.fileno(): rank for rank, (link, _) in enumerate(links)}
        self._epoll = select.epoll()
        for fd in self._rank_of:
            self._epoll.register(fd, select.EPOLLIN)
        self.seconds = 0.0
        """The processor time of the server."""
        self.requests = 0

    def query(self, line: Callable[[int], str], ranks: int) -> None:
        """Let the first ranks send a request each and read their replies. Raises RuntimeError if a request failed."""
        for number, rank in enumerate(self._ranks[:ranks]):
            rank.send(line(number).encode() + b"\n")
        self._serve(ranks)
        self._check(ranks)

    def meet(self) -> int:
        """Let all ranks meet in a barrier; return the number of bytes that the host then gets."""
        for rank in self._ranks:
            rank.send(b"cmd=barrier_in\n")
        self._serve(len(self._ranks))
        for host in range(1, self._case.hosts):
            self._root.on_message(host, self._values_of(host))
        reply = self._root.on_message(0, self._messages.pop())
        if reply is None:
            raise RuntimeError("the hosts have not met")
        before = time.process_time()
        self._server.on_message(reply)
        self.seconds += time.process_time() - before
        self._check(len(self._ranks))
        return len(reply)

    def value(self, number: int) -> str:
        """Return the key of a value, counted over all hosts."""
        return f"-bc-{number % self._total()}"

    def _total(self) -> int:
        return self._case.hosts * self._case.active * self._case.puts

    def _values_of(self, host: int) -> bytes:
        count = self._case.active * self._case.puts
        text = "a" * self._case.bytes
        return "".join(f"{self.value(host * count + number)} {text}\n" for number in range(count)).encode()

    def _serve(self, requests: int) -> None:
        self.requests += requests
        before = time.process_time()
        while requests:
            events = self._epoll.poll()
            for fd, _ in events:
                self._server.on_readable(self._rank_of[fd])
            requests -= len(events)
        self.seconds += time.process_time() - before

    def _check(self, ranks: int) -> None:
        for rank in self._ranks[:ranks]:
            if b"rc=0" not in rank.recv(LONGEST_REPLY):
                raise RuntimeError("a request failed")

    def close(self) -> None:
        """Close all connections."""
        self._epoll.close()
        for rank in self._ranks:
            rank.close()
        for number in range(len(self._ranks)):
            self._server.close(number)


def measure(case: Case) -> Sequence[object]:
    """Return a row of the table."""
    host = SimulatedHost(case)
    for request in START:
        host.query(lambda _, request=request: request, case.ranks)  # type: ignore[misc]
    text = "a" * case.bytes
    for number in range(case.puts):
        put = f"cmd=put kvsname=job key={{}} value={text}"
        host.query(lambda rank, n=number, put=put: put.format(host.value(rank * case.puts + n)), case.active)  # type: ignore[misc]
    size = host.meet()
    for number in range(case.gets):
        host.query(lambda rank, n=number: f"cmd=get kvsname=job key={host.value(rank + n)}", case.active)  # type: ignore[misc]
    host.close()
    each = host.seconds / host.requests * 1e6
    return case.name, case.hosts, case.ranks, host.requests, f"{size / 1e6:.1f}", f"{host.seconds:.2f}", f"{each:.1f}"


def main() -> None:
    """Print the table."""
    cases = SMOKE if bench_parser(__doc__).parse_args().smoke else FULL
    titles = ("gets", "hosts", "ranks per host", "requests per host", "MB to each host", "CPU s per host", "us each")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for case in cases:
        print(f"| {' | '.join(map(str, measure(case)))} |", flush=True)


if __name__ == "__main__":
    main()
