"""The connections of keepers, without their programs."""

import select
from select import POLLHUP, POLLRDHUP

from ddlrun.keeper import protocol
from ddlrun.supervise.keeper_connection import Hello
from tests.support.keepers import serving
from tests.support.processes import wait_for


def test_a_connection_that_is_closed_before_a_message_is_sent_is_closed() -> None:
    """ddlrun may have been stopped, or busy: the kernel then reports a broken pipe."""
    with serving() as served:
        keeper, peer = served.connect()
        peer.introduce(Hello(0, "host", 0))
        keeper.close()
        for events in (POLLRDHUP, POLLHUP):
            poll = select.poll()
            poll.register(peer, events)
            peer.send(protocol.HEARTBEAT)
            assert poll.poll()
        served.until(lambda: served.hang_ups)
        assert (served.hang_ups, peer.error) == ([peer], None)


def test_a_rank_that_writes_while_output_is_not_read_is_paused() -> None:
    """A rank that starts meanwhile is read up to its first output."""
    with serving() as served:
        served.keepers.read(0, reading=False)
        keeper, peer = served.connect()
        peer.introduce(Hello(0, "host", 0))
        before = [(protocol.NOTE, b"note"), (protocol.OUT, b"1")]
        for message in before:
            keeper.send(message)
        served.until(lambda: served.messages[-2:] == before)
        keeper.send((protocol.OUT, b"2"))
        wait_for(lambda: select.select([peer], [], [], 0)[0])  # it has arrived
        assert not served.loop.wait(0)
        served.keepers.read(0, reading=True)
        served.until(lambda: (protocol.OUT, b"2") in served.messages)
        keeper.close()
