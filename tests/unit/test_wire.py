"""Each piece of the wire: secrets and handshakes, frames, connections, new connections, the loop."""

import _socket
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from ddlrun.wire.authentication import (
    CODE_BYTES,
    HandshakeError,
    KeyExchange,
    NonceExchange,
    Secret,
    accept_at,
    connect_as,
)
from ddlrun.wire.connection import ClosedError, Connection, HandshakeProgress, run_handshake
from ddlrun.wire.frames import Agreement, Checksums, Decoder, Encoder, Fixed, FrameError
from ddlrun.wire.listening import Acceptor, AcceptorEvents
from ddlrun.wire.loop import NEVER, READ, WRITE, Loop
from ddlrun.wire.pipes import PipeConnection
from tests.support.handshakes import shake_hands, welcome_all

TEXT, EMPTY, FILE, FIXED, SECOND = b"t", b"e", b"f", b"x", 1.0
LIMITS = {TEXT: 1 << 20, EMPTY: 0, FILE: 8, FIXED: Fixed(6)}
SECRETS = [f"blake2b:{'5e' * 32}", f"sha256:{'5e' * 32}"]
CLAIM = b"\0\0\0\7"


@pytest.mark.parametrize("protection", ["authenticated", "encrypted"])
@pytest.mark.parametrize("text", SECRETS)
def test_both_ends_of_a_handshake_get_matching_keys_and_the_claim(text: str, protection: str) -> None:
    encrypted = protection == "encrypted"
    secret = Secret(text, encrypted=encrypted)
    connecting, accepting = shake_hands(connect_as(secret, CLAIM), accept_at(secret, len(CLAIM), welcome_all))
    assert connecting.claim == accepting.claim == CLAIM
    for sender, receiver in ((connecting, accepting), (accepting, connecting)):
        sent = b"".join(Encoder(sender.outgoing, LIMITS).encode(TEXT, b"abc"))
        assert list(Decoder(receiver.incoming, LIMITS).feed(sent)) == [(TEXT, b"abc")]
        assert (b"abc" in sent) is not encrypted
    with pytest.raises(FrameError):
        list(Decoder(connecting.incoming, LIMITS).feed(sent))


def test_the_end_that_accepts_refuses_other_secrets_claims_and_altered_bytes() -> None:
    secret = Secret(SECRETS[0])

    def refuse(_nonce: bytes, claim: bytes) -> None:
        raise HandshakeError(f"claim {claim.hex()}")

    with pytest.raises(HandshakeError, match="forged"):
        shake_hands(connect_as(Secret.draw(), CLAIM), accept_at(secret, 4, welcome_all))
    with pytest.raises(HandshakeError, match="claim 00000007"):
        shake_hands(connect_as(secret, CLAIM), accept_at(secret, 4, refuse))
    with pytest.raises(HandshakeError, match="another program"):
        shake_hands(connect_as(secret, CLAIM), accept_at(secret, 4, welcome_all), flip_a_bit_of(CODE_BYTES * 2))
    accepting = accept_at(secret, 4, welcome_all)
    next(accepting)
    accepting.send(next(connect_as(secret, CLAIM))[0])
    with pytest.raises(HandshakeError, match="copy"):
        accepting.send(bytes(CODE_BYTES))


def flip_a_bit_of(size: int) -> Callable[[bytes], bytes]:
    """Return a function that alters what has a size."""
    return lambda data: bytes([data[0] ^ 1]) + data[1:] if len(data) == size else data


def test_an_unsuitable_public_key_is_refused() -> None:
    with pytest.raises(HandshakeError, match="public key"):
        KeyExchange().agree(bytes(32))


def test_a_handshake_is_a_function_of_its_nonces() -> None:
    secret = Secret(SECRETS[0])
    nonces = NonceExchange(bytes(range(16))), NonceExchange(bytes(range(16, 32)))
    sent = list[bytes]()

    def record(data: bytes) -> bytes:
        sent.append(data)
        return data

    for _ in range(2):
        shake_hands(connect_as(secret, CLAIM, nonces[0]), accept_at(secret, 4, welcome_all, nonces[1]), record)
    assert sent[:3] == sent[3:]
    assert [len(data) for data in sent[:3]] == [36, 32, 16]


def test_a_derived_secret_has_the_algorithm_and_another_key() -> None:
    derived = {Secret(text).derive(purpose).text for text in SECRETS for purpose in (b"a", b"b")}
    assert len(derived) == 4
    assert {text.partition(":")[0] for text in derived} == {"blake2b", "sha256"}


