"""The keepers' connection: authentication, integrity, and hostile ends, over real sockets."""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddlrun.errors import EXIT_PREFLIGHT, EXIT_SIGNAL, PreflightError
from ddlrun.keeper import protocol, start
from ddlrun.keeper.connection import LauncherConnection, connect
from ddlrun.keeper.program_streams import TAIL
from ddlrun.keeper.protocol import ProtocolError, RankEnd
from ddlrun.plan.supervision import LOOPBACK
from ddlrun.supervise.keeper_connection import Hello, PeerState
from ddlrun.supervise.listener import Listener
from ddlrun.wire.authentication import BLAKE2, CODE_BYTES, SHA256, KeyExchange, Secret, accept_at, connect_as
from ddlrun.wire.frames import HEAD_BYTES, Agreement, Decoder, Encoder, FrameError
from ddlrun.wire.listening import MOST_UNAUTHENTICATED
from tests.support.handshakes import agree, shake_hands, welcome_all
from tests.support.keepers import PATIENCE, Served, SimulatedKeeper, is_readable, serving
from tests.support.waiting import wait_until

HELLO = protocol.HELLO, b"0\tn0\t0\t1"
OUTPUT = protocol.OUT, b"output\n"
PLAIN_BYTES = 2 * CODE_BYTES + protocol.CLAIM_BYTES
FORGERY = "a message was altered or forged on the way"
BOTH = {**protocol.TO_KEEPER, **protocol.FROM_KEEPER}


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(encrypted=request.param) as served:
        yield served


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


# -- ddlrun's end: keepers that are none, or lie ------------------------------------------------


def alter(message: bytes, place: int) -> bytes:
    """Return a message with another byte in a place; a constant would now and then be the byte that was there."""
    altered = bytearray(message)
    altered[place] ^= 1
    return bytes(altered)


FORGED: dict[str, Callable[[SimulatedKeeper], bytes]] = {
    "no secret": lambda _: next(connect_as(Secret.draw(), bytes(4)))[0] + bytes(32),
    "half a code": lambda keeper: keeper.greeting[:-8] + bytes(8),
    "another nonce": lambda keeper: alter(keeper.greeting, 0),
    "another rank": lambda keeper: alter(keeper.greeting, -17),
    "web browser": lambda _: (
        b"GET / HTTP/1.1\r\nHost: ddlrun.example.org\r\nUser-Agent: a browser of some kind\r\n\r\n"
    ),
    "zeros": lambda _: bytes(100),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_what_is_no_greeting_is_dropped(
    served: Served, stack: contextlib.ExitStack, forge: Callable[[SimulatedKeeper], bytes]
) -> None:
    keeper = stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener)))
    keeper.link.sendall(forge(keeper))
    assert is_closed(served, keeper)
    assert (served.messages, served.violations) == ([], [])


def is_closed(served: Served, keeper: SimulatedKeeper) -> bool:
    """Serve the connections until ddlrun sends something on this one, or closes it; return True if it closes it."""
    served.until(lambda: is_readable(keeper.link))
    try:
        return keeper.link.recv(1) == b""
    except ConnectionResetError:  # ddlrun has not read all of it
        return True


def test_a_copy_of_a_greeting_is_dropped(served: Served, stack: contextlib.ExitStack) -> None:
    keeper, peer = served.connect()
    stack.callback(keeper.close)
    copy = stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener)))
    copy.link.sendall(keeper.greeting)
    assert is_closed(served, copy)
    assert list(served.keepers.peers.values()) == [peer]


def test_a_greeting_alone_proves_nothing(served: Served, stack: contextlib.ExitStack) -> None:
    thief = stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener, rank=3)))
    thief.greet()
    served.until(lambda: is_readable(thief.link))
    thief.link.sendall(bytes(CODE_BYTES))
    assert len(thief.link.recv(1000)) == thief.welcome_bytes
    assert is_closed(served, thief)
    assert (served.messages, served.keepers.peers) == ([], {})
    assert served.violations == [(3, "its greeting is a copy, or what it sent was altered on the way")]


