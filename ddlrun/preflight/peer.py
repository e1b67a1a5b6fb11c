"""One host's part of the TCP check, a task: listen, connect to its partners, and report which of them were reached.

Hosts may have no ddlrun: it imports wire/ and the standard library alone, and as little as possible of that.

Hosts start at different times, seconds apart on a busy machine. Therefore an attempt fails only after the partner has
shown that it listens, by its own connection to this host, or when time is up. A host listens until each partner has
received its answer or has failed; it learns the latter when the partner closes this host's connection, which stays
open until then.
"""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import _thread  # and threading 3 ms
import os
import resource
import time

from ddlrun.wire.authentication import Secret, connect_as
from ddlrun.wire.connection import ClosedError, Connection, run_handshake
from ddlrun.wire.frames import Decoder, Encoder, FrameError
from ddlrun.wire.listening import Acceptor, AcceptorEvents
from ddlrun.wire.loop import ENDED, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ddlrun.wire.frames import Agreement

PAUSE = 0.05
# The pauses between attempts begin with this one, and double.
FIRST_PAUSE = 0.002
CONNECT_SECONDS = 2.0
GREETING, ANSWER, RECEIVED = b"g", b"a", b"r"
# From the end that connects: its port and its name. The answer, which it confirms, is the other name. A greeting needs
# packets of the full size, which a network loses whose MTU is smaller than that of the hosts.
GREETING_BYTES, NAME_BYTES = 8 << 10, 400
TO_PARTNER, FROM_PARTNER = {GREETING: GREETING_BYTES + NAME_BYTES, RECEIVED: 0}, {ANSWER: NAME_BYTES}
UNANSWERED = "greetings of 8 KiB have no answer: check that the MTU (ip link) is not larger than that of the network"
MOST_UNAUTHENTICATED = 64
# An attempt has failed after this many connections to a partner that listens.
MOST_FAILURES = 3
# What a shell reports for a program that SIGPIPE has ended.
EXIT_NO_READER = 141


class Partner:
    """A host that this host connects to, and that connects to this host."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.error: str | None = "no answer"
        """The last error of the attempt to reach it; None: it answered."""
        self.unresolved = False
        """Whether its name has no address, which is that error."""
        self.port: int | None = None
        """The port on which it listens; None until it has connected to this host."""
        self.tried = False
        """Whether this host's attempt to reach it is over."""
        self.finished = False
        """Whether its attempt to reach this host is over."""