def checked() -> tuple[Encoder, Decoder]:
    return Encoder(Checksums(), LIMITS), Decoder(Checksums(), LIMITS)


def test_frames_arrive_in_any_pieces() -> None:
    encoder, decoder = checked()
    frames = [(TEXT, b"a"), (EMPTY, b""), (FIXED, b"length"), (TEXT, b"b" * 5000), (TEXT, b""), (FIXED, b"6bytes")]
    sent = b"".join(b"".join(encoder.encode(*frame)) for frame in frames)
    pieces = [sent[at : at + 7] for at in range(0, len(sent), 7)]
    assert [frame for piece in pieces for frame in decoder.feed(piece)] == frames
    assert list(decoder.feed(b"")) == []


@pytest.mark.parametrize("protection", SECRETS)
def test_a_frame_of_a_fixed_length_is_a_kind_a_text_and_a_code(protection: str) -> None:
    protections = [Secret(protection).protection(b"purpose", b"") for _ in range(3)]
    (sent,) = Encoder(protections[0], LIMITS).encode(FIXED, b"6bytes")
    assert len(sent) == 1 + 6 + CODE_BYTES
    assert list(Decoder(protections[1], LIMITS).feed(sent)) == [(FIXED, b"6bytes")]
    with pytest.raises(FrameError, match="altered"):
        list(Decoder(protections[2], {FIXED: Fixed(6), b"y": Fixed(6)}).feed(b"y" + bytes(sent[1:])))


def test_frames_of_fixed_lengths_are_taken_one_by_one() -> None:
    encoder, decoder = checked()
    sent = b"".join([*encoder.encode(FIXED, b"first."), *encoder.encode(FIXED, b"second")])
    found = list[tuple[bytes, bytes]]()
    for at in range(0, len(sent), 5):
        decoder.add(sent[at : at + 5])
        while (frame := decoder.next_fixed()) is not None:
            found.append(frame)
    assert found == [(FIXED, b"first."), (FIXED, b"second")]
    decoder.add(b"?")
    with pytest.raises(FrameError, match=r"kind b'\?'"):
        decoder.next_fixed()


def test_a_text_that_is_too_long_is_cut_off() -> None:
    encoder, decoder = checked()
    assert list(decoder.feed(b"".join(encoder.encode(FILE, b"123456789")))) == [(FILE, b"12345678")]


@pytest.mark.parametrize(("kind", "reason"), [(b"?", "kind b'\\?'"), (FILE, "has 9 bytes, at most 8")])
def test_a_head_alone_reveals_a_frame_that_must_not_come(kind: bytes, reason: str) -> None:
    encoder = Encoder(Checksums(), {kind: 9})
    with pytest.raises(FrameError, match=reason):
        list(checked()[1].feed(encoder.encode(kind, b"123456789")[0][:9]))


def test_a_payload_is_taken_out_of_the_stream() -> None:
    encoder, decoder = checked()
    sent = b"".join([*encoder.encode(FILE, b"4"), b"\0\1\2\3", *encoder.encode(TEXT, b"next")])
    for split in range(len(sent)):
        payload, found = b"", list[tuple[bytes, bytes]]()
        encoder, decoder = checked()
        for piece in (sent[:split], sent[split:]):
            missing = 4 - len(payload) if found else 0
            payload += piece[:missing]
            for frame in decoder.feed(piece[missing:]):
                found.append(frame)
                payload += decoder.take(4) if frame[0] == FILE else b""
        assert (payload, found) == (b"\0\1\2\3", [(FILE, b"4"), (TEXT, b"next")])


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as made:
        yield made


@pytest.fixture(params=["socket", "pipes"])
def ends(request: pytest.FixtureRequest) -> Iterator[list[Connection]]:
    """Yield both ends of a connection that carries frames."""
    if request.param == "socket":
        made = [Connection(link) for link in socket.socketpair()]
    else:
        (there_read, there_write), (back_read, back_write) = os.pipe(), os.pipe()
        made = [PipeConnection(back_read, there_write), PipeConnection(there_read, back_write)]
    for end in made:
        end.begin(Agreement(b"", Checksums(), Checksums()), sent=LIMITS, received=LIMITS)
    yield made
    for end in made:
        end.close()