def test_a_flood_of_connections_displaces_no_keeper(served: Served, stack: contextlib.ExitStack) -> None:
    keeper, peer = served.connect()
    stack.callback(keeper.close)
    clients = []
    for _ in range(2 * MOST_UNAUTHENTICATED):
        clients.append(stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener))))
        clients[-1].link.sendall(clients[-1].greeting[:-1])
    keeper.send(HELLO)
    served.until(lambda: HELLO in served.messages)
    served.until(lambda: sum(is_readable(client.link) for client in clients) == MOST_UNAUTHENTICATED)
    assert list(served.keepers.peers.values()) == [peer]


# Two messages of a keeper, and what an attacker makes of them.
ATTACKS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "altered text": lambda first, _: alter(first, HEAD_BYTES + CODE_BYTES),
    "altered kind": lambda first, _: alter(first, 0),
    "altered code": lambda first, _: alter(first, -1),
    "shorter text": lambda first, _: protocol.OUT + b"\0\0\0\5" + first[HEAD_BYTES:],
    "left out": lambda _, second: second,
    "repeated": lambda first, _: first + first,
    "reordered": lambda first, second: second + first,
    "inserted": lambda first, second: first + protocol.HEARTBEAT + bytes(4 + CODE_BYTES) + second,
    "oversized": lambda _, __: protocol.OUT + b"\xff\xff\xff\xff" + bytes(CODE_BYTES),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_messages_that_were_tampered_with_end_the_connection(
    served: Served, stack: contextlib.ExitStack, attack: Callable[[bytes, bytes], bytes]
) -> None:
    keeper, peer = served.connect()
    stack.callback(keeper.close)
    peer.introduce(Hello(0, "n0", 0))
    served.messages.clear()
    keeper.link.sendall(attack(keeper.seal(*OUTPUT), keeper.seal(protocol.OUT, b"more")))
    served.until(lambda: served.violations)
    assert [violation[0] for violation in served.violations] == [peer]
    assert served.messages in ([], [OUTPUT])
    assert (served.keepers.peers, served.hang_ups) == ({}, [])


def test_messages_of_another_connection_are_not_accepted(served: Served, stack: contextlib.ExitStack) -> None:
    (keeper, peer), (other, _) = served.connect(), served.connect()
    stack.callback(keeper.close)
    stack.callback(other.close)
    keeper.link.sendall(other.seal(*HELLO))
    served.until(lambda: served.violations)
    assert served.violations[0][0] is peer


def test_messages_of_ddlrun_are_not_accepted_from_a_keeper(served: Served, stack: contextlib.ExitStack) -> None:
    keeper, peer = served.connect()
    stack.callback(keeper.close)
    served.keepers.send_all(protocol.HEARTBEAT)
    keeper.link.sendall(keeper.link.recv(1000))
    served.until(lambda: served.violations)
    assert served.violations[0][0] is peer


def test_half_a_message_is_none(served: Served) -> None:
    keeper, peer = served.connect()
    peer.introduce(Hello(0, "n0", 0))
    served.messages.clear()
    keeper.link.sendall(keeper.seal(*OUTPUT)[:-1])
    keeper.close()
    served.until(lambda: served.hang_ups)
    assert (served.messages, served.hang_ups) == ([], [peer])
    assert peer.running, "the rank counts as lost"


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (PeerState.PROVEN, protocol.OUT),
        (PeerState.PROVEN, protocol.ENDED),
        (PeerState.PROVEN, protocol.NOTE),
        (PeerState.RUNNING, protocol.HELLO),
        (PeerState.RUNNING, protocol.TERMINATE),
        (PeerState.RUNNING, b"\x00"),
        (PeerState.ENDED, protocol.ENDED),
        (PeerState.ENDED, protocol.HELLO),
        (PeerState.ENDED, protocol.BOUND),
    ],
)
def test_messages_in_a_wrong_state_end_the_connection(
    served: Served, stack: contextlib.ExitStack, state: PeerState, kind: bytes
) -> None:
    keeper, peer = served.connect()
    stack.callback(keeper.close)
    served.messages.clear()
    peer.state = state
    keeper.send((kind, b"0\tn0\t0\t1"))
    served.until(lambda: served.violations)
    assert (served.messages, served.violations[0][0]) == ([], peer)


