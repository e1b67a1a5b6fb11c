"""ddlrun's end of the connections of hosts: a loop in a thread serves all of them, each by the steps of a generator."""

import _socket
import json
import os
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from ddlrun.listening import bind_free_port
from ddlrun.remote.probe import ProbeTarget
from ddlrun.ship.host.link import MOST_UNAUTHENTICATED, Server
from ddlrun.ship.host.protocol import TO_DDLRUN, TO_HOST
from ddlrun.ship.host.unpack import BLOCK
from ddlrun.ship.script import run_tasks
from ddlrun.wire.authentication import SHA256, Secret
from ddlrun.wire.connection import Connection
from ddlrun.wire.frames import Agreement, FrameError

# Steps yield FRAME, and get a frame (kind, text); or the number of bytes that are left of a payload, and get some.
Steps = Generator[int, Any, None]
FRAME = 0
T = TypeVar("T")
# More than the frames and payloads that are received at once beside a payload.
MOST_TURNS = 16


def receive(kind: bytes, record: type[T]) -> Generator[int, Any, T]:
    """Return the content of the next frame, which has to be of a kind; a part of the steps. Raises FrameError.

    `record` is its type: NamedTuples and tuples of each other, str, int and bool.
    """
    received, text = yield FRAME
    if received != kind:
        raise FrameError(f"a message of kind {received!r} comes in place of one of kind {kind!r}")
    return parse(text, record)


def parse(text: bytes, record: type[T]) -> T:
    """Return the content of a message, whose type is checked. Raises FrameError."""
    try:
        content: T = _convert(json.loads(text), record)
    except (TypeError, ValueError, RecursionError) as error:
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
        self.buffer = memoryview(bytearray(BLOCK))
        """The part of a payload that has just arrived."""
        self.conversations: set[Conversation] = set()

    def run(self, task: Mapping[str, Any], python: str, reach: ProbeTarget) -> dict[str, dict[str, Any]]:
        """Run a task on all hosts, and serve their connections meanwhile; return their reports (see run_tasks).

        `reach` passes scripts on as files, as they contain the secret.
        """
        end = {"secret": self.secret.text, "addresses": list(self._addresses), "port": self.port}
        self.start()
        try:
            tasks = {host: {**task, **end, "host": host} for host in self._hosts}
            return run_tasks(tasks, python, reach, compiled=True)
        finally:
            self.close()

    def serve(self, conversation: "Conversation", claim: bytes) -> Steps:
        """Serve a connection; at the end of the steps it is closed.

        Raises FrameError or OSError to close it. Those of receiving are raised at a yield.
        """
        raise NotImplementedError

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Serve a connection."""
        Conversation(self, link, agreement).start()

    def close(self) -> None:
        """Accept no more connections, and close all: hosts have ended, or are cut off."""
        super().close()
        for conversation in tuple(self.conversations):
            conversation.close()


class Conversation:
    """A connection of a host, and the steps that serve it."""

    def __init__(self, server: HostServer, link: _socket.socket, agreement: Agreement) -> None:
        """Take over a connection."""
        self.connection = Connection(link)
        self.connection.begin(agreement, sent=TO_HOST, received=TO_DDLRUN)
        self._server = server
        self._link = link
        self._steps = server.serve(self, agreement.claim)
        self._wanted = FRAME
        server.conversations.add(self)

    @property
    def address(self) -> str:
        """The address of the other end. Raises OSError."""
        return str(self._link.getpeername()[0]).removeprefix("::ffff:")

    def start(self) -> None:
        """Begin with the steps."""
        self.connection.join(self._server.loop, self._advance)
        self._advance(start=True)

    def close(self) -> None:
        """Close the connection."""
        self._server.conversations.discard(self)
        self.connection.close()
        self._steps.close()

    def _advance(self, *, start: bool = False) -> None:
        """Pass what has arrived on to the steps; what is left after MOST_TURNS, in a later turn of the loop."""
        try:
            if start:
                self._wanted = next(self._steps)
            for _ in range(MOST_TURNS):
                received = self._receive()
                if received is None:
                    return
                self._wanted = self._steps.send(received)
        except (OSError, FrameError, StopIteration) as error:
            with suppress(OSError, FrameError, StopIteration):
                self._steps.throw(error)
            self.close()

    def _receive(self) -> memoryview | tuple[bytes, bytes] | None:
        """Return the next frame or a part of a payload; None if that has not arrived. Raises FrameError or OSError."""
        if self._wanted == FRAME:
            return next(self.connection.receive(), None)
        size = self.connection.read_into(self._server.buffer[: self._wanted])
        return self._server.buffer[:size] if size else None
