"""Simulated keepers: the ends of connections to a listener, step by step."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ddlrun.keeper import protocol
from ddlrun.plan.supervision import LOOPBACK
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.supervise.keepers import KeeperEvents, Keepers
from ddlrun.supervise.listener import Listener, find_cryptography
from ddlrun.wire.authentication import Secret, connect_as
from ddlrun.wire.frames import Agreement, Decoder, Encoder
from ddlrun.wire.loop import Loop

PATIENCE = 300


class SimulatedKeeper:
    """A keeper's end of a connection."""

    def __init__(self, listener: Listener, rank: int = 0) -> None:
        """Connect; send nothing yet."""
        self.link = socket.create_connection(("127.0.0.1", listener.port), PATIENCE)
        secret = Secret(listener.secret.text, encrypted=listener.secret.encrypted)
        self._steps = connect_as(secret, protocol.pack_claim(rank))
        self.greeting, self.welcome_bytes = next(self._steps)

    def greet(self) -> None:
        """Send the greeting."""
        self.link.sendall(self.greeting)

    def read_welcome(self) -> None:
        """Wait for the welcome, check it, and send the proof that the greeting is not a copy."""
        self.link.sendall(self._steps.send(self.link.recv(self.welcome_bytes, socket.MSG_WAITALL))[0])
        try:
            self._steps.send(b"")
        except StopIteration as end:
            agreement: Agreement = end.value
            self._encoder = Encoder(agreement.outgoing, {**protocol.TO_KEEPER, **protocol.FROM_KEEPER, b"\0": 100})
            self.unseal = Decoder(agreement.incoming, protocol.TO_KEEPER).feed

    def seal(self, kind: bytes, text: bytes = b"") -> bytes:
        """Return a message as it is sent; its kind may be one that no keeper sends."""
        return b"".join(self._encoder.encode(kind, text))

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
    violations: list[tuple[KeeperConnection | int, str]]

    def until(self, condition: Callable[[], object]) -> None:
        """Serve the connections until a condition holds; fail if it never does."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            self.loop.wait(PATIENCE)

    def connect(self) -> tuple[SimulatedKeeper, KeeperConnection]:
        """Return both ends of the connection of a new, authenticated keeper."""
        earlier = set(self.keepers.peers.values())
        keeper = SimulatedKeeper(self.listener)
        keeper.greet()
        self.until(lambda: is_readable(keeper.link))
        keeper.read_welcome()
        self.until(lambda: self.keepers.peers.keys() - {peer.fileno() for peer in earlier})
        (peer,) = set(self.keepers.peers.values()) - earlier
        return keeper, peer


def is_readable(link: socket.socket) -> bool:
    """Return True if something has arrived, or the other end has closed the connection."""
    return bool(select.select([link], [], [], 0)[0])


@contextmanager
def serving(*, encrypted: bool = False, secret: Secret | None = None) -> Iterator[Served]:
    """Listen on loopback; the messages of keepers are collected, and nothing reacts to them."""
    loop = Loop()
    encrypted = encrypted or (secret is not None and secret.encrypted)
    listener = Listener(LOOPBACK, find_cryptography() if encrypted else None)
    listener.secret = secret or listener.secret
    messages: list[tuple[bytes, bytes]] = []
    hang_ups: list[KeeperConnection] = []
    violations: list[tuple[KeeperConnection | int, str]] = []
    events = KeeperEvents(
        message=lambda _, kind, text: messages.append((kind, text)),
        hang_up=hang_ups.append,
        violation=lambda peer, problem: violations.append((peer, problem)),
        unproven=lambda rank, problem: violations.append((rank, problem)),
        too_many_files=lambda: None,
    )
    keepers = Keepers(listener, loop, events)
    try:
        yield Served(listener, keepers, loop, messages, hang_ups, violations)
    finally:
        keepers.close()
        listener.close()
        loop.close()