@pytest.mark.parametrize(
    "text",
    [b"", b"0", b"4\tn0\t0\t1", b"-1\tn0\t0\t1", b"0\tn0\t-1\t1", b"0\tn0\t4\t1", b"0x1\tn0\t0\t1",
     b"9" * 5000 + b"\tn0\t0\t1", "\u0661\tn0\t0\t1".encode(), b"0\tn0\t0\t1\t5", b"\xff\tn0\t0\t1"],
)  # fmt: skip
def test_introductions_of_no_rank_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        Hello.parse(text, 4)


def test_control_characters_in_a_host_name_are_escaped() -> None:
    hello = Hello.parse(b"3\t\x1b]0;title\x07n\n0\xff\t1\t1", 4)
    assert hello == Hello(3, "\\x1b]0;title\\x07n 0\ufffd", 1)


END = RankEnd(exit_code=7, signal=9, seconds=1.5).pack().rstrip(b"\n")


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"0\t0", END + b"r\tmore", END.replace(b"7", b"x"), END.replace(b"7", b"256"),
     END.replace(b"9", b"200"), END.replace(b"1.5", b"nan"), END.replace(b"1.5", b"inf"), END.replace(b"1.5", b"-1"),
     END.replace(b"7", b"9" * 5000)],
)  # fmt: skip
def test_reports_of_impossible_ends_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        RankEnd.parse(text)


def test_the_longest_report_of_an_end_fits_its_message() -> None:
    """Each byte of a tail may be none of UTF-8, and is replaced by three."""
    tail = (b"\xff" * TAIL).decode(errors="replace")
    text = RankEnd(reason="r" * 1000, tail=tail, output_tail=tail).pack()
    assert len(text) < protocol.FROM_KEEPER[protocol.ENDED]
    assert RankEnd.parse(text).output_tail == tail


# -- the keeper's end: programs that answer instead of ddlrun -----------------------------------


def answer_garbage(link: socket.socket) -> None:
    link.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and more than a welcome has\r\n")


def answer_with_the_greeting(link: socket.socket) -> None:
    link.sendall(link.recv(PLAIN_BYTES, socket.MSG_WAITALL))


def answer_with_another_secret(link: socket.socket) -> None:
    link.recv(PLAIN_BYTES, socket.MSG_WAITALL)
    other, greeting = accept_at(secret := Secret.draw(), 4, welcome_all), next(connect_as(secret, bytes(4)))[0]
    next(other)
    link.sendall(other.send(greeting)[0])


def answer_half(link: socket.socket) -> None:
    link.sendall(bytes(2 * CODE_BYTES - 1))


def close(link: socket.socket) -> None:
    link.recv(PLAIN_BYTES, socket.MSG_WAITALL)


def drip(link: socket.socket) -> None:
    """Send a byte at a time, more slowly than the keeper's time limit allows in all."""
    with contextlib.suppress(OSError):
        while True:
            link.sendall(b"x")
            if select.select([link], [], [], 0.05)[0] and not link.recv(PLAIN_BYTES):
                return


