"""The tasks of hosts with their reports, and ddlrun's end of the hosts' connections: a thread serves each of them."""

import _socket
import os
import socket
import subprocess
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from ddlrun.errors import DdlrunError
from ddlrun.listening import bind_free_port
from ddlrun.remote.probe import ProbeTarget, describe_failure, run_tasks
from ddlrun.remote.tasks import TaskReply
from ddlrun.ship.archive import Archive
from ddlrun.ship.host.link import BEFORE, CLAIM, HERE, MOST_UNAUTHENTICATED, HostLink, Server
from ddlrun.wire.authentication import SHA256, Secret
from ddlrun.wire.frames import Agreement, FrameError

T = TypeVar("T")
MODULE = "ddlrun.ship.host.main"
"""The module of the tasks."""
LONGEST_SECONDS = 86400.0
"""The time limit of a transfer as a whole; connections without progress end much earlier."""
# The fastest level: 946 MB of an environment with PyTorch become 265 MB, at 365 MB/s per thread.
COMPRESS = ("zstd", "-q", "-c", "-1", "-T4")
PATIENCE = 20.0


def run_ship_tasks(tasks: Mapping[str, Mapping[str, Any]], reach: ProbeTarget) -> dict[str, dict[str, Any]]:
    """Run each host's task, all at once; return host -> its report. That of one that failed has the reason, `error`."""
    replies = run_tasks(MODULE, tasks, reach)
    return {host: _read_report(replies[host]) for host in tasks}


def _read_report(reply: TaskReply) -> dict[str, Any]:
    return reply.value if isinstance(reply.value, dict) else {"error": describe_failure(reply.process)}


def read(value: object, record: type[T]) -> T:
    """Return a value of JSON that a host has sent, whose type is checked. Raises FrameError.

    `record` is its type: NamedTuples and tuples of each other, str, int and bool.
    """
    try:
        content: T = _convert(value, record)
    except (TypeError, ValueError) as error:
        raise FrameError("it sent a message that cannot be read") from error
    return content


def _convert(value: object, record: type[Any]) -> Any:  # noqa: ANN401 - that type
    """Return an array of JSON as a record. Raises TypeError or ValueError."""
    types = _list_types(cast("Hashable", record))
    if type(value) is not (list if types else record):
        raise TypeError
    if not isinstance(value, list):
        return value
    if types[1:] == (...,):
        types = types[:1] * len(value)
    items = [_convert(item, kind) for item, kind in zip(value, types, strict=True)]
    return getattr(record, "_make", tuple)(items)


@cache
def _list_types(record: Hashable) -> tuple[Any, ...]:
    return get_args(record) or tuple(get_type_hints(record).values())


