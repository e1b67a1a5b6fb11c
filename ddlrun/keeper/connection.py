"""A keeper's connection to ddlrun: messages in both directions, and heartbeats."""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os
import sys
import time

from ddlrun.keeper import protocol
from ddlrun.keeper.authentication import SIZE, RunSecret, Sealer, Unsealer, equal
from ddlrun.keeper.protocol import HEAD, ProtocolError
from ddlrun.wire.loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.keeper.encryption import EncryptionSuite
    from ddlrun.wire.loop import Loop

CHUNK = 1 << 16
MOMENT = 1e-3
ANOTHER = "another program answers, or what was sent was altered on the way"
# Seconds for which unsent output may delay the reason for closing the connection.
FAREWELL_SECONDS = 1.0


class LauncherSocket:
    """A socket to a ddlrun that knows the secret of the run, and the state of both directions."""

    def __init__(self, connected: _socket.socket, secret: RunSecret, material: bytes) -> None:
        """Take over a socket; see RunSecret.to_ddlrun for `material`."""
        self.socket = connected
        self.program_secret = secret.program_secret()
        """See RunSecret.program_secret."""
        self.sealer = Sealer(secret.to_ddlrun(material))
        self.unsealer = Unsealer(secret.to_keeper(material))


class LauncherConnection:
    """An established connection to ddlrun; sending does nothing once it is closed."""

    def __init__(self, connected: LauncherSocket, heartbeat: float, on_loss: Callable[[str], None]) -> None:
        """Take over a socket that `connect` returned.

        Args:
            connected: The socket.
            heartbeat: The seconds of silence after which ddlrun counts as lost; 0: no limit.
            on_loss: Called once, with the reason, when the connection is lost or ddlrun closes it.
        """
        connected.socket.setblocking(False)
        self._socket = connected.socket
        self._sealer, self._unsealer = connected.sealer, connected.unsealer
        self._heartbeat = heartbeat
        self._on_loss = on_loss
        self._unsent = bytearray()
        self._loop: Loop | None = None
        self._on_message: Callable[[bytes, bytes], None]
        self._heard_at = self._beat_at = time.monotonic()
        self._beating = heartbeat > 0
        self.open = True
        self.timed_out = False
        """Whether ddlrun was silent for too long."""

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._socket.fileno()

    def join(self, loop: Loop, on_message: Callable[[bytes, bytes], None]) -> None:
        """Let a loop send, receive and keep the connection alive."""
        self._loop, self._on_message = loop, on_message
        loop.watch_deadline(self.deadline, self.keep_alive)
        self._watch()

    def _watch(self) -> None:
        if self.open and self._loop is not None:
            self._loop.watch(self.fileno(), READ | (WRITE if self._unsent else 0), self._on_events)

    def _on_events(self, events: int) -> None:
        if events & ~WRITE:
            for kind, text in self.receive():
                self._on_message(kind, text)
        if events & WRITE:
            self.flush()

    @property
    def unsent(self) -> int:
        """The number of bytes that wait to be sent."""
        return len(self._unsent)

    def send(self, kind: bytes, text: bytes = b"") -> None:
        """Send a message; what the kernel does not take now is sent later."""
        if self.open:
            self._unsent += self._sealer.seal(kind, text)
            if self._loop is not None:
                self.flush()

    def flush(self) -> None:
        """Send as much as the connection takes now."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except (BlockingIOError, TimeoutError, _socket.timeout):
            pass
        except OSError as error:
            self._lose(f"the connection to ddlrun was lost: {error.strerror}")
        self._watch()

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return the messages that have arrived, as (kind, text)."""
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError as error:
            self._lose(f"the connection to ddlrun was lost: {error.strerror}")
            return []
        if not data:
            self._lose("ddlrun is gone")
            return []
        messages: list[tuple[bytes, bytes]] = []
        try:
            messages.extend(self._unsealer.feed(data))
        except ProtocolError as error:
            self._say_farewell(protocol.ALTERED, str(error))
        if messages or len(data) >= protocol.PART:
            self._heard_at = time.monotonic()
        return messages

    def keep_alive(self, now: float) -> None:
        """Queue a heartbeat if one is due; close the connection if ddlrun has been silent for too long.

        That time begins again if this process did not run, for example as a scheduler has suspended the whole job.
        """
        if not self.open or not self._heartbeat:
            return
        if now > self.deadline() + self._heartbeat / 2:
            self._heard_at = now
        if now > self._heard_at + self._heartbeat:
            self.timed_out = True
            self._say_farewell(protocol.LOST, f"no sign of life from ddlrun for {self._heartbeat:g} s")
        elif self._beating and now > self._beat_at + self._heartbeat / 4:
            self._beat_at = now
            self.send(protocol.HEARTBEAT)

    def deadline(self) -> float:
        """Return the time at which `keep_alive` has something to do."""
        if not self.open or not self._heartbeat:
            return float("inf")
        silence = self._heard_at + self._heartbeat
        return min(silence, self._beat_at + self._heartbeat / 4) if self._beating else silence

    def finish_sending(self) -> None:
        """Announce that nothing more is sent; ddlrun closes after it has read everything, so that nothing is lost."""
        self._beating = False
        if self.open:
            try:
                self._socket.shutdown(_socket.SHUT_WR)
            except OSError:
                self._lose("the connection to ddlrun was lost")

    def _say_farewell(self, kind: bytes, reason: str) -> None:
        """Close the connection with a reason, which ddlrun receives if its host can be reached after all."""
        self.send(kind, reason.encode())
        self._socket.settimeout(FAREWELL_SECONDS)
        self.flush()
        if self.open:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        self.open = False
        self._unsent.clear()
        if self._loop is not None:
            self._loop.forget(self.fileno())
        self._socket.close()
        self._on_loss(reason)


