"""Unauthenticated connections to each port on which ddlrun listens: they are few, and displace no client.

The ports of ranks have tests of their own in tests/ddl.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from ddlrun.metrics.openmetrics_server import MOST_UNAUTHENTICATED as MOST
from ddlrun.metrics.openmetrics_server import MetricsServer, UnauthenticatedConnections
from ddlrun.page.server import PageServer
from ddlrun.preflight import peer
from ddlrun.ship.archive import make_archive
from ddlrun.ship.files import read_entries
from ddlrun.ship.host.link import CLAIM, HERE, NO_ARCHIVE, RemoteEnd, Successors
from ddlrun.ship.host.results import Results, send_results
from ddlrun.ship.request import ShipRequest, ShipSource, SourceKind
from ddlrun.ship.results import FetchTask, ResultServer
from ddlrun.ship.server import ArchiveServer, Chain
from ddlrun.wire.authentication import Secret, connect_as
from ddlrun.wire.connection import run_handshake
from ddlrun.wire.frames import Decoder, Encoder
from ddlrun.wire.listening import MOST_UNAUTHENTICATED
from tests.support.keepers import SimulatedKeeper, is_readable, serving
from tests.support.ports import reserved_port
from tests.support.waiting import PATIENCE, wait_until

SECRET = "sha256:" + "5e" * 32
LISTENING = "0A"
FLOOD = 320
# Kind of client -> the bytes that it sends when it connects, and when all others have connected, too.
CLIENTS = {"silent": (b"", b""), "slow": (b"G", b"E"), "garbage": (bytes(range(256)) * 8, b"\r\n\r\n")}


class Guarded(NamedTuple):
    """A server that has started."""

    port: int
    pid: int
    meet: Callable[[], object]
    """Connects as an authenticated client; fails if the server does not serve it."""
    most: int = MOST
    """The number of connections that may be open."""


@contextmanager
def page(folder: Path) -> Iterator[Guarded]:
    server = PageServer(0, str(folder))
    server.start()
    yield Guarded(server.server_port, os.getpid(), lambda: get(server.server_port, f"/{server.token}/"))
    server.stop()


def get(port: int, path: str) -> None:
    """Get a page."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, PATIENCE)) as client:
        client.request("GET", path)
        assert client.getresponse().status == http.HTTPStatus.OK


@contextmanager
def metrics(folder: Path) -> Iterator[Guarded]:  # noqa: ARG001 - as the others
    ended = threading.Event()
    with MetricsServer(0, lambda: "# EOF\n") as server:
        thread = threading.Thread(target=server.serve_while, args=(lambda: not ended.is_set(),))
        thread.start()
        yield Guarded(server.server_port, os.getpid(), lambda: get(server.server_port, "/"))
        ended.set()
        thread.join()


@contextmanager
def results(folder: Path) -> Iterator[Guarded]:
    request = ShipRequest((), "/cache", "/work", fetched=(".",))
    server = ResultServer(FetchTask(request, "run", ["h1"], [], str(folder)))

    def meet() -> None:
        link, _ = RemoteEnd(["127.0.0.1"], server.port, server.secret).open(CLAIM.pack(NO_ARCHIVE, 0, 0))
        with closing(link):
            send_results(link, "/", Results([], [], []))

    server.start()
    yield Guarded(server.port, os.getpid(), meet)
    server.close()


@contextmanager
def transfer(folder: Path) -> Iterator[Guarded]:
    source = ShipSource(SourceKind.DATA, str(folder))
    archive = make_archive(source, read_entries([], str(folder), keep_times=False), str(folder))
    server = ArchiveServer([], ["h1"], [Chain(archive, ["h1"])])

    def meet() -> None:
        end = RemoteEnd(["127.0.0.1"], server.port, server.secret)
        link, _ = end.open(CLAIM.pack(bytes.fromhex(archive.digest), 0, 0))
        with closing(link):
            assert b"".join(link.blocks(None)) == b"".join(archive.blocks())

    server.start()
    yield Guarded(server.port, os.getpid(), meet)
    server.close()


