"""Ranks of an MPI library with PMI-1 servers, one per simulated host, in one process: no agent, no connection."""

import _socket
import os
import select
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddlrun.agent.job import PmiRoot
from ddlrun.agent.pmi import PmiServer
from ddlrun.agent.pmi_service import open_link, rank_variables
from ddlrun.agent.pmi_values import KeyValues, process_mapping

SECONDS = 300


def ranks_of(hosts: Sequence[int], host: int) -> list[int]:
    """Return the ranks on a host; `hosts` has the number of the host of each rank."""
    return [rank for rank, at in enumerate(hosts) if at == host]


def connect(server: PmiServer, rank: int) -> tuple[_socket.socket, int]:
    """Let a server serve a rank; return the server's end, and the descriptor that its program inherits."""
    link, fd = open_link()
    server.add(rank, link)
    return link, fd


class PmiHosts:
    """The servers of all hosts of a job, and the root."""

    def __init__(self, hosts: Sequence[int]) -> None:
        """Create the servers; `hosts` has the number of the host of each rank."""
        self.hosts = hosts
        name = f"ddlrun-{uuid.uuid4().hex}"
        self._messages: list[tuple[int, bytes]] = []
        self.aborts: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self.servers = {
            number: PmiServer(
                hosts.count(number),
                KeyValues(name, len(hosts), process_mapping(hosts)),
                on_barrier=lambda message, number=number: self._messages.append((number, message)),  # type: ignore[misc]
                on_abort=lambda rank, code: self.aborts.append((rank, code)),
                on_note=self.notes.append,
            )
            for number in sorted(set(hosts))
        }
        self._root = PmiRoot(self.servers)
        self._links: dict[int, _socket.socket] = {}

    def open(self, rank: int) -> tuple[int, dict[str, str]]:
        """Return a rank's descriptor and variables."""
        host = self.hosts[rank]
        self._links[rank], fd = connect(self.servers[host], rank)
        return fd, rank_variables(rank, fd, ranks_of(self.hosts, host), len(self.hosts))

    def serve(self, seconds: float) -> bool:
        """Answer what ranks have sent; return False if all have ended, or if nothing comes within the time."""
        ranks = {link.fileno(): rank for rank, link in self._links.items()}
        poll = select.poll()
        for fd in ranks:
            poll.register(fd, select.POLLIN)
        ready = poll.poll(seconds * 1000) if ranks else []
        for fd, _ in ready:
            if not self.servers[self.hosts[ranks[fd]]].on_readable(ranks[fd]):
                self._close(ranks[fd])
        self._pass_on()
        return bool(ready)

    def close(self) -> None:
        """Close the connections of all ranks."""
        for rank in tuple(self._links):
            self._close(rank)

    def _close(self, rank: int) -> None:
        del self._links[rank]
        self.servers[self.hosts[rank]].close(rank)

    def _pass_on(self) -> None:
        messages, self._messages = self._messages, []
        for number, message in messages:
            reply = self._root.on_message(number, message)
            if reply is not None:
                for server in self.servers.values():
                    server.on_message(reply)


class Ended(NamedTuple):
    """The end of a job."""

    codes: list[int]
    output: str
    aborts: list[tuple[int, int]]
    notes: list[str]


def run_ranks(program: Sequence[str], hosts: Sequence[int], environ: Mapping[str, str], folder: Path) -> Ended:
    """Run a program as the ranks of a job, to its end or to the first abort."""
    job = PmiHosts(hosts)
    processes = []
    with (folder / "output").open("w+b") as output:
        for rank in range(len(hosts)):
            fd, variables = job.open(rank)
            started = subprocess.Popen(
                program, env={**os.environ, **environ, **variables}, pass_fds=[fd], stdout=output, stderr=output
            )
            processes.append(started)
            os.close(fd)
        while not job.aborts and job.serve(SECONDS):
            pass
        for process in processes:
            if job.aborts:
                process.kill()
        codes = [process.wait(SECONDS) for process in processes]
        job.close()
    text = (folder / "output").read_text(errors="replace")
    return Ended(codes, text, job.aborts, job.notes)