def test_what_the_kernel_does_not_take_is_sent_later_in_order(ends: list[Connection], loop: Loop) -> None:
    here, there = ends
    text, complete, arrived = b"x" * (1 << 20), list[int](), list[bytes]()
    here.join(loop, lambda: None)
    there.join(loop, lambda: arrived.extend(text for _, text in there.receive()))
    assert here.send(EMPTY, completion=lambda: complete.append(-1))
    for number in range(5):
        assert not here.send(TEXT, text, lambda number=number: complete.append(number))  # type: ignore[misc]
    assert here.unsent > 4 << 20
    while len(arrived) < 6:
        assert loop.wait(SECOND)
    assert arrived == [b"", *[text] * 5]
    assert complete == [0, 1, 2, 3, 4]
    assert here.unsent == 0
    assert not loop.wait(0)


def test_a_paused_connection_leaves_what_arrives_to_the_kernel(ends: list[Connection], loop: Loop) -> None:
    here, there = ends
    arrived = list[bytes]()
    there.join(loop, lambda: arrived.extend(kind for kind, _ in there.receive()))
    there.pause(reading=False)
    here.send(EMPTY)
    assert not loop.wait(0)
    there.pause(reading=True)
    assert loop.wait(SECOND)
    assert arrived == [EMPTY]


def test_the_end_comes_after_all_that_was_sent(ends: list[Connection], loop: Loop) -> None:
    here, there = ends
    arrived, lost = 0, list[OSError]()

    def receive() -> None:
        nonlocal arrived
        try:
            arrived += sum(1 for _ in there.receive())
        except OSError as error:
            lost.append(error)
            there.close()

    here.join(loop, lambda: None)
    there.join(loop, receive)
    for _ in range(5):
        here.send(TEXT, bytes(1 << 20))
    here.finish_sending()
    assert not here.send(EMPTY)
    while not lost:
        assert loop.wait(SECOND)
    assert arrived == 5
    assert isinstance(lost[0], ClosedError)
    assert there.send(EMPTY) is False


def test_a_connection_to_a_process_that_has_ended_reports_that_once_it_is_read(ends: list[Connection]) -> None:
    here, there = ends
    there.close()
    here.send(TEXT, b"x")
    here.send(TEXT, b"x")
    assert here.unsent == 0
    with pytest.raises(OSError, match=r"Broken pipe|Connection reset|has closed"):
        here.read()


def test_a_write_to_a_process_that_has_ended_is_no_signal(ends: list[Connection]) -> None:
    here, there = ends
    received: list[int] = []
    earlier = signal.signal(signal.SIGPIPE, lambda number, _: received.append(number))
    try:
        there.close()
        for _ in range(2):
            here.send(TEXT, b"text")
    finally:
        signal.signal(signal.SIGPIPE, earlier)
    assert received == []


def test_raw_bytes_come_before_frames_and_payloads_between_them(ends: list[Connection]) -> None:
    here, there = ends
    here.send_raw([b"line\n"])
    assert there.read() == b"line\n"
    assert there.read() == b""
    here.send(FILE, b"6")
    here.send_raw([b"abc", memoryview(b"def")])
    here.send(EMPTY)
    buffer = bytearray(6)
    found = []
    for frame in there.receive():
        found.append(frame)
        if frame[0] == FILE:
            buffer[:] = there.decoder.take(6)
    assert (bytes(buffer), found) == (b"abcdef", [(FILE, b"6"), (EMPTY, b"")])


def test_what_follows_a_payload_is_read_with_it(ends: list[Connection]) -> None:
    here, there = ends
    here.send_raw([b"abcdef"])
    here.send(EMPTY)
    here.send(FIXED, b"length")
    buffer = bytearray(6)
    assert there.read_into(memoryview(buffer), bytearray(4)) == 6
    assert (bytes(buffer), there.is_drained) == (b"abcdef", False)
    assert list(there.decoder.feed(b"")) == []
    assert list(there.receive()) == [(EMPTY, b""), (FIXED, b"length")]
    assert there.is_drained


def test_memory_may_change_once_what_is_unsent_was_copied(ends: list[Connection], loop: Loop) -> None:
    here, there = ends
    data, arrived = bytearray(b"x" * (4 << 20)), bytearray()
    here.join(loop, lambda: None)
    there.join(loop, lambda: arrived.extend(there.read()))
    assert not here.send_raw([memoryview(data)])
    sent = len(data) - here.unsent
    here.copy_unsent()
    data[sent:] = b"y" * here.unsent
    while len(arrived) < len(data):
        assert loop.wait(SECOND)
    assert arrived == b"x" * len(data)