@contextmanager
def successors(folder: Path) -> Iterator[Guarded]:  # noqa: ARG001 - as the others
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Successors(listener, Secret(SECRET))

    def meet() -> None:
        with ThreadPoolExecutor() as pool:
            end = RemoteEnd(["127.0.0.1"], server.port, Secret(SECRET))
            opened = pool.submit(end.open, CLAIM.pack(bytes.fromhex("c0de" * 16), 0, 0))
            with closing(server.take("c0de" * 16)) as link:
                link.send(HERE)
                opened.result()[0].close()

    yield Guarded(server.port, os.getpid(), meet)
    server.close()


@contextmanager
def tcp_check(folder: Path) -> Iterator[Guarded]:  # noqa: ARG001 - as the others
    secret = Secret.draw()
    root = str(Path(peer.__file__).parents[2])
    run = (
        f"import sys; sys.path.insert(0, {root!r}); from ddlrun.agent.tasks import print_result; "
        "print_result('ddlrun.preflight.peer', sys.argv[1])"
    )
    with reserved_port() as port:
        task = {
            "own": "a", "bind": "127.0.0.1", "to": {"b": "127.0.0.2"}, "ports": [port], "secret": secret.text,
            "seconds": PATIENCE,
        }  # fmt: skip
        with subprocess.Popen([sys.executable, "-ISc", run, json.dumps(task)], stdout=subprocess.PIPE) as process:

            def meet() -> None:
                with socket.create_connection(("127.0.0.1", port)) as link:
                    agreement = run_handshake(link, connect_as(secret), time.monotonic() + PATIENCE)
                    link.settimeout(PATIENCE)
                    greeting = Encoder(agreement.outgoing, peer.TO_PARTNER).encode(peer.GREETING, f"{port} b".encode())
                    link.sendall(b"".join(greeting))
                    assert peer.receive_text(link, Decoder(agreement.incoming, peer.FROM_PARTNER)) == b"a"

            wait_until(lambda: connections(process.pid, port, listening=True))
            yield Guarded(port, process.pid, meet)
            process.kill()


@contextmanager
def keepers(folder: Path) -> Iterator[Guarded]:  # noqa: ARG001 - as the others
    with serving() as served:

        def meet() -> None:
            with closing(SimulatedKeeper(served.listener)) as keeper:
                keeper.greet()
                served.until(lambda: is_readable(keeper.link))
                keeper.read_welcome()
                served.until(lambda: served.keepers.peers)

        yield Guarded(served.listener.port, os.getpid(), meet, MOST_UNAUTHENTICATED + 1)


SERVERS: list[Callable[[Path], AbstractContextManager[Guarded]]] = [
    page, metrics, results, transfer, successors, tcp_check, keepers,
]  # fmt: skip


def connections(pid: int, port: int, *, listening: bool = False) -> int:
    """Return the number of sockets with a local port that a process has open."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # it has just been closed
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return sum(
        int(row[1].rpartition(":")[2], 16) == port
        and (row[3] == LISTENING) is listening
        and f"socket:[{row[9]}]" in inodes
        for row in rows
    )


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.__name__)
def test_unauthenticated_connections_are_few_and_displace_no_client(
    server: Callable[[Path], AbstractContextManager[Guarded]], kind: str, tmp_path: Path
) -> None:
    first, second = CLIENTS[kind]
    with server(tmp_path) as guarded, ExitStack() as stack:
        links = []
        for _ in range(FLOOD):
            links.append(stack.enter_context(socket.create_connection(("127.0.0.1", guarded.port), PATIENCE)))
            with suppress(OSError):
                links[-1].sendall(first)
        for link in links:
            with suppress(OSError):
                link.sendall(second)
        guarded.meet()
        wait_until(lambda: connections(guarded.pid, guarded.port) <= guarded.most)


def test_a_connection_that_takes_too_long_is_dropped() -> None:
    unauthenticated = UnauthenticatedConnections(seconds=-1)
    here, there = socket.socketpair()
    with here, there:
        unauthenticated.add(here)
        unauthenticated.drop_overdue()
        assert there.recv(1) == b""


def test_an_authenticated_connection_stays() -> None:
    unauthenticated = UnauthenticatedConnections(seconds=-1, most=1)
    pairs = [socket.socketpair() for _ in range(2)]
    for here, _ in pairs:
        unauthenticated.add(here)
        unauthenticated.remove(here)
    unauthenticated.drop_overdue()
    unauthenticated.drop(0)
    for here, there in pairs:
        with here, there:
            here.sendall(b"x")
            assert there.recv(1) == b"x"