def stay_silent(link: socket.socket) -> None:
    while link.recv(PLAIN_BYTES):
        pass


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Answer one connection in a thread; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as link:
                answer(link)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answer_garbage, "another program answers"),
        (answer_with_the_greeting, "another program answers"),
        (answer_with_another_secret, "another program answers"),
        (answer_half, "another program answers|reset by peer"),
        (close, "another program answers"),
        (drip, "timed out"),
        (stay_silent, "timed out"),
    ],
)
def test_another_program_on_the_port_is_not_ddlrun(answer: Callable[[socket.socket], None], reason: str) -> None:
    seconds = 1.0 if reason == "timed out" else PATIENCE
    with answering(answer) as port, pytest.raises(OSError, match=reason):
        connect(f"{Secret.draw().text}@elsewhere@127.0.0.1:{port}@@{protocol.VERSION}", seconds, 0)


def test_a_network_that_is_down_for_a_moment_is_waited_for() -> None:
    """Linux refuses TCP to a broadcast address as it does where a link is down; the other port opens after that."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        channel = f"{Secret.draw().text}@elsewhere@127.255.255.255:1,127.0.0.1:{server.getsockname()[1]}@"
        reasons: list[str] = []

        def reach() -> None:
            try:
                connect(f"{channel}@{protocol.VERSION}", PATIENCE, 0)
            except OSError as error:
                reasons.append(str(error))

        thread = threading.Thread(target=reach)
        thread.start()
        wchan = Path(f"/proc/self/task/{thread.native_id}/wchan")
        wait_until(lambda: not thread.is_alive() or "nanosleep" in wchan.read_text())
        assert reasons == []
        server.listen()
        server.accept()[0].close()
        server.close()
        thread.join()


def test_a_welcome_of_an_earlier_connection_is_not_accepted(stack: contextlib.ExitStack) -> None:
    served = stack.enter_context(serving())
    earlier = stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener)))
    earlier.greet()
    served.until(lambda: is_readable(earlier.link))
    welcome = earlier.link.recv(earlier.welcome_bytes, socket.MSG_WAITALL)

    def repeat(link: socket.socket) -> None:
        link.recv(PLAIN_BYTES, socket.MSG_WAITALL)
        link.sendall(welcome)

    with answering(repeat) as port, pytest.raises(OSError, match="another program answers"):
        connect(f"{served.listener.secret.text}@elsewhere@127.0.0.1:{port}@@{protocol.VERSION}", PATIENCE, 0)


@pytest.mark.parametrize("encryption", [None, "/"])
@pytest.mark.parametrize("algorithm", [BLAKE2, SHA256])
def test_a_keeper_and_ddlrun_authenticate_each_other(algorithm: str, encryption: str | None) -> None:
    secret = Secret(f"{algorithm}:{os.urandom(32).hex()}", encrypted=encryption is not None)
    with serving(secret=secret) as served:
        connected: list[LauncherConnection] = []
        thread = threading.Thread(target=lambda: connected.append(connect(served.listener.variable(), PATIENCE, 0)))
        thread.start()
        served.until(lambda: served.keepers.peers)
        thread.join()
        (keeper,) = connected
        keeper.on_loss = pytest.fail
        received: list[tuple[bytes, bytes]] = []
        keeper.run_in(served.loop, lambda kind, text: received.append((kind, text)))
        keeper.send(*HELLO)
        served.until(lambda: HELLO in served.messages)
        (peer,) = served.keepers.peers.values()
        peer.introduce(Hello(0, "n0", 0))
        keeper.send(protocol.OUT, bytes(2 * protocol.LONG))
        served.until(lambda: len(served.messages) == 2)
        assert served.messages == [HELLO, (protocol.OUT, bytes(protocol.LONG))], "longer texts are cut off"
        served.keepers.send_all(protocol.SIGNAL, "10")
        served.until(lambda: received)
        assert received == [(protocol.SIGNAL, b"10")]
        keeper.close()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_keeper_that_hears_a_forged_message_is_alone(attack: Callable[[bytes, bytes], bytes]) -> None:
    losses: list[str] = []
    with linked(0, losses.append) as (keeper, ddlrun, theirs):
        seal = Encoder(ddlrun.outgoing, BOTH).encode
        theirs.sendall(attack(b"".join(seal(protocol.INPUT, b"input")), b"".join(seal(protocol.INPUT, b"more"))))
        assert list(keeper.receive()) in ([], [(protocol.INPUT, b"input")])
        kind, reason = next(Decoder(ddlrun.incoming, BOTH).feed(theirs.recv(1 << 16)))
    assert not keeper.open
    assert (kind, [reason.decode()]) == (protocol.ALTERED, losses), "ddlrun learns why"


@contextlib.contextmanager
def linked(
    heartbeat: float, on_loss: Callable[[str], object]
) -> Iterator[tuple[LauncherConnection, Agreement, socket.socket]]:
    """Yield a keeper's connection, what ddlrun's end agrees on, and its socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        agreed, ddlruns = agree()
        keeper = LauncherConnection(ours, agreed, heartbeat=heartbeat, program_secret="")
        keeper.on_loss = on_loss
        yield keeper, ddlruns, theirs


