"""ddlrun's side of the transfer: it collects the hosts' greetings, gives each its place, and sends the archives."""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddlrun.errors import DdlrunError
from ddlrun.ship.archive import Archive
from ddlrun.ship.chain import chain_order, predecessors
from ddlrun.ship.host.link import LinkError, send_message
from ddlrun.ship.host.unpack import ArchiveError
from ddlrun.ship.host.zstd import compress, has_zstd
from ddlrun.ship.link_server import LinkServer
from ddlrun.wording import printable

Problems = Sequence[str]
LEAST_COMPRESSED = 1 << 20


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of a host before the transfer."""

    address: str
    """Its address, as it reached ddlrun."""
    port: int
    """The port on which it passes archives on."""
    missing: frozenset[str]
    free: int
    python: str
    version: tuple[int, ...]
    glibc: tuple[int, ...]
    zstd: bool = False
    """Whether it has the program zstd."""
    error: str = ""
    """The reason why it cannot receive files."""


def parse_state(body: Mapping[str, Any], address: str) -> HostState:
    """Return the greeting of a host. An error is raised where it is none."""
    if "error" in body:
        return HostState(
            address=address, port=0, missing=frozenset(), free=0, python="", version=(), glibc=(),
            error=printable(str(body["error"])),
        )  # fmt: skip
    return HostState(
        address=address,
        port=int(body["port"]),
        missing=frozenset(map(str, body["missing"])),
        free=int(body["free"]),
        python=str(body["python"]),
        version=tuple(map(int, body["version"])),
        glibc=tuple(map(int, body["glibc"])),
        zstd=bool(body["zstd"]),
    )


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The archives of a transfer, and the hosts in the order in which they pass them on."""

    archives: Sequence[Archive]
    hosts: Sequence[str]
    racks: Mapping[str, object]
    first: str | None
    """The host on which ddlrun runs, if it is one of them."""
    addresses: Sequence[str]
    """ddlrun's own addresses."""
    only_check: bool = False
    """Whether nothing is transferred."""


class TransferServer(LinkServer):
    """The threads that serve the hosts of one transfer."""

    def __init__(self, plan: TransferPlan, secret: str, judge: Callable[[Mapping[str, HostState]], Problems]) -> None:
        """Listen; `judge` returns the problems for which nothing is transferred."""
        super().__init__(secret, plan.addresses, len(plan.hosts))
        self._plan, self._judge = plan, judge
        self._archives = {archive.digest: archive for archive in plan.archives}
        self.greetings: dict[str, HostState] = {}
        self.problems: Problems = ()
        self.unread = False
        """Whether a host lacks an archive whose files were not looked at, so that nothing was sent."""
        self.error: DdlrunError | None = None
        """The error of a file that could not be read."""
        self._decided = threading.Condition()
        self._chains: dict[str, list[str]] | None = None
        self._deadline = 0.0

    def start(self, seconds: float) -> None:
        """Accept the connections of hosts; those that have not greeted after some seconds are waited for no longer."""
        self._deadline = time.monotonic() + seconds
        self.accept_hosts()

    def close(self) -> None:
        """Accept no more connections, and wait for the end of the threads."""
        with self._decided:
            self._deadline = 0.0
            self._decided.notify_all()
        super().close()

    @property
    def moved(self) -> dict[str, list[str]]:
        """The hosts that got each archive, by its hash."""
        return self._chains or {}

    def serve(self, link: socket.socket, address: str, body: Mapping[str, Any]) -> None:
        """Give a host its part of the transfer, or send it an archive."""
        try:
            if body.get("host") in self._plan.hosts:
                self._control(link, str(body["host"]), parse_state(body, address))
            else:
                self._send(link, self._archives[str(body["digest"])])
        except (OSError, KeyError, ValueError, TypeError, LinkError, ArchiveError):
            return  # the host reports what went wrong
        except DdlrunError as error:
            self.error = error

    def _send(self, link: socket.socket, archive: Archive) -> None:
        blocks = archive.blocks()
        for block in compress(blocks) if self._is_compressed(archive) else blocks:
            link.sendall(block)

    def _control(self, link: socket.socket, host: str, greeting: HostState) -> None:
        """Wait for the greetings of the other hosts, and send a host its part of the transfer."""
        with self._decided:
            self.greetings[host] = greeting
            if len(self.greetings) == len(self._plan.hosts):
                self._decide()
            self._decided.wait_for(self._may_reply, max(0.0, self._deadline - time.monotonic()))
        if self._chains is None:  # a host has not greeted, whose reply says why
            return
        stop = bool(self.problems) or self.unread or self._plan.only_check
        transfers = [] if stop else [self._transfer(host, archive) for archive in self._wanted_by(host)]
        send_message(link, {"transfers": transfers, "stop": stop})

    def _may_reply(self) -> bool:
        return self._chains is not None or time.monotonic() >= self._deadline

    def _decide(self) -> None:
        self.problems = self._judge(self.greetings)
        self._chains = {}
        for archive in self._plan.archives:
            wanted = [host for host in self._plan.hosts if archive.digest in self.greetings[host].missing]
            self._chains[archive.digest] = chain_order(wanted, self._plan.racks, self._plan.first)
            self.unread |= bool(wanted) and archive.entries is None and not self._plan.only_check
        self._decided.notify_all()

    def _wanted_by(self, host: str) -> list[Archive]:
        return [archive for archive in self._plan.archives if archive.digest in self.greetings[host].missing]

    def _transfer(self, host: str, archive: Archive) -> dict[str, Any]:
        """Return a host's part in the transfer of an archive."""
        chain = self.moved[archive.digest]
        before = predecessors(chain)[host]
        source = None if before is None else self.greetings[before]
        return {
            "digest": archive.digest,
            "size": archive.size,
            "addresses": list(self._plan.addresses) if source is None else [source.address],
            "port": self.port if source is None else source.port,
            "passes_on": host != chain[-1],
            "compressed": self._is_compressed(archive),
        }

    def _is_compressed(self, archive: Archive) -> bool:
        """Return True for an archive that is large, travels over links, and goes to hosts that have zstd."""
        hosts = self.moved[archive.digest]
        remote = any(host != self._plan.first for host in hosts)
        return (
            archive.size >= LEAST_COMPRESSED
            and remote
            and has_zstd()
            and all(self.greetings[host].zstd for host in hosts)
        )
