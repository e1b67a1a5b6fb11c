"""ddlrun's side of the transfer: it collects the hosts' states, gives each its part, and sends the archives."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from ddlrun.errors import DdlrunError
from ddlrun.ship.archive import Archive
from ddlrun.ship.conversation import FRAME, Conversation, HostServer, Steps, receive
from ddlrun.ship.host.protocol import (
    ARCHIVE,
    NO_ARCHIVE,
    STATE,
    TRANSFERS,
    HostState,
    Transfer,
    Transfers,
)
from ddlrun.ship.host.relay import has_zstd
from ddlrun.ship.sending import CompressedSending, Sending
from ddlrun.wire.loop import NEVER

Problems = Sequence[str]
LEAST_COMPRESSED = 1 << 20


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


class TransferServer(HostServer):
    """The connections of the hosts of one transfer, and what they are told."""

    def __init__(
        self, plan: TransferPlan, judge: Callable[[Mapping[str, HostState]], Problems], seconds: float
    ) -> None:
        """Listen.

        Args:
            plan: The transfer.
            judge: Returns the problems for which nothing is transferred, given the states of all hosts.
            seconds: The time in which hosts have to report their states.
        """
        super().__init__(plan.addresses, plan.hosts)
        self._plan, self._judge = plan, judge
        self._archives = {archive.digest: archive for archive in plan.archives}
        self.states: dict[str, HostState] = {}
        self.problems: Problems = ()
        self.unread = False
        """Whether a host lacks an archive whose files were not looked at, so that nothing was sent."""
        self.error: DdlrunError | None = None
        """The error of a file that could not be read."""
        self.moved: dict[str, list[str]] = {}
        """The hosts that get each archive, by its hash, in the order of the chain."""
        self._address_of: dict[str, str] = {}
        self._waiting: dict[str, Conversation] = {}
        self._decided = False
        self._report_until = time.monotonic() + seconds
        self.loop.watch_deadline(lambda: self._report_until, self._give_up)

    def serve(self, conversation: Conversation, claim: bytes) -> Steps:
        """Give a host its part of the transfer, or send it an archive, until it closes the connection."""
        if claim != NO_ARCHIVE:
            yield from self._send(conversation, claim.hex())
            return
        state = yield from receive(STATE, HostState)
        if state.host not in self._plan.hosts:
            return
        self.states[state.host] = state
        self._address_of[state.host] = conversation.address
        self._waiting[state.host] = conversation
        if not self._decided and len(self.states) == len(self._plan.hosts):
            self._decide()
        if self._decided:
            self._reply()
        elif self._report_until == NEVER:  # a host has not reported its state; ssh says why
            return
        yield FRAME

    def _send(self, conversation: Conversation, digest: str) -> Steps:
        archive = self._archives.get(digest)
        if archive is None:
            return

        def fail(error: DdlrunError) -> None:
            self.error = error
            conversation.close()

        conversation.connection.send(ARCHIVE)
        sending = CompressedSending if self._is_compressed(archive) else Sending
        with closing(sending(self.loop, conversation.connection, archive.blocks(), fail)):
            yield FRAME

    def _give_up(self, _now: float) -> None:
        """Wait for no more states."""
        self._report_until = NEVER
        for conversation in self._waiting.values():
            conversation.close()

    def _decide(self) -> None:
        self._decided, self._report_until = True, NEVER
        self.problems = self._judge(self.states)
        for archive in self._plan.archives:
            wanted = [host for host in self._plan.hosts if archive.digest in self.states[host].missing]
            self.moved[archive.digest] = chain_order(wanted, self._plan.racks, self._plan.first)
            self.unread |= bool(wanted) and archive.entries is None and not self._plan.only_check

    def _reply(self) -> None:
        """Send the hosts that wait their parts of the transfer."""
        stop = bool(self.problems) or self.unread or self._plan.only_check
        for host, conversation in self._waiting.items():
            missing = [] if stop else [archive for archive in self._plan.archives if host in self.moved[archive.digest]]
            transfers = [self._transfer(host, archive) for archive in missing]
            conversation.connection.send(TRANSFERS, json.dumps(Transfers(tuple(transfers), stop)).encode())
        self._waiting.clear()

    def _transfer(self, host: str, archive: Archive) -> Transfer:
        """Return a host's part in the transfer of an archive."""
        chain = self.moved[archive.digest]
        place = chain.index(host)
        before = chain[place - 1] if place else None
        return Transfer(
            digest=archive.digest,
            size=archive.size,
            addresses=tuple(self._plan.addresses) if before is None else (self._address_of[before],),
            port=self.port if before is None else self.states[before].port,
            passes_on=host != chain[-1],
            compressed=self._is_compressed(archive),
        )

    def _is_compressed(self, archive: Archive) -> bool:
        """Return True for an archive that is large, travels over links, and goes to hosts that have zstd."""
        hosts = self.moved[archive.digest]
        remote = any(host != self._plan.first for host in hosts)
        return (
            archive.size >= LEAST_COMPRESSED and remote and has_zstd() and all(self.states[host].zstd for host in hosts)
        )


def chain_order(hosts: Sequence[str], racks: Mapping[str, object], first: str | None) -> list[str]:
    """Return hosts in the order of the chain along which an archive travels; first that of ddlrun, if any.

    The hosts of a rack come one after the other, so that each uplink carries the archive once.

    >>> chain_order(["a", "b", "c", "d"], {"a": 0, "b": 1, "c": 0, "d": 1}, "d")
    ['d', 'b', 'a', 'c']
    """
    by_rack: dict[object, list[str]] = {}
    for host in sorted(hosts, key=lambda host: host != first):
        by_rack.setdefault(racks.get(host), []).append(host)
    return [host for rack in by_rack.values() for host in rack]