@pytest.mark.parametrize("version", ["@0.0.9/7", "", "/opt/venv/site-packages"])
def test_another_version_of_ddlrun_is_named(version: str) -> None:
    problem = f"its host has version {protocol.VERSION}, and another version has started the job; install the same one"
    with pytest.raises(OSError, match=re.escape(problem)):
        connect(f"{Secret.draw().text}@elsewhere@127.0.0.1:1@{version}", PATIENCE, 0)


# -- what both share ----------------------------------------------------------------------------


def test_the_secret_of_the_run_cannot_be_computed_from_that_of_its_programs(stack: contextlib.ExitStack) -> None:
    served = stack.enter_context(serving())
    connected: list[LauncherConnection] = []
    thread = threading.Thread(target=lambda: connected.append(connect(served.listener.variable(), PATIENCE, 0)))
    thread.start()
    served.until(lambda: served.keepers.peers)
    thread.join()
    stack.callback(connected[0].close)
    text = connected[0].program_secret
    assert text == served.listener.secret.derive(b"programs").text != Secret.draw().derive(b"programs").text
    assert len(bytes.fromhex(text.partition(":")[2])) == CODE_BYTES
    assert text.partition(":")[2] not in served.listener.secret.text


WITHOUT_BLAKE2 = """
import sys
sys.modules["_blake2"] = None
from ddlrun.wire.authentication import choose_algorithm
from ddlrun.keeper.connection import connect
from ddlrun.keeper.protocol import VERSION
print(choose_algorithm())
try:
    connect(f"blake2b:00@elsewhere@127.0.0.1:1@@{VERSION}", 1, 0)
except OSError as error:
    print(error)
"""


WITHOUT_CRYPTOGRAPHY = """
import sys
sys.path.append(sys.argv[1])
from ddlrun.keeper.connection import connect
from ddlrun.keeper.protocol import VERSION
try:
    connect(f"blake2b:00@elsewhere@127.0.0.1:1@{sys.argv[2]}@{VERSION}", 1, 0)
except OSError as error:
    print(error)
"""


def test_a_python_without_blake2_uses_sha256() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_BLAKE2], capture_output=True, text=True, check=True)
    algorithm, problem = done.stdout.splitlines()
    assert algorithm == "sha256"
    assert problem.startswith("its Python has no blake2b, which ddlrun's own machine uses: ")


def test_a_python_without_cryptography_cannot_connect(tmp_path: Path) -> None:
    line = [sys.executable, "-I", "-S", "-c", WITHOUT_CRYPTOGRAPHY, str(Path(__file__).parents[2]), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"its Python cannot import cryptography from {tmp_path}: ")


