"""A keeper's connection to ddlrun: messages in both directions, and heartbeats."""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os
import time

from ddlrun.rank import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 1 << 16


class LauncherConnection:
    """An established connection to ddlrun; sending does nothing once it is closed."""

    def __init__(self, connected: _socket.socket, heartbeat: float, on_loss: Callable[[str], None]) -> None:
        """Take over a socket that `connect` returned.

        Args:
            connected: The socket.
            heartbeat: The seconds of silence after which ddlrun counts as lost; 0: no limit.
            on_loss: Called once, with the reason, when the connection is lost or ddlrun closes it.
        """
        connected.setblocking(False)
        self._socket = connected
        self._heartbeat = heartbeat
        self._on_loss = on_loss
        self._unsent = bytearray()
        self._unpacker = protocol.Unpacker()
        self._heard_at = self._beat_at = time.monotonic()
        self._beating = heartbeat > 0
        self.open = True
        self.timed_out = False
        """Whether ddlrun was silent for too long."""

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """The number of bytes that wait to be sent."""
        return len(self._unsent)

    def send(self, kind: bytes, text: bytes = b"") -> None:
        """Queue a message; `flush` sends it."""
        if self.open:
            self._unsent += protocol.pack(kind, text)

    def flush(self) -> None:
        """Send as much as the connection takes now."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"the connection to ddlrun was lost: {error.strerror}")

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
        self._heard_at = time.monotonic()
        return self._unpacker.feed(data)

    def keep_alive(self, now: float) -> None:
        """Queue a heartbeat if one is due; close the connection if ddlrun has been silent for too long."""
        if not self.open or not self._heartbeat:
            return
        if now > self._heard_at + self._heartbeat:
            self.timed_out = True
            self._lose(f"no sign of life from ddlrun for {self._heartbeat:g} s")
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

    def _lose(self, reason: str) -> None:
        self.open = False
        self._unsent.clear()
        self._socket.close()
        self._on_loss(reason)


def connect(channel: str, seconds: float) -> _socket.socket:
    """Connect to the ddlrun that knows the token.

    Args:
        channel: The value of protocol.ADDRESSES.
        seconds: The time limit per address.

    Raises:
        OSError: No address was reached; the text lists each with the reason.
    """
    token, host, addresses = channel.split("@")
    candidates = addresses.split(",")
    if host == os.uname().nodename:
        candidates.insert(0, "127.0.0.1:" + candidates[0].rpartition(":")[2])
    failures = []
    for address in dict.fromkeys(candidates):
        try:
            return _connect_to(address, token, seconds)
        except OSError as error:
            failures.append(f"{address} ({error.strerror or error})")
    raise OSError(f"tried {', '.join(failures)}; open these ports, or name the network: --network")


def _connect_to(address: str, token: str, seconds: float) -> _socket.socket:
    ip, _, port = address.rpartition(":")
    connection = _socket.socket(_socket.AF_INET6 if ":" in ip else _socket.AF_INET, _socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        connection.connect((ip, int(port)))
        connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        _introduce(connection, token)
    except OSError:
        connection.close()
        raise
    return connection


def _introduce(connection: _socket.socket, token: str) -> None:
    """Send the token and wait for the welcome. Raises OSError if another program answers."""
    connection.sendall(protocol.pack(protocol.HELLO, token.encode()))
    reply = b""
    while len(reply) < protocol.HEAD and (data := connection.recv(protocol.HEAD - len(reply))):
        reply += data
    if reply != protocol.pack(protocol.WELCOME):
        raise OSError("another program answers")
