"""Each host's part of the TCP check, against a partner that the test plays."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ddlrun.preflight import peer
from ddlrun.preflight.tcp import MODULE
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.system_limits import count_open_files
from ddlrun.remote.tasks import start_task
from ddlrun.wire.authentication import Secret, accept_at, connect_as
from ddlrun.wire.connection import ClosedError, run_handshake
from ddlrun.wire.frames import Decoder, Encoder
from tests.support.ports import reserved_port
from tests.support.waiting import PATIENCE, wait_until

HERE, PARTNER = "127.0.0.1", "127.0.0.2"
SECRET = Secret.draw()
ROOT = Path(peer.__file__).parents[2]
RUN = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ddlrun.agent.tasks import print_result; "
    "print_result('ddlrun.preflight.peer', sys.argv[1])"
)


class Conversation:
    """A running peer `a`, and the listener of its partner `b`, on the same port."""

    def __init__(self, port: int, seconds: float = PATIENCE) -> None:
        self.server = socket.create_server((PARTNER, port))
        task = {
            "own": "a", "bind": HERE, "to": {"b": PARTNER}, "ports": [port], "secret": SECRET.text, "seconds": seconds,
        }  # fmt: skip
        self.address = (HERE, port)
        self.answers = 0
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", RUN, json.dumps(task)], stdout=subprocess.PIPE, text=True
        )

    def accept(self, answer: str) -> socket.socket:
        """Accept the connection of the peer, and answer its greeting."""
        stream, _ = self.server.accept()
        agreement = run_handshake(
            stream, accept_at(SECRET, 0, lambda _nonce, _claim: None), time.monotonic() + PATIENCE
        )
        decoder = Decoder(agreement.incoming, peer.TO_PARTNER)
        greeting = peer.receive_text(stream, decoder)
        assert greeting.split() == [str(self.address[1]).encode(), b"a"]
        assert len(greeting) == 8 << 10  # more than one packet of 1,500 bytes, and less than one of 9,000
        stream.sendall(b"".join(Encoder(agreement.outgoing, peer.FROM_PARTNER).encode(peer.ANSWER, answer.encode())))
        return stream

    def answer_all(self, answer: str | None) -> None:
        """Answer all connections of the peer from now on, in a thread; None: as another program does."""

        def loop() -> None:
            with suppress(OSError):  # the end of the test closes the listener
                while True:
                    if answer is None:
                        with self.server.accept()[0] as stream:
                            stream.recv(1 << 16)
                            stream.sendall(b"hello\n")
                    else:
                        self.accept(answer).close()
                    self.answers += 1

        threading.Thread(target=loop, daemon=True).start()

    def connect(self) -> "Greeted":
        """Connect to the peer, and greet it."""
        return Greeted(self.address)

    def report(self) -> dict[str, str | None]:
        """Return the errors of the peer's report, after its end."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        reached: dict[str, str | None] = json.loads(out.removeprefix("@task "))["reached"]
        return reached


class Greeted:
    """A connection of the partner to a peer that it has greeted."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.stream = socket.create_connection(address)
        agreement = run_handshake(self.stream, connect_as(SECRET), time.monotonic() + PATIENCE)
        self.stream.settimeout(PATIENCE)
        self._encoder = Encoder(agreement.outgoing, peer.TO_PARTNER)
        self._decoder = Decoder(agreement.incoming, peer.FROM_PARTNER)
        self.send(peer.GREETING, f"{address[1]} b".encode())

    def send(self, kind: bytes, text: bytes = b"") -> None:
        self.stream.sendall(b"".join(self._encoder.encode(kind, text)))

    def receive(self) -> bytes:
        """Return the text of the next message, empty at the end of the connection."""
        try:
            return peer.receive_text(self.stream, self._decoder)
        except ClosedError:
            return b""

    def __enter__(self) -> "Greeted":  # noqa: PYI034 - typing.Self came with 3.11
        return self

    def __exit__(self, *_error: object) -> None:
        self.stream.close()


@pytest.fixture
def conversation() -> Iterator[Conversation]:
    with reserved_port() as port:
        conversation = Conversation(port)
        with conversation.server, conversation.process:
            yield conversation
            conversation.process.kill()


def test_it_listens_until_its_partner_has_the_answer(conversation: Conversation) -> None:
    held = conversation.accept("b")
    with conversation.connect():
        pass  # a partner that gave up before it read the answer tries again
    with conversation.connect() as greeted:
        assert greeted.receive() == b"a"
        greeted.send(peer.RECEIVED)
        assert greeted.receive() == b""
    assert conversation.report() == {"b": None}
    held.close()


def test_it_ends_when_its_partner_has_failed_to_reach_it(conversation: Conversation) -> None:
    conversation.accept("b").close()
    assert conversation.report() == {"b": None}


@pytest.mark.parametrize(("answer", "error"), [(None, "another program answers"), ("c", "c answers")])
def test_it_has_failed_only_once_its_partner_listens(
    conversation: Conversation, answer: str | None, error: str
) -> None:
    conversation.answer_all(answer)
    wait_until(lambda: conversation.answers > 2 * peer.MOST_FAILURES)
    with conversation.connect() as greeted:
        assert greeted.receive() == b"a"
        greeted.send(peer.RECEIVED)
        assert conversation.report() == {"b": error}


def test_a_network_that_loses_greetings_is_not_blamed_on_a_firewall() -> None:
    with reserved_port() as port:
        conversation = Conversation(port, seconds=2 * peer.CONNECT_SECONDS)
        with conversation.server, conversation.process:
            assert conversation.report() == {"b": peer.UNANSWERED}


def test_a_name_without_an_address_is_not_blamed_on_a_firewall() -> None:
    task = {
        "own": "a",
        "bind": HERE,
        "to": {"b": "no.such.invalid"},
        "ports": [0],
        "secret": SECRET.text,
        "seconds": 0.1,
    }
    argv = [sys.executable, "-ISc", RUN, json.dumps(task)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout.removeprefix("@task "))["unresolved"] == ["b"]


def test_a_peer_without_a_reader_ends(conversation: Conversation) -> None:
    assert conversation.process.stdout is not None
    conversation.process.stdout.close()
    assert conversation.process.wait(PATIENCE) == peer.EXIT_NO_READER


def test_peers_in_this_process_reach_each_other_and_leave_no_file_open() -> None:
    with reserved_port() as port:
        names = {"a": HERE, "b": PARTNER}
        before = count_open_files()
        replies = [
            start_task(MODULE, {
                "own": own, "bind": names[own], "to": {to: names[to]}, "ports": [port], "secret": SECRET.text,
                "seconds": PATIENCE,
            }, PATIENCE)
            for own, to in (("a", "b"), ("b", "a"))
        ]  # fmt: skip
        assert [finish().value["reached"] for finish in replies] == [{"b": None}, {"a": None}]
        # A thread may end after its task, and one of another test may have held a file before.
        wait_until(lambda: count_open_files() <= before)


def test_a_task_that_fails_in_this_process_shows_why() -> None:
    assert start_task(MODULE, {}, PATIENCE)() == (None, FinishedProcess(1, "", "KeyError: 'seconds'"))
    late = {"own": "a", "bind": HERE, "to": {"b": PARTNER}, "ports": [0], "secret": SECRET.text, "seconds": 1.0}
    assert start_task(MODULE, late, 0.0)() == (None, FinishedProcess(None, "", ""))