TERMINATED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
os.execv(sys.executable, [sys.executable, "-I", "-S", *sys.argv[1:]])
"""


def test_a_keeper_that_is_to_end_does_not_complain_that_it_cannot_connect() -> None:
    """The job has ended, and ddlrun with it."""
    with contextlib.closing(Listener(LOOPBACK)) as listener:
        environ = {**os.environ, protocol.ADDRESSES: listener.variable()}
    line = [sys.executable, "-c", TERMINATED, start.__file__, "true"]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (EXIT_SIGNAL + signal.SIGTERM, "")


def test_a_launcher_without_cryptography_names_the_remedy() -> None:
    program = "import sys; sys.modules['cryptography'] = None; from ddlrun.cli import main; main()"
    line = [sys.executable, "-c", program, "launch", "--encrypt", "--dry-run", "true"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_PREFLIGHT
    assert done.stderr.startswith(f"ddlrun: error: --encrypt: {sys.executable} cannot import cryptography (")
    assert done.stderr.endswith(f"{sys.executable} -m pip install cryptography\n")


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_an_altered_byte_is_noticed_as_soon_as_its_code_has_arrived(*, encrypted: bool) -> None:
    """An altered length above all, of which the receiver would wait for the rest."""
    head, text = (HEAD_BYTES + CODE_BYTES, 6 + CODE_BYTES)
    secret, exchanges = Secret.draw(encrypted=encrypted), None
    exchanges = [secret.exchange(), secret.exchange()]

    def agreed() -> tuple[Agreement, Agreement]:
        steps = connect_as(secret, b"", exchanges[0]), accept_at(secret, 0, welcome_all, exchanges[1])
        return tuple(shake_hands(*steps))  # type: ignore[return-value]

    encode = Encoder(agreed()[0].outgoing, BOTH).encode
    sent = b"".join((*encode(protocol.HEARTBEAT), *encode(protocol.OUT, b"output")))
    for at in range(len(sent)):
        ends = [end for end in (head, 2 * head, 2 * head + text) if end > at]
        for bit in range(8):
            altered = bytearray(sent)
            altered[at] ^= 1 << bit
            with pytest.raises(FrameError, match=FORGERY):
                list(Decoder(agreed()[1].incoming, BOTH).feed(bytes(altered[: ends[0]])))


def test_parts_of_messages_are_no_sign_of_life() -> None:
    losses: list[str] = []
    with linked(30, losses.append) as (keeper, ddlrun, theirs):
        before = keeper.deadline()
        theirs.sendall(b"".join(Encoder(ddlrun.outgoing, BOTH).encode(protocol.INPUT, b"input"))[:-1])
        assert (list(keeper.receive()), keeper.deadline()) == ([], before)
        now = time.monotonic()
        keeper.keep_alive(now + 100)  # it did not run until now
        for seconds in (110, 120, 129):
            keeper.keep_alive(now + seconds)
        assert losses == []
        keeper.keep_alive(now + 131)
    assert (keeper.timed_out, losses) == (True, ["no sign of life from ddlrun for 30 s"])


def test_a_long_message_may_take_its_time() -> None:
    with linked(30, pytest.fail) as (keeper, ddlrun, theirs):
        keeper.finish_sending()
        before = keeper.deadline()
        theirs.sendall(b"".join(Encoder(ddlrun.outgoing, BOTH).encode(protocol.INPUT, bytes(protocol.LONG)))[:1000])
        assert list(keeper.receive()) == []
        assert keeper.deadline() > before
    with serving() as served:
        simulated, peer = served.connect()
        heard_at = peer.heard_at
        simulated.link.sendall(simulated.seal(protocol.OUT, bytes(protocol.LONG))[:1000])
        served.until(lambda: peer.heard_at > heard_at)
        simulated.close()


def test_encrypted_output_cannot_be_read() -> None:
    keeper, ddlrun = agree(encrypted=True)
    text = b"the output of a rank" * 10
    sealed = b"".join(Encoder(keeper.outgoing, BOTH).encode(protocol.OUT, text))
    assert text[:10] not in sealed
    assert len(sealed) == HEAD_BYTES + len(text) + 2 * CODE_BYTES
    assert list(Decoder(ddlrun.incoming, BOTH).feed(sealed)) == [(protocol.OUT, text)]


def test_the_secret_of_the_run_alone_does_not_decrypt() -> None:
    secret = Secret.draw(encrypted=True)
    sent: list[bytes] = []
    steps = connect_as(secret, bytes(4)), accept_at(secret, 4, welcome_all)
    keeper, _ = shake_hands(*steps, lambda data: sent.append(data) or data)  # type: ignore[func-returns-value]
    sealed = b"".join(Encoder(keeper.outgoing, BOTH).encode(protocol.OUT, b"output"))
    recorded = sent[0][: -2 * CODE_BYTES + CODE_BYTES] + sent[1][:32]
    for guess in (b"", bytes(32), KeyExchange().agree(sent[0][:32]), KeyExchange().agree(sent[1][:32])):
        incoming = secret.protection(b"to the end that accepts", recorded + guess)
        with pytest.raises(FrameError):
            list(Decoder(incoming, BOTH).feed(sealed))


def test_each_message_has_a_key_stream_of_its_own() -> None:
    encoders = [Encoder(end.outgoing, BOTH) for end in agree(encrypted=True)]
    sealed = [b"".join(encoder.encode(protocol.OUT, bytes(64))) for encoder in encoders for _ in range(3)]
    assert len(set(sealed)) == len(sealed)


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little"), bytes.fromhex("ed" + "ff" * 30 + "7f")])
def test_public_keys_of_small_order_are_refused(key: bytes) -> None:
    with pytest.raises(FrameError, match="unsuitable"):
        KeyExchange().agree(key)


def test_a_keeper_with_an_unsuitable_key_is_dropped(stack: contextlib.ExitStack) -> None:
    served = stack.enter_context(serving(encrypted=True))
    keeper = stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener)))
    greeting = bytes(32 + protocol.CLAIM_BYTES)
    keeper.link.sendall(greeting + served.listener.secret.code(b"greeting", greeting))
    assert is_closed(served, keeper)


@pytest.mark.parametrize("encrypted", [False, True])
def test_an_end_with_encryption_and_one_without_do_not_connect(stack: contextlib.ExitStack, *, encrypted: bool) -> None:
    served = stack.enter_context(serving(encrypted=encrypted))
    keeper = stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener)))
    other = Secret(served.listener.secret.text, encrypted=not encrypted)
    keeper.link.sendall(next(connect_as(other, bytes(4)))[0] + bytes(32))
    assert is_closed(served, keeper)


def test_the_secret_is_never_sent(served: Served, stack: contextlib.ExitStack) -> None:
    key = bytes.fromhex(served.listener.secret.text.partition(":")[2])
    assert len(key) == 32
    keeper = stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener)))
    keeper.greet()
    served.until(lambda: is_readable(keeper.link))
    sent = keeper.greeting, keeper.link.recv(keeper.welcome_bytes, socket.MSG_WAITALL)
    assert not any(secret in message for message in sent for secret in (key, key.hex().encode(), key[:CODE_BYTES]))


def test_only_the_addresses_of_keepers_and_loopback_are_listened_on() -> None:
    for addresses in (("127.0.0.1",), ("127.0.0.3", "127.0.0.2"), ("127.0.0.2", "127.0.0.1")):
        with contextlib.closing(Listener(addresses)) as listener:
            bound = [listening.getsockname() for listening in listener.sockets]
            assert {ip for ip, _ in bound} == {"127.0.0.1", *addresses}
            assert {port for _, port in bound} == {listener.port}
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.4", listener.port), PATIENCE)


def test_a_name_instead_of_addresses_is_listened_for_on_all() -> None:
    with contextlib.closing(Listener((os.uname().nodename,))) as listener:
        assert len(listener.sockets) == 1
        socket.create_connection(("127.0.0.4", listener.port), PATIENCE).close()


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(PreflightError, match=r"cannot listen on 192\.0\.2\.1: Cannot assign requested address"):
        Listener(("192.0.2.1",))