class HostServer(Server):
    """The connections of the hosts of one transfer."""

    def __init__(self, addresses: Sequence[str], hosts: Sequence[str]) -> None:
        """Listen for hosts on this machine's addresses."""
        # Each host's Python has this algorithm, also in FIPS mode.
        self.secret = Secret(f"{SHA256}:{os.urandom(32).hex()}")
        super().__init__(bind_free_port(addresses), self.secret, max(MOST_UNAUTHENTICATED, len(hosts)))
        self._addresses, self._hosts = addresses, hosts
        self._served: dict[HostLink, threading.Thread] = {}
        self.lock = threading.Lock()
        """Held while what the connections share is read or changed."""

    def describe(self, host: str) -> dict[str, Any]:
        """Return the part of a host's task by which it connects."""
        end = {"secret": self.secret.text, "addresses": list(self._addresses), "port": self.port}
        return {**end, "number": self._hosts.index(host)}

    def run(self, task: Mapping[str, Any], hosts: Iterable[str], reach: ProbeTarget) -> dict[str, dict[str, Any]]:
        """Run a task on hosts, and serve their connections meanwhile; return their reports (see run_ship_tasks)."""
        self.start()
        try:
            return run_ship_tasks({host: {**task, **self.describe(host)} for host in hosts}, reach)
        finally:
            self.close()

    def serve(self, link: HostLink, digest: str, host: str, port: int) -> None:
        """Serve a connection, given its claim; it is closed afterwards. Raises FrameError, OSError or LookupError."""
        raise NotImplementedError

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Serve a connection in a thread of its own; close it where there can be no more threads."""
        served = HostLink(link, agreement, None)
        thread = threading.Thread(target=self._serve, args=(served,), daemon=True)
        with self.lock:
            self._served[served] = thread
        try:
            thread.start()
        except RuntimeError:
            del self._served[served]
            link.close()

    def _serve(self, link: HostLink) -> None:
        digest, number, port = CLAIM.unpack(link.claim)
        with suppress(OSError, FrameError, LookupError):
            self.serve(link, digest.hex(), self._hosts[number], port)
        with self.lock:
            del self._served[link]
            link.close()

    def close(self) -> None:
        """Accept no more connections, and end all: hosts have ended, or are cut off."""
        super().close()
        with self.lock:
            served = dict(self._served)
            for link in served:
                with suppress(OSError):
                    link.socket.shutdown(socket.SHUT_RDWR)
        for thread in served.values():
            thread.join()


@dataclass(frozen=True, slots=True)
class Chain:
    """The hosts that get an archive, or would get it, in the order in which they pass it on."""

    archive: Archive
    hosts: Sequence[str]
    compressed: bool = False


class ArchiveServer(HostServer):
    """The connections of hosts that lack archives: each is told the host before it in the chain, the first is served.

    So are a host that comes again, as its connection broke, and one before which none has come in time.
    """

    def __init__(
        self, addresses: Sequence[str], hosts: Sequence[str], chains: Iterable[Chain], patience: float = PATIENCE
    ) -> None:
        """Listen for hosts on this machine's addresses; one waits some seconds for the host before it."""
        super().__init__(addresses, hosts)
        self._patience = patience
        self._chains = {chain.archive.digest: chain for chain in chains}
        self._ends: dict[tuple[str, str], tuple[str, int]] = {}
        """The hash of an archive and a host -> the address and the port at which that passes the archive on."""
        keys = ((digest, host) for digest, chain in self._chains.items() for host in chain.hosts)
        self._arrived = {key: threading.Event() for key in keys}
        self.error: DdlrunError | None = None
        """The error of a file that could not be read."""

    def describe(self, host: str) -> dict[str, Any]:
        """Return the part of a host's task that names its archives, too."""
        transfers = [
            {
                "digest": digest, "size": chain.archive.size, "passes_on": host != chain.hosts[-1],
                "compressed": chain.compressed,
            }
            for digest, chain in self._chains.items()
            if host in chain.hosts
        ]  # fmt: skip
        return {**super().describe(host), "transfers": transfers}

    def serve(self, link: HostLink, digest: str, host: str, port: int) -> None:
        """Name the host before one in the chain, once that has connected, or send the archive."""
        hosts = self._chains[digest].hosts
        again = (digest, host) in self._ends
        address = str(link.socket.getpeername()[0]).removeprefix("::ffff:")
        self._ends.setdefault((digest, host), (address, port))
        self._arrived[digest, host].set()
        before = digest, hosts[hosts.index(host) - 1]
        if again or host == hosts[0] or not self._arrived[before].wait(self._patience):
            self._send(link, self._chains[digest])
        else:
            link.send(BEFORE, self._ends[before])

    def _send(self, link: HostLink, chain: Chain) -> None:
        link.send(HERE)
        try:
            if chain.compressed:
                _compress(chain.archive.blocks(), link)
                return
            for block in chain.archive.blocks():
                link.socket.sendall(block)
        except DdlrunError as error:
            self.error = error

    def close(self) -> None:
        """End all connections, those that wait first."""
        for event in self._arrived.values():
            event.set()
        super().close()


def _compress(blocks: Iterable[bytes], link: HostLink) -> None:
    """Send blocks by way of zstd. Raises as `blocks`, or OSError."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(COMPRESS, stdin=pipe, stdout=link.socket.fileno(), stderr=null) as process:  # noqa: S603 - constant words
        for block in blocks:
            process.stdin.write(block)  # type: ignore[union-attr]