def test_what_is_sent_before_there_is_a_socket_waits_for_it() -> None:
    complete, (link, peer) = list[bytes](), socket.socketpair()
    with closing(Connection(None)) as early, closing(Connection(peer)) as there:
        for end in (early, there):
            end.begin(Agreement(b"", Checksums(), Checksums()), sent=LIMITS, received=LIMITS)
        assert not early.send(TEXT, b"first", lambda: complete.append(b"first"))
        early.connect(link)
        assert early.send(TEXT, b"second")
        assert list(there.receive()) == [(TEXT, b"first"), (TEXT, b"second")]
    assert complete == [b"first"]
    Connection(None).close()


def test_a_connection_is_closed_after_its_loop(ends: list[Connection], loop: Loop) -> None:
    here, _ = ends
    here.join(loop, lambda: None)
    here.send(TEXT, bytes(1 << 20))
    assert here.unsent
    loop.close()
    here.close()
    loop.wake()


class Recorder(AcceptorEvents):
    """Keeps authenticated connections and the claims of those that have failed."""

    def __init__(self) -> None:
        self.links = list[tuple[bytes, _socket.socket]]()
        self.failed = list[tuple[bytes, str]]()

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        self.links.append((agreement.claim, link))

    def on_failure(self, claim: bytes, error: OSError | HandshakeError) -> None:
        self.failed.append((claim, str(error)))


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    for _, link in made.links:
        link.close()


@pytest.fixture
def secret() -> Secret:
    return Secret.draw()


Connect = Callable[[], socket.socket]


@pytest.fixture
def connect(loop: Loop, secret: Secret, recorder: Recorder) -> Iterator[Connect]:
    """Yield what connects to an acceptor."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    address = listening.getsockname()
    with (
        ExitStack() as clients,
        closing(Acceptor(loop, [listening], secret, recorder, len(CLAIM), most=3, seconds=0.2)),
    ):
        yield lambda: clients.enter_context(socket.create_connection(address))


def test_a_client_with_the_secret_is_accepted_among_many_without(
    loop: Loop, connect: Connect, secret: Secret, recorder: Recorder
) -> None:
    strangers = [connect() for _ in range(5)]
    strangers[1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    agreement = list[Agreement]()

    def connect_in_thread() -> None:
        agreement.append(run_handshake(connect(), connect_as(secret, CLAIM), time.monotonic() + 30))

    thread = threading.Thread(target=connect_in_thread)
    thread.start()
    while not recorder.links:
        loop.wait()
    thread.join()
    assert (agreement[0].claim, recorder.links[0][0], recorder.failed) == (CLAIM, CLAIM, [])
    for stranger in strangers:
        assert receive_end(loop, stranger) == b""


def receive_end(loop: Loop, link: socket.socket) -> bytes:
    """Return what a socket receives until the other end closes it."""
    link.setblocking(False)
    while True:
        try:
            return link.recv(1 << 10)
        except BlockingIOError:
            loop.wait()
        except ConnectionResetError:
            return b""


def test_time_in_which_a_process_does_not_read_is_not_that_of_its_clients(
    loop: Loop, connect: Connect, secret: Secret, recorder: Recorder
) -> None:
    """A busy machine may delay the process for as long between a client's greeting and its proof."""
    client, (here, there) = connect(), socket.socketpair()
    progress = HandshakeProgress(client, connect_as(secret, CLAIM))

    def prove_and_block(_events: int) -> None:
        loop.forget(here.fileno())
        client.settimeout(30)
        assert progress.advance()
        time.sleep(0.3)  # longer than a handshake may take

    with here, there:
        loop.watch(here.fileno(), READ, prove_and_block)
        there.send(b"x")
        while not recorder.links:
            assert loop.wait(SECOND)
    assert recorder.failed == []


def test_a_copy_of_a_greeting_gets_nothing_but_the_first_one_a_limit_of_time(
    loop: Loop, connect: Connect, secret: Secret, recorder: Recorder
) -> None:
    greeting, size = next(connect_as(secret, CLAIM))
    first, copy = connect(), connect()
    first.sendall(greeting)
    loop.wait()
    copy.sendall(greeting)
    assert len(receive_end(loop, first)) == size
    assert receive_end(loop, copy) == b""
    assert receive_end(loop, first) == b""
    assert (recorder.links, recorder.failed) == ([], [])