def connect(channel: str, seconds: float, rank: int) -> LauncherSocket:
    """Connect to the ddlrun that knows the secret, within some seconds per address of `protocol.ADDRESSES`.

    Raises OSError where no address was reached, with the reason of each, or where the other end is another ddlrun.
    """
    channel, _, version = channel.rpartition("@")
    if version != protocol.VERSION:
        versions = f"its host has version {protocol.VERSION}, and another version has started the job"
        raise OSError(f"{versions}; install the same one on all hosts")
    text, host, addresses, folder = channel.split("@", 3)
    secret = _load_secret(text, folder)
    candidates = addresses.split(",")
    if host == os.uname().nodename:
        candidates.insert(0, "127.0.0.1:" + candidates[0].rpartition(":")[2])
    failures = []
    for address in dict.fromkeys(candidates):
        try:
            return _connect_to(address, secret, seconds, rank)
        except OSError as error:
            failures.append(f"{address} ({error.strerror or error})")
    raise OSError(f"tried {', '.join(failures)}; open these ports, or name the network: --network")


def _load_secret(text: str, folder: str) -> RunSecret:
    """Return the secret of the run. Raises OSError if this Python lacks an algorithm.

    Args:
        text: The text of the secret.
        folder: The folder of the package cryptography; empty if messages are not encrypted.
    """
    suite = _load_suite(folder) if folder else None
    try:
        return RunSecret(text, suite)
    except (ImportError, ValueError) as error:
        raise OSError(f"its Python has no {text.partition(':')[0]}, which ddlrun's own machine uses: {error}") from None


def _load_suite(folder: str) -> EncryptionSuite:
    """Return the suite that encrypts. Raises OSError if its package cannot be imported."""
    sys.path.append(folder)  # a keeper's Python runs without packages
    try:
        from ddlrun.keeper.encryption import EncryptionSuite  # noqa: PLC0415 - 50 ms, for encryption alone
    except ImportError as error:
        raise OSError(f"its Python cannot import cryptography from {folder}: {error}") from None
    return EncryptionSuite()


def _connect_to(address: str, secret: RunSecret, seconds: float, rank: int) -> LauncherSocket:
    ip, _, port = address.rpartition(":")
    connection = _socket.socket(_socket.AF_INET6 if ":" in ip else _socket.AF_INET, _socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        connection.connect((ip, int(port)))
        connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        return _authenticate(connection, secret, time.monotonic() + seconds, rank)
    except OSError:
        connection.close()
        raise


def _authenticate(connection: _socket.socket, secret: RunSecret, end: float, rank: int) -> LauncherSocket:
    """Greet ddlrun, check its welcome, and prove to it that the greeting is not a copy; `end` is the time limit.

    Raises OSError where another program answers, or nothing does.
    """
    exchange = secret.suite.exchange()
    connection.sendall(protocol.pack(protocol.GREETING, secret.greeting(exchange.nonce, rank)))
    reply = _receive_welcome(connection, secret.welcome_bytes, end)
    nonce = reply[HEAD:-SIZE]
    nonces = exchange.nonce + nonce
    if not equal(reply, protocol.pack(protocol.WELCOME, secret.welcome(nonces))):
        raise OSError(ANOTHER)
    try:
        authenticated = LauncherSocket(connection, secret, nonces + exchange.agree(nonce))
    except ProtocolError as error:
        raise OSError(str(error)) from None
    connection.sendall(authenticated.sealer.seal(protocol.HEARTBEAT))
    return authenticated


def _receive_welcome(connection: _socket.socket, size: int, end: float) -> bytes:
    """Return the first bytes that arrive before the time `end`. Raises OSError if they are fewer than `size`."""
    reply = b""
    while len(reply) < size:
        connection.settimeout(max(MOMENT, end - time.monotonic()))
        data = connection.recv(size - len(reply))
        if not data:
            raise OSError(ANOTHER)
        reply += data
    return reply
