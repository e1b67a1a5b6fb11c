"""A keeper's connection to ddlrun: messages in both directions, and heartbeats."""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import errno
import os
import sys
import time

from ddlrun.keeper import protocol
from ddlrun.wire.authentication import Secret, connect_as
from ddlrun.wire.connection import ClosedError, Connection, run_handshake
from ddlrun.wire.frames import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ddlrun.wire.frames import Agreement
    from ddlrun.wire.loop import Loop

CHUNK = 1 << 16
ANOTHER = "another program answers, or what was sent was altered on the way"
# Seconds for which unsent output may delay the reason for closing the connection.
FAREWELL_SECONDS = 1.0
# A link that is down for a moment fails at once with these, while lost packets are sent again.
DOWN = {errno.EHOSTUNREACH, errno.ENETUNREACH}
RETRY_SECONDS = 0.2


class LauncherConnection(Connection):
    """An established connection to ddlrun; sending does nothing once it is closed."""

    def __init__(self, link: _socket.socket, agreement: Agreement, *, heartbeat: float, program_secret: str) -> None:
        """Take over a socket after the handshake; after `heartbeat` seconds of silence (0: no limit) ddlrun is lost."""
        super().__init__(link)
        self.begin(agreement, sent=protocol.FROM_KEEPER, received=protocol.TO_KEEPER)
        self.program_secret = program_secret
        """The secret of the run's programs, from which that of the run cannot be computed."""
        self.on_loss: Callable[[str], object] | None = None
        """Called once, with the reason, when the connection is lost or ddlrun closes it."""
        self._heartbeat = heartbeat
        self._heard_at = self._beat_at = time.monotonic()
        self.timed_out = False
        """Whether ddlrun was silent for too long."""

    def run_in(self, loop: Loop, on_message: Callable[[bytes, bytes], None]) -> None:
        """Let a loop call a function with each message, kind and text, and see to heartbeats."""

        def receive() -> None:
            for kind, text in self.receive():
                on_message(kind, text)

        self.join(loop, receive)
        loop.watch_deadline(self.deadline, self.keep_alive)

    def flush(self) -> None:
        """Send as much as the connection takes now."""
        super().flush()
        if self._error is not None and self.open:
            self._lose(self._describe(self._error))

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Read once; yield the messages that are complete, as (kind, text)."""
        try:
            data = self.read(CHUNK)
            if len(data) >= protocol.PART:
                self._heard_at = time.monotonic()
            for message in self.decoder.feed(data):
                self._heard_at = time.monotonic()
                yield message
        except FrameError as error:
            self._say_farewell(protocol.ALTERED, str(error))
        except OSError as error:
            self._lose(self._describe(error))

    def keep_alive(self, now: float) -> None:
        """Send a heartbeat if one is due; close the connection if ddlrun has been silent for too long.

        That time begins again if this process did not run, for example as a scheduler has suspended the whole job.
        """
        if not self.open or not self._heartbeat:
            return
        if now > self.deadline() + self._heartbeat / 2:
            self._heard_at = now
        if now > self._heard_at + self._heartbeat:
            self.timed_out = True
            self._say_farewell(protocol.LOST, f"no sign of life from ddlrun for {self._heartbeat:g} s")
        elif not self._finishing and now > self._beat_at + self._heartbeat / 4:
            self._beat_at = now
            self.send(protocol.HEARTBEAT)

    def deadline(self) -> float:
        """Return the time at which `keep_alive` has something to do."""
        if not self.open or not self._heartbeat:
            return float("inf")
        silence = self._heard_at + self._heartbeat
        return silence if self._finishing else min(silence, self._beat_at + self._heartbeat / 4)

    def _say_farewell(self, kind: bytes, reason: str) -> None:
        """Close the connection with a reason, which ddlrun receives if its host can be reached after all."""
        self.link.settimeout(FAREWELL_SECONDS)
        try:
            self.send(kind, reason.encode())
            self.flush()
        except OSError:  # it does not take everything in time
            pass
        self._lose(reason)

    @staticmethod
    def _describe(error: OSError) -> str:
        closed = isinstance(error, ClosedError)
        return "ddlrun is gone" if closed else f"the connection to ddlrun was lost: {error.strerror}"

    def _lose(self, reason: str) -> None:
        if self.open:
            self.close()
            if self.on_loss is not None:
                self.on_loss(reason)


def connect(channel: str, seconds: float, rank: int, heartbeat: float = 0.0) -> LauncherConnection:
    """Connect to the ddlrun that knows the secret, within some seconds per address of `protocol.ADDRESSES`.

    All are tried again as long as the network of one is down, and nothing answers.
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
    program_secret = secret.derive(b"programs").text
    end = time.monotonic() + seconds
    while True:
        errors = dict[str, OSError]()
        for address in dict.fromkeys(candidates):
            try:
                link, agreement = _connect_to(address, secret, seconds, rank)
                return LauncherConnection(link, agreement, heartbeat=heartbeat, program_secret=program_secret)
            except OSError as error:
                errors[address] = error
        numbers = {error.errno for error in errors.values()}
        if time.monotonic() >= end or not numbers & DOWN or numbers - DOWN - {errno.ECONNREFUSED}:
            tried = ", ".join(f"{address} ({error.strerror or error})" for address, error in errors.items())
            raise OSError(f"tried {tried}; open these ports, or name the network: --network")
        time.sleep(RETRY_SECONDS)


def _load_secret(text: str, folder: str) -> Secret:
    """Return the secret of the run. Raises OSError if this Python lacks an algorithm.

    Args:
        text: The text of the secret.
        folder: The folder of the package cryptography; empty if messages are not encrypted.
    """
    if folder:
        sys.path.append(folder)  # a keeper's Python runs without packages
    try:
        secret = Secret(text, encrypted=bool(folder))
    except (ImportError, ValueError) as error:
        raise OSError(f"its Python has no {text.partition(':')[0]}, which ddlrun's own machine uses: {error}") from None
    try:
        secret.exchange()
    except ImportError as error:
        raise OSError(f"its Python cannot import cryptography from {folder}: {error}") from None
    return secret


def _connect_to(address: str, secret: Secret, seconds: float, rank: int) -> tuple[_socket.socket, Agreement]:
    ip, _, port = address.rpartition(":")
    link = _socket.socket(_socket.AF_INET6 if ":" in ip else _socket.AF_INET, _socket.SOCK_STREAM)
    link.settimeout(seconds)
    try:
        link.connect((ip, int(port)))
        link.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        agreement = run_handshake(link, connect_as(secret, protocol.pack_claim(rank)), time.monotonic() + seconds)
    except (OSError, FrameError) as error:
        link.close()
        if isinstance(error, (ClosedError, FrameError)):
            raise OSError(ANOTHER) from None
        raise
    return link, agreement