def test_a_connection_that_fails_after_its_greeting_is_reported(
    loop: Loop, connect: Connect, secret: Secret, recorder: Recorder
) -> None:
    link = connect()
    link.sendall(next(connect_as(secret, CLAIM))[0] + bytes(CODE_BYTES))
    while not recorder.failed:
        assert loop.wait(SECOND)
    assert recorder.failed == [(CLAIM, "its greeting is a copy, or what it sent was altered on the way")]


def test_another_program_that_answers_is_no_ddlrun(secret: Secret) -> None:
    here, there = socket.socketpair()
    there.sendall(bytes(32))
    with pytest.raises(HandshakeError, match="another program"):
        run_handshake(here, connect_as(secret), time.monotonic() + 30)
    with pytest.raises(OSError, match="timed out"):
        run_handshake(here, connect_as(secret), time.monotonic())
    there.close()
    with closing(here), pytest.raises(OSError, match=r"closed|reset|pipe"):
        run_handshake(here, connect_as(secret), time.monotonic() + 30)


def test_a_descriptor_that_another_handler_has_closed_gets_no_event(loop: Loop) -> None:
    called = list[int]()
    with ExitStack() as stack:
        links = [stack.enter_context(link) for _ in range(3) for link in socket.socketpair()]

        def close(other: socket.socket) -> None:
            called.append(other.fileno())
            fd = other.fileno()
            loop.forget(fd)
            other.close()
            new = os.dup2(links[4].fileno(), fd)  # a new file gets the same descriptor
            stack.callback(os.close, new)
            loop.watch(new, WRITE, lambda _events: called.append(-1))

        loop.watch(links[0].fileno(), READ, lambda _events: close(links[2]))
        loop.watch(links[2].fileno(), READ, lambda _events: close(links[0]))
        links[1].send(b"x")
        links[3].send(b"x")
        loop.wait()
        assert len(called) == 1


def test_a_regular_file_is_always_ready(loop: Loop) -> None:
    with open(__file__, "rb") as file:
        called = list[bytes]()
        loop.watch(file.fileno(), READ, lambda _events: called.append(file.read(1)))
        loop.watch(file.fileno(), READ, lambda _events: called.append(file.read(2)))
        loop.wait()
        loop.forget(file.fileno())
        loop.wait(0)
        assert len(called) == 1


def test_deadlines_end_a_wait_and_are_called_when_due(loop: Loop) -> None:
    due = [time.monotonic() + 0.02, NEVER]
    called = list[int]()

    def on_due(now: float) -> None:
        assert now >= due[0]
        called.append(0)
        loop.forget_deadline(first)

    def first() -> float:
        return due[0]

    loop.watch_deadline(first, on_due)
    loop.watch_deadline(lambda: due[1], lambda _now: called.append(1))
    assert not loop.wait()
    assert called == [0]


def test_a_loop_sees_to_another_one(loop: Loop) -> None:
    read, write = os.pipe()
    with closing(Loop()) as other:
        events, due = list[bytes](), list[float]()
        other.watch(read, READ, lambda _: events.append(os.read(read, 1)))
        loop.watch_loop(other)
        os.write(write, b"x")
        assert loop.wait(SECOND)
        at = time.monotonic()
        other.watch_deadline(lambda: NEVER if due else at, due.append)
        loop.wait(SECOND)
    assert (events, len(due)) == ([b"x"], 1)
    os.close(read)
    os.close(write)


def test_another_thread_or_a_signal_wakes_the_loop(loop: Loop) -> None:
    thread = threading.Thread(target=loop.wake)
    thread.start()
    assert loop.wait()
    thread.join()
    assert not loop.wait(0)
    loop.close()
    loop.close()
    loop.wake()
    assert loop.closed


def test_children_that_have_ended_are_reaped() -> None:
    code = """if True:
        import os
        from ddlrun.wire.loop import reap_children
        children = [os.spawnvp(os.P_NOWAIT, "sh", ["sh", "-c", f"exit {code}"]) for code in (3, 4)]
        codes = []
        while len(codes) < 2:
            codes += [os.WEXITSTATUS(status) for _, status, _ in reap_children()]
        print(sorted(codes), *reap_children())
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[3, 4]\n"
