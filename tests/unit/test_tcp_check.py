"""Each host's part of the TCP check, against a partner that the test plays."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ddlrun.preflight import peer
from tests.support.ports import reserved_port
from tests.support.waiting import PATIENCE, wait_until

HERE, PARTNER = "127.0.0.1", "127.0.0.2"


class Conversation:
    """A running peer `a`, and the listener of its partner `b`, on the same port."""

    def __init__(self, port: int, seconds: float = PATIENCE) -> None:
        self.server = socket.create_server((PARTNER, port))
        task = {
            "own": "a", "bind": HERE, "to": {"b": PARTNER}, "ports": [port], "token": "secret", "seconds": seconds,
        }  # fmt: skip
        self.address = (HERE, port)
        self.answers = 0
        self.process = subprocess.Popen(
            [sys.executable, "-IS", peer.__file__, json.dumps(task)], stdout=subprocess.PIPE, text=True
        )

    def accept(self, answer: str) -> socket.socket:
        """Accept the connection of the peer, and answer its greeting."""
        stream, _ = self.server.accept()
        greeting = stream.makefile().readline()
        assert greeting.split() == ["secret", "a", str(self.address[1])]
        assert len(greeting) > 8 << 10  # more than one packet of 1,500 bytes, and less than one of 9,000
        stream.sendall(answer.encode())
        return stream

    def answer_all(self, answer: str) -> None:
        """Answer all connections of the peer from now on, in a thread."""

        def loop() -> None:
            with suppress(OSError):  # the end of the test closes the listener
                while True:
                    self.accept(f"{answer}\n").close()
                    self.answers += 1

        threading.Thread(target=loop, daemon=True).start()

    def connect(self) -> socket.socket:
        """Connect to the peer, and greet it."""
        stream = socket.create_connection(self.address)
        stream.sendall(f"secret b {self.address[1]}\n".encode())
        return stream

    def report(self) -> dict[str, str | None]:
        """Return the errors of the peer's report, after its end."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        reached: dict[str, str | None] = json.loads(out.removeprefix("@tcp "))["reached"]
        return reached


@pytest.fixture
def conversation() -> Iterator[Conversation]:
    with reserved_port() as port:
        conversation = Conversation(port)
        with conversation.server, conversation.process:
            yield conversation
            conversation.process.kill()


def test_it_listens_until_its_partner_has_the_answer(conversation: Conversation) -> None:
    held = conversation.accept("secret b\n")
    with conversation.connect():
        pass  # a partner that gave up before it read the answer tries again
    with conversation.connect() as stream:
        lines = stream.makefile("rw")
        assert lines.readline() == "secret a\n"
        lines.write("\n")
        lines.flush()
        assert lines.readline() == ""
    assert conversation.report() == {"b": None}
    held.close()


def test_it_ends_when_its_partner_has_failed_to_reach_it(conversation: Conversation) -> None:
    conversation.accept("secret b\n").close()
    assert conversation.report() == {"b": None}


@pytest.mark.parametrize(("answer", "error"), [("hello", "another program answers"), ("secret c", "c answers")])
def test_it_has_failed_only_once_its_partner_listens(conversation: Conversation, answer: str, error: str) -> None:
    conversation.answer_all(answer)
    wait_until(lambda: conversation.answers > 2 * peer.MOST_FAILURES)
    with conversation.connect() as stream:
        assert stream.makefile().readline() == "secret a\n"
        stream.sendall(b"\n")
        assert conversation.report() == {"b": error}


def test_a_network_that_loses_greetings_is_not_blamed_on_a_firewall() -> None:
    with reserved_port() as port:
        conversation = Conversation(port, seconds=2 * peer.CONNECT_SECONDS)
        with conversation.server, conversation.process:
            assert conversation.report() == {"b": peer.UNANSWERED}


def test_a_name_without_an_address_is_not_blamed_on_a_firewall() -> None:
    task = {"own": "a", "bind": HERE, "to": {"b": "no.such.invalid"}, "ports": [0], "token": "t", "seconds": 0.1}
    argv = [sys.executable, "-IS", peer.__file__, json.dumps(task)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout.removeprefix("@tcp "))["unresolved"] == ["b"]


def test_a_peer_without_a_reader_ends(conversation: Conversation) -> None:
    assert conversation.process.stdout is not None
    conversation.process.stdout.close()
    assert conversation.process.wait(PATIENCE) == peer.EXIT_NO_READER
