"""Heartbeats: keepers that send none, over real connections."""

import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ddlrun.keeper import protocol
from ddlrun.supervise.cause import REACHABLE, UNREACHABLE
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.supervise.keepers import Keepers
from ddlrun.supervise.limits import STARVED, Heartbeat, explain_silence
from tests.support.handshakes import agree
from tests.support.keepers import serving
from tests.support.processes import wait_for

TIMEOUT = 8.0


class Link(NamedTuple):
    """ddlrun's end of a connection, whose keeper reads and sends nothing more."""

    keepers: Keepers
    peer: KeeperConnection


@pytest.fixture
def link() -> Iterator[Link]:
    with serving() as served:
        keeper, peer = served.connect()
        yield Link(served.keepers, peer)
        keeper.close()


def test_a_keeper_that_does_not_run_is_on_a_reachable_host(link: Link) -> None:
    start = link.peer.heard_at
    heartbeat = Heartbeat(TIMEOUT, start)
    assert heartbeat.beat(start + TIMEOUT / 2, link.keepers) == {}
    wait_for(lambda: link.peer.acknowledged)
    assert heartbeat.beat(start + TIMEOUT, link.keepers) == {link.peer: True}
    assert link.keepers.peers == {}


def test_a_host_that_acknowledges_nothing_is_unreachable(link: Link) -> None:
    heartbeat = Heartbeat(TIMEOUT, link.peer.heard_at)
    while not link.peer.unsent:  # the kernel takes no more for a keeper that does not read
        link.peer.send(protocol.INPUT, bytes(100_000))
    start = link.peer.heard_at
    assert heartbeat.beat(start + TIMEOUT / 2, link.keepers) == {}
    assert heartbeat.beat(start + TIMEOUT, link.keepers) == {link.peer: False}


def test_a_keeper_is_not_silent_while_ddlrun_does_not_run(link: Link) -> None:
    start = link.peer.heard_at
    heartbeat = Heartbeat(TIMEOUT, start)
    assert heartbeat.explain_farewell("no sign of life", start) == f"no sign of life: {STARVED}"
    assert heartbeat.beat(start + 2 * TIMEOUT, link.keepers) == {}
    assert heartbeat.explain_farewell("no sign of life", start + 2 * TIMEOUT).startswith(
        "no sign of life: ddlrun did not run for 15 s (it was stopped"
    )
    assert heartbeat.beat(start + 2.5 * TIMEOUT, link.keepers) == {}  # it may have been suspended for as long
    assert list(heartbeat.beat(start + 3 * TIMEOUT, link.keepers)) == [link.peer]


def test_output_that_is_not_read_is_no_silence(link: Link) -> None:
    heartbeat = Heartbeat(TIMEOUT, link.peer.heard_at)
    link.peer.pause(reading=False)
    assert heartbeat.beat(link.peer.heard_at + 2 * TIMEOUT, link.keepers) == {}


@pytest.mark.parametrize(
    ("reachable", "text"),
    [
        ({"a": True}, f"no sign of life from a for 8 s: {REACHABLE}"),
        ({"c": False, "b": False}, f"no sign of life from b, c for 8 s: {UNREACHABLE}"),
        ({"a": True, "b": False}, f"no sign of life from b for 8 s: {UNREACHABLE}"),
    ],
)
def test_the_cause_is_that_of_the_hosts_out_of_reach(reachable: dict[str, bool], text: str) -> None:
    silent = {}
    for host, is_reachable in reachable.items():
        peer = KeeperConnection(socket.socket(), agree()[1], 0)
        peer.host = host
        silent[peer] = is_reachable
    assert explain_silence(silent, TIMEOUT).text == text
    for peer in silent:
        peer.close()