class Peer(AcceptorEvents):
    """The listener of this host, in an event loop, and its partners, each with a thread that connects to it."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.since = time.time()
        self._end: float = time.monotonic() + task["seconds"]
        self._name, self._secret, self._ports = task["own"], Secret(task["secret"]), task["ports"]
        self._partners = {name: Partner(name, address) for name, address in task["to"].items()}
        self._loop = Loop()
        self._greeted: dict[Connection, Partner] = {}
        """The connections of partners that have sent their greetings."""
        self._server = listen(task["bind"], self._ports)
        self._port = 0 if self._server is None else self._server.getsockname()[1]
        self._acceptor = Acceptor(
            self._loop, [self._server] if self._server else [], self._secret, self, most=MOST_UNAUTHENTICATED,
            seconds=task["seconds"],
        )  # fmt: skip
        self._connections: list[Connection] = []
        self._users = 1 + len(self._partners)
        """The threads, this one too, that may use the loop: the last one closes it."""
        self._leaving = _thread.allocate_lock()

    def run(self) -> dict[str, Any]:
        """Try all partners, and serve them until their own attempts are over or time is up; return the report."""
        for partner in self._partners.values():
            _thread.start_new_thread(self._reach, (partner,))
        while self._seconds_left() and not all(each.tried and each.finished for each in self._partners.values()):
            self._loop.wait(self._seconds_left())
            for connection, partner in self._greeted.items():
                if partner.tried and partner.finished:
                    connection.close()
        return {
            "listening": self._server is not None,
            "reached": {partner.name: partner.error for partner in self._partners.values()},
            "unresolved": [partner.name for partner in self._partners.values() if partner.unresolved],
            "since": self.since,
            "until": time.time(),
        }

    def end_with_reader(self) -> None:
        """End this process when nothing reads its output any more: ddlrun, or its connection to this host, is gone."""
        self._loop.watch(1, 0, lambda events: os._exit(EXIT_NO_READER) if events & ENDED else None)

    def close(self) -> None:
        """Close all connections, and the loop if no thread can still wake it up."""
        self._acceptor.close()
        for connection in self._connections:
            connection.close()
        self._leave()

    def _leave(self) -> None:
        """Close the loop if all others have left it."""
        with self._leaving:
            self._users -= 1
            last = not self._users
        if last:
            self._loop.close()

    def _seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    # -- this host's connections, in threads ------------------------------------------------------

    def _reach(self, partner: Partner) -> None:
        """Try a partner, and leave the loop."""
        try:
            self._try(partner)
        finally:
            self._leave()

    def _try(self, partner: Partner) -> None:
        """Connect to a partner until it answers, has failed, or time is up."""
        attempt = failures = 0
        pause = FIRST_PAUSE
        while self._seconds_left() and failures < MOST_FAILURES:
            listens = partner.port is not None
            error = self._connect(partner, partner.port or self._ports[attempt % len(self._ports)], patient=listens)
            if error is None:
                return
            # On the other ports nothing listens, which says less.
            partner.error = UNANSWERED if UNANSWERED in (error, partner.error) else error
            attempt += 1
            if listens:
                failures += 1
                pause = PAUSE
            time.sleep(pause)
            pause = min(2 * pause, PAUSE)
        partner.tried = True
        self._loop.wake()

    def _connect(self, partner: Partner, port: int, *, patient: bool) -> str | None:
        """Greet a partner on one port; return the error, or None when it has answered and has closed the connection.

        Another program that listens on the port may never answer. A `patient` attempt waits until time is up, as
        nothing but a busy machine delays the answer.
        """
        seconds = max(PAUSE, self._seconds_left() if patient else min(CONNECT_SECONDS, self._seconds_left()))
        stream = None
        try:
            stream = connect(partner.address, port, min(seconds, CONNECT_SECONDS))
            agreement = run_handshake(stream, connect_as(self._secret), time.monotonic() + seconds)
            stream.settimeout(seconds)
            encoder = Encoder(agreement.outgoing, TO_PARTNER)
            greeting = f"{self._port} {self._name}".encode().ljust(GREETING_BYTES)
            stream.sendall(b"".join(encoder.encode(GREETING, greeting)))
            name = receive_text(stream, Decoder(agreement.incoming, FROM_PARTNER)).decode()
            if name != partner.name:
                return f"{name} answers"
            stream.sendall(b"".join(encoder.encode(RECEIVED)))
            self._await_end(partner, stream)
        except (FrameError, ClosedError):
            return "another program answers"
        except (OSError, ValueError) as error:
            partner.unresolved = isinstance(error, _socket.gaierror)
            if stream is not None and isinstance(error, _socket.timeout):
                return UNANSWERED
            return getattr(error, "strerror", None) or str(error) or "no answer"
        finally:
            if stream is not None:
                stream.close()
        return None

    def _await_end(self, partner: Partner, stream: _socket.socket) -> None:
        """Wait until a partner that has answered closes the connection."""
        partner.error, partner.tried = None, True
        self._loop.wake()
        try:
            stream.settimeout(max(PAUSE, self._seconds_left()))
            stream.recv(1)
        except OSError:
            pass
        partner.finished = True
        self._loop.wake()

    # -- the partners' connections ----------------------------------------------------------------

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Serve a partner."""
        connection = Connection(link)
        self._connections.append(connection)
        connection.begin(agreement, sent=FROM_PARTNER, received=TO_PARTNER)
        connection.join(self._loop, lambda: self._on_readable(connection))

    def _on_readable(self, connection: Connection) -> None:
        """Answer a greeting, and hold the connection until its sender has been tried."""
        try:
            for kind, text in connection.receive():
                if kind == GREETING:
                    port, name = text.decode().split()
                    self._greeted[connection] = partner = self._partners[name]
                    partner.port = int(port)
                    connection.send(ANSWER, self._name.encode())
                else:
                    self._greeted[connection].finished = True
        except (OSError, FrameError, KeyError, ValueError):
            connection.close()


def connect(name: str, port: int, seconds: float) -> _socket.socket:
    """Connect to one of the addresses of a name, each within some seconds. Raises OSError."""
    error = OSError(f"{name} has no address")
    for family, kind, protocol, _, address in _socket.getaddrinfo(name.encode(), port, 0, _socket.SOCK_STREAM):
        stream = _socket.socket(family, kind, protocol)
        try:
            stream.settimeout(seconds)
            stream.connect(address)
        except OSError as failure:
            error = failure
            stream.close()
        else:
            return stream
    raise error


def receive_text(stream: _socket.socket, decoder: Decoder) -> bytes:
    """Return the text of the next message. Raises OSError or FrameError."""
    while True:
        data = stream.recv(NAME_BYTES)
        if not data:
            raise ClosedError
        for _, text in decoder.feed(data):
            return text


def listen(address: str, ports: list[int]) -> _socket.socket | None:
    """Return a socket that listens on the first free port, None if all are in use."""
    for port in ports:
        server = _socket.socket(_socket.AF_INET6 if ":" in address else _socket.AF_INET)
        server.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        try:
            server.bind((address, port))
            server.listen(4096)
        except OSError:
            server.close()
        else:
            return server
    return None


def main(task: Mapping[str, Any]) -> dict[str, Any]:
    """Check this host's connections; return the report."""
    peer = Peer(task)
    if _thread.get_native_id() == os.getpid():  # in ddlrun itself, a task is a thread
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        peer.end_with_reader()
    try:
        return peer.run()
    finally:
        peer.close()
