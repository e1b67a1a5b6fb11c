"""ddlrun's end of the connections of hosts: a thread serves each of them."""

import _socket
import json
import os
import socket
import threading
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from ddlrun.listening import bind_free_port
from ddlrun.remote.probe import ProbeTarget, describe_failure, run_tasks
from ddlrun.remote.tasks import TaskReply
from ddlrun.ship.host.link import MOST_UNAUTHENTICATED, HostLink, Server
from ddlrun.ship.host.protocol import TO_DDLRUN, TO_HOST
from ddlrun.wire.authentication import SHA256, Secret
from ddlrun.wire.frames import Agreement, FrameError

T = TypeVar("T")
MODULE = "ddlrun.ship.host.main"
"""The module of the tasks."""


def run_ship_tasks(tasks: Mapping[str, Mapping[str, Any]], reach: ProbeTarget) -> dict[str, dict[str, Any]]:
    """Run each host's task, all at once; return host -> its report. That of one that failed has the reason, `error`."""
    replies = run_tasks(MODULE, tasks, reach)
    return {host: _read_report(replies[host]) for host in tasks}


def _read_report(reply: TaskReply) -> dict[str, Any]:
    return reply.value if isinstance(reply.value, dict) else {"error": describe_failure(reply.process)}


def receive(link: HostLink, kind: bytes, record: type[T]) -> T:
    """Return the content of the next message, which has to be of a kind. Raises FrameError or OSError.

    `record` is its type: NamedTuples and tuples of each other, str, int and bool.
    """
    return parse(link.receive(kind), record)


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
        self.changed = threading.Condition()
        """Held while what the connections share is read or changed; close notifies those that wait."""
        self._served: dict[HostLink, threading.Thread] = {}

    def run(self, task: Mapping[str, Any], reach: ProbeTarget) -> dict[str, dict[str, Any]]:
        """Run a task on all hosts, and serve their connections meanwhile; return their reports (see run_ship_tasks)."""
        end = {"secret": self.secret.text, "addresses": list(self._addresses), "port": self.port}
        self.start()
        try:
            tasks = {host: {**task, **end, "host": host} for host in self._hosts}
            return run_ship_tasks(tasks, reach)
        finally:
            self.close()

    def serve(self, link: HostLink, claim: bytes) -> None:
        """Serve a connection, which is closed afterwards. Raises FrameError or OSError."""
        raise NotImplementedError

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Serve a connection in a thread of its own; close it where there can be no more threads."""
        served = HostLink(link, agreement, TO_HOST, TO_DDLRUN, None)
        thread = threading.Thread(target=self._serve, args=(served, agreement.claim), daemon=True)
        with self.changed:
            self._served[served] = thread
        try:
            thread.start()
        except RuntimeError:
            del self._served[served]
            link.close()

    def _serve(self, link: HostLink, claim: bytes) -> None:
        with suppress(OSError, FrameError):
            self.serve(link, claim)
        with self.changed:
            del self._served[link]
            link.close()

    def close(self) -> None:
        """Accept no more connections, and end all: hosts have ended, or are cut off."""
        super().close()
        with self.changed:
            served = dict(self._served)
            for link in served:
                with suppress(OSError):
                    link.socket.shutdown(socket.SHUT_RDWR)
            self.changed.notify_all()
        for thread in served.values():
            thread.join()
