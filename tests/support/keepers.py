"""Simulated keepers: the ends of connections to a listener, step by step."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from ddlrun.keeper import protocol
from ddlrun.keeper.authentication import SIZE, RunSecret
from ddlrun.keeper.connection import LauncherSocket
from ddlrun.plan.supervision import LOOPBACK
from ddlrun.supervise.encryption import find_cryptography
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.supervise.keepers import KeeperEvents, Keepers
from ddlrun.supervise.listener import Listener
from ddlrun.wire.loop import Loop

PATIENCE = 300


class SimulatedKeeper:
    """A keeper's end of a connection."""

    def __init__(self, listener: Listener) -> None:
        """Connect; send nothing yet."""
        self.link = socket.create_connection(("127.0.0.1", listener.port), PATIENCE)
        self._secret = RunSecret(listener.secret.text, listener.secret.suite)
        self._exchange = self._secret.suite.exchange()

    @property
    def greeting(self) -> bytes:
        """The first message."""
        return protocol.pack(protocol.GREETING, self._secret.greeting(self._exchange.nonce, 0))

    def greet(self) -> None:
        """Send the greeting."""
        self.link.sendall(self.greeting)

    def read_welcome(self) -> None:
        """Wait for the welcome, and check it."""
        welcome = self.link.recv(self._secret.welcome_bytes, socket.MSG_WAITALL)
        nonce = welcome[protocol.HEAD : -SIZE]
        nonces = self._exchange.nonce + nonce
        assert welcome == protocol.pack(protocol.WELCOME, self._secret.welcome(nonces))
        ours = LauncherSocket(self.link, self._secret, nonces + self._exchange.agree(nonce))
        self.seal, self.unseal = ours.sealer.seal, ours.unsealer.feed

    def send(self, *messages: tuple[bytes, bytes]) -> None:
        """Send messages, as (kind, text)."""
        self.link.sendall(b"".join(self.seal(kind, text) for kind, text in messages))

    def close(self) -> None:
        """Close the connection."""
        self.link.close()


class Served(NamedTuple):
    """ddlrun's connections, and what they have reported."""

    listener: Listener
    keepers: Keepers
    loop: Loop
    messages: list[tuple[bytes, bytes]]
    hang_ups: list[KeeperConnection]
    violations: list[tuple[KeeperConnection, str]]

    def until(self, condition: Callable[[], object]) -> None:
        """Serve the connections until a condition holds."""
        while not condition():
            assert self.loop.wait(PATIENCE), "no connection has an event"

    def connect(self) -> tuple[SimulatedKeeper, KeeperConnection]:
        """Return both ends of the connection of a new, authenticated keeper."""
        earlier = set(self.keepers.peers.values())
        keeper = SimulatedKeeper(self.listener)
        keeper.greet()
        self.until(lambda: self.keepers.peers.keys() - {peer.link.fileno() for peer in earlier})
        (peer,) = set(self.keepers.peers.values()) - earlier
        keeper.read_welcome()
        keeper.send((protocol.HEARTBEAT, b""))
        self.until(lambda: peer.trusted)
        return keeper, peer


@contextmanager
def serving(*, encrypted: bool = False) -> Iterator[Served]:
    """Listen on loopback; the messages of keepers are collected, and nothing reacts to them."""
    with closing(Loop()) as loop:
        listener = Listener(LOOPBACK, find_cryptography() if encrypted else None)
        messages: list[tuple[bytes, bytes]] = []
        hang_ups: list[KeeperConnection] = []
        violations: list[tuple[KeeperConnection, str]] = []
        events = KeeperEvents(
            message=lambda _, kind, text: messages.append((kind, text)),
            hang_up=hang_ups.append,
            violation=lambda peer, problem: violations.append((peer, problem)),
            too_many_files=lambda: None,
        )
        keepers = Keepers(listener, loop, events)
        try:
            yield Served(listener, keepers, loop, messages, hang_ups, violations)
        finally:
            keepers.close()
            listener.close()
