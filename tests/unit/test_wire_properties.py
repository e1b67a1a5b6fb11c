"""Properties of the wire: what was sent arrives as it was sent and in order, or the receiver refuses it.

An attacker alters, repeats, leaves out, reorders and forges bytes of frames and of handshakes, and floods the receiver.
`pytest --hypothesis-profile thorough` tries many more examples.
"""

import copy
import itertools
import operator
import socket
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import ddlrun.agent.protocol as agents
import ddlrun.ddl.transports.tcp.protocol as ddl
import ddlrun.keeper.protocol as keepers
import ddlrun.preflight.peer as check
import ddlrun.ship.host.link as ship
from ddlrun.wire.authentication import (
    CODE_BYTES,
    HandshakeError,
    Secret,
    accept_at,
    connect_as,
)
from ddlrun.wire.connection import HandshakeProgress
from ddlrun.wire.frames import HEAD_BYTES, SHORT, Agreement, Checksums, Decoder, Encoder, Fixed, FrameError

if TYPE_CHECKING:
    from ddlrun.wire.authentication import Handshake
    from ddlrun.wire.frames import Protection

Frame = tuple[bytes, bytes]
Limits = Mapping[bytes, int]
Delivery = tuple[tuple[int, int], int, int | None]
# Kinds of which one altered bit makes another one.
TEXT, EMPTY, SHORTER, FILE, FIXED, LONGER = b"p", b"q", b"r", b"t", b"x", b"0"
TABLES: dict[str, Limits] = {
    "all sorts": {TEXT: 1 << 16, EMPTY: 0, SHORTER: 3, FILE: Fixed(4), FIXED: Fixed(20), LONGER: Fixed(6000)},
    "keepers, to ddlrun": keepers.FROM_KEEPER, "keepers, to keepers": keepers.TO_KEEPER,
    "to agents": agents.TO_AGENT, "from agents": agents.FROM_AGENT,
    "ship": ship.LONGEST,
    "ddl": ddl.KINDS, "ddl, addresses": ddl.RECORDS,
    "check, to partners": check.TO_PARTNER, "check, from partners": check.FROM_PARTNER,
}  # fmt: skip
# Longer texts are not made here.
MOST_BYTES = 1 << 20
SECRETS = {"blake2b": Secret(f"blake2b:{'5e' * 32}"), "sha256": Secret(f"sha256:{'5e' * 32}"),
           "encrypted": Secret(f"blake2b:{'5e' * 32}", encrypted=True)}  # fmt: skip
PROTECTIONS: dict[str, Callable[[], "Protection"]] = {
    **{name: partial(secret.protection, b"purpose", b"") for name, secret in SECRETS.items()},
    "checked": Checksums,
}
EDGES = (0, 1, SHORT - 1, SHORT, SHORT + 1)

tables = st.sampled_from([*TABLES.values()])
each_protection = pytest.mark.parametrize("protection", PROTECTIONS)


@st.composite
def frames(draw: st.DrawFn, limits: Limits) -> list[Frame]:
    """Return frames that a table allows."""
    return draw(st.lists(st.sampled_from(sorted(limits)).flatmap(lambda kind: texts(kind, limits[kind])), max_size=6))


def texts(kind: bytes, limit: int) -> st.SearchStrategy[Frame]:
    if isinstance(limit, Fixed):
        sizes: st.SearchStrategy[int] = st.just(int(limit))
    else:
        sizes = st.integers(0, min(limit, 40)) | st.sampled_from([size for size in EDGES if size <= limit])
    return st.tuples(st.just(kind), st.builds(fill, sizes, st.binary(min_size=1, max_size=5)))


def fill(size: int, pattern: bytes) -> bytes:
    return (pattern * (size // len(pattern) + 1))[:size]


def encode(sent: Iterable[Frame], protection: str, limits: Limits) -> list[bytes]:
    """Return the bytes of each frame."""
    encoder = Encoder(PROTECTIONS[protection](), limits)
    return [b"".join(encoder.encode(*frame)) for frame in sent]


def split(data: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    """Yield the pieces of bytes between places, which count modulo their number."""
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    for start, end in itertools.pairwise([0, *places, len(data)]):
        yield data[start:end]


def receive(pieces: Iterable[bytes], protection: str, limits: Limits) -> tuple[list[Frame], bool]:
    """Return the frames that arrive, and True if what follows them was refused."""
    decoder, received = Decoder(PROTECTIONS[protection](), limits), list[Frame]()
    try:
        for piece in pieces:
            for frame in decoder.feed(piece):
                received.append(frame)
    except FrameError:
        return received, True
    return received, False


cuts = st.lists(st.integers(0, 1 << 20), max_size=12)


@each_protection
@given(data=st.data(), limits=tables, at=cuts)
def test_frames_arrive_once_and_in_order_in_any_pieces(
    data: st.DataObject, limits: Limits, at: list[int], protection: str
) -> None:
    sent = data.draw(frames(limits))
    stream = b"".join(encode(sent, protection, limits))
    assert receive(split(stream, at), protection, limits) == (sent, False)


@each_protection
@given(payloads=st.lists(st.binary(max_size=50), max_size=5), at=cuts)
def test_payloads_arrive_between_their_frames_in_any_pieces(
    payloads: list[bytes], at: list[int], protection: str
) -> None:
    limits = TABLES["all sorts"]
    announced = encode([(FILE, len(payload).to_bytes(4, "big")) for payload in payloads], protection, limits)
    stream = b"".join(itertools.chain.from_iterable(zip(announced, payloads, strict=True)))
    decoder, received, missing = Decoder(PROTECTIONS[protection](), limits), list[bytes](), 0
    for piece in split(stream, at):
        if missing:
            received[-1] += piece[:missing]
        missing, rest = max(0, missing - len(piece)), piece[missing:]
        for _, text in decoder.feed(rest):
            size = int.from_bytes(text, "big")
            received.append(bytes(decoder.take(size)))
            missing = size - len(received[-1])
    assert received == payloads


@st.composite
def altered(draw: st.DrawFn, parts: list[bytes]) -> bytes:
    """Return the bytes of frames as an attacker has altered them."""
    stream = b"".join(parts)
    ends = [0, *itertools.accumulate(map(len, parts))]
    places = st.sampled_from(ends) | st.integers(0, len(stream))
    first, second, third = sorted(draw(st.tuples(places, places, places)))
    junk = draw(st.binary(max_size=40))
    bit = 8 * first + draw(st.integers(0, 7))
    return draw(
        st.sampled_from(
            [
                stream[:first],
                stream[:first] + stream[second:],
                stream[:second] + stream[first:],
                stream[:first] + stream[second:third] + stream[first:second] + stream[third:],
                stream[:first] + junk + stream[first:],
                stream[:first] + junk + stream[second:],
                flip(stream, bit),
            ]
        )
    )


def flip(data: bytes, bit: int) -> bytes:
    """Return bytes with an altered bit, whose number counts modulo theirs."""
    at, place = divmod(bit % (8 * len(data)), 8) if data else (0, 0)
    return data[:at] + bytes(byte ^ 1 << place for byte in data[at : at + 1]) + data[at + 1 :]


@each_protection
@given(data=st.data(), limits=tables, at=cuts)
def test_of_altered_bytes_only_whole_frames_before_the_first_alteration_arrive(
    data: st.DataObject, limits: Limits, at: list[int], protection: str
) -> None:
    sent = data.draw(frames(limits))
    parts = encode(sent, protection, limits)
    longest = max(map(len, parts), default=0) + max(len_of_head(limit) for limit in limits.values())
    stream = data.draw(altered(parts)) + bytes(longest)
    unaltered = sum(itertools.takewhile(bool, map(operator.eq, stream, b"".join(parts))))
    whole = sum(end <= unaltered for end in itertools.accumulate(map(len, parts)))
    received, refused = receive(split(stream, at), protection, limits)
    assert received == sent[:whole]
    assert refused  # it never waits for more than the longest frame


def len_of_head(limit: int) -> int:
    """Return the most bytes of a frame that come before its first code, with this code."""
    return (1 + limit if isinstance(limit, Fixed) else HEAD_BYTES) + CODE_BYTES


@each_protection
@given(garbage=st.binary(min_size=40), limits=tables, at=cuts)
def test_garbage_is_no_frame(garbage: bytes, limits: Limits, at: list[int], protection: str) -> None:
    stream = garbage + bytes(max(map(len_of_head, limits.values())))
    assert receive(split(stream, at), protection, limits) == ([], True)


@each_protection
@pytest.mark.parametrize("table", TABLES)
def test_a_text_may_be_as_long_as_the_limit_of_its_kind(table: str, protection: str) -> None:
    limits = {kind: limit for kind, limit in TABLES[table].items() if limit <= MOST_BYTES}
    sent = [(kind, bytes(limit)) for kind, limit in limits.items()]
    decoder = Decoder(PROTECTIONS[protection](), limits)
    assert list(decoder.feed(b"".join(encode(sent, protection, limits)))) == sent
    for kind, limit in limits.items():
        if isinstance(limit, Fixed):
            continue
        (longer,) = encode([(kind, bytes(limit + 1))], protection, {kind: limit + 1})
        with pytest.raises(FrameError, match=f"has {limit + 1} bytes, at most {limit} are allowed"):
            list(Decoder(PROTECTIONS[protection](), limits).feed(longer[: HEAD_BYTES + CODE_BYTES]))


@each_protection
@pytest.mark.parametrize("size", [1 << 9, 1 << 16, 1 << 20])
def test_the_memory_of_a_receiver_is_limited_by_the_longest_text(size: int, protection: str) -> None:
    limits = {TEXT: 1 << 18, EMPTY: 0}
    sent = [(TEXT, bytes(1 << 18)), *[(EMPTY, b"")] * 10_000, (TEXT, bytes(1 << 18))]
    stream, number = memoryview(b"".join(encode(sent, protection, limits))), 0
    decoder = Decoder(PROTECTIONS[protection](), limits)
    tracemalloc.start()
    try:
        for start in range(0, len(stream), size):
            number += sum(1 for _ in decoder.feed(bytes(stream[start : start + size])))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert number == len(sent)
    assert peak < 3 * limits[TEXT] + 2 * size


# -- handshakes --------------------------------------------------------------------------------


class End:
    """One end of a handshake, with the bytes that it has sent, and that it takes next."""

    def __init__(self, steps: "Handshake") -> None:
        self._steps = steps
        self.agreement: Agreement | None = None
        self.refused = False
        sent, self.wanted = next(steps)
        self.sent = [sent]

    def take(self, data: bytes) -> None:
        """Take what the attacker passes on, cut off or filled up to what is wanted."""
        if self.agreement is not None or self.refused:
            return
        try:
            sent, self.wanted = self._steps.send(data[: self.wanted].ljust(self.wanted, b"\0"))
            self.sent.append(sent)
            if not self.wanted:
                self._steps.send(b"")
        except HandshakeError:
            self.refused = True
        except StopIteration as end:
            self.agreement = end.value


def welcome_all(_nonce: bytes, _claim: bytes) -> None:
    return


def agree(connecting: Agreement, accepting: Agreement) -> bool:
    """Return True if frames arrive in both directions."""
    limits = {TEXT: 9}
    for sender, receiver in ((connecting, accepting), (accepting, connecting)):
        frame = b"".join(Encoder(copy.copy(sender.outgoing), limits).encode(TEXT, b"text"))
        try:
            assert list(Decoder(copy.copy(receiver.incoming), limits).feed(frame)) == [(TEXT, b"text")]
        except FrameError:
            return False
    return True


# Two ends that know the secret and one that does not connect, to two that accept.
CONNECTING, ACCEPTING = (0, 1, 2), (3, 4)
OPPOSITE = [(one, other) for one in CONNECTING for other in ACCEPTING]
SESSION = [step for one, other in OPPOSITE for step in ((one, other), (other, one), (one, other))]
passed_on = st.tuples(
    st.sampled_from(SESSION) | st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.just(-1) | st.integers(0, 1),
    st.none() | st.none() | st.integers(0, 8 * 80),
)
session = st.sampled_from(OPPOSITE).map(lambda pair: [(pair, -1, None), (pair[::-1], -1, None), (pair, -1, None)])
copied = st.sampled_from(OPPOSITE).map(lambda pair: [(pair, 0, None), (pair, 1, None)])
deliveries = st.lists(session | copied | passed_on.map(lambda step: [step]), max_size=10)


@pytest.mark.parametrize("name", SECRETS)
@given(actions=deliveries)
def test_ends_agree_only_with_each_other_whatever_an_attacker_passes_on(
    actions: list[list[Delivery]], name: str
) -> None:
    """The attacker passes what an end has sent, last or before, on to any end, as it was or with an altered bit."""
    secret = SECRETS[name]
    stranger = Secret(f"blake2b:{'77' * 32}", encrypted=secret.encrypted)
    connecting = [
        End(connect_as(key, claim)) for key, claim in ((secret, b"0001"), (secret, b"0002"), (stranger, b"0001"))
    ]
    accepting = [End(accept_at(secret, 4, welcome_all)) for _ in ACCEPTING]
    ends = [*connecting, *accepting]
    for (giver, taker), number, bit in itertools.chain.from_iterable(actions):
        message = ends[giver].sent[number % len(ends[giver].sent)]
        ends[taker].take(message if bit is None else flip(message, bit))
    agreed = [
        (end.agreement, partner.agreement)
        for end in accepting
        for partner in connecting
        if end.agreement and partner.agreement and agree(partner.agreement, end.agreement)
    ]
    assert [here for here, _ in agreed] == [end.agreement for end in accepting if end.agreement]
    assert len({there for _, there in agreed}) == len(agreed)
    assert [here.claim for here, _ in agreed] == [there.claim for _, there in agreed]
    assert connecting[2].agreement is None
    event(f"{len(agreed)} of {len(accepting)} ends agree")


@pytest.mark.parametrize("encrypting", ["connects", "accepts"])
@given(claim=st.binary(max_size=48))
def test_ends_of_which_one_encrypts_never_agree(claim: bytes, encrypting: str) -> None:
    plain, encrypted = SECRETS["blake2b"], SECRETS["encrypted"]
    connecting = End(connect_as(encrypted if encrypting == "connects" else plain, claim))
    accepting = End(accept_at(encrypted if encrypting == "accepts" else plain, len(claim), welcome_all))
    ends, arrived = (connecting, accepting), [b"", b""]
    for _ in range(3):
        for number, end in enumerate(ends):
            arrived[number] += b"".join(ends[1 - number].sent)
            ends[1 - number].sent.clear()
            if len(arrived[number]) >= end.wanted:
                end.take(arrived[number])
                arrived[number] = arrived[number][end.wanted :]
    assert (connecting.agreement, accepting.agreement) == (None, None)


@pytest.mark.parametrize("name", SECRETS)
@given(at=cuts)
def test_a_handshake_arrives_in_any_pieces(at: list[int], name: str) -> None:
    connecting = connect_as(SECRETS[name], b"0001")
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)
        progress = HandshakeProgress(there, accept_at(SECRETS[name], 4, welcome_all))
        greeting, size = next(connecting)
        for piece in split(greeting, at):
            here.sendall(piece)
            assert progress.advance() is None
        confirmation, _ = connecting.send(here.recv(size))
        *parts, last = filter(None, split(confirmation, at))
        for piece in parts:
            here.sendall(piece)
            assert progress.advance() is None
        here.sendall(last)
        agreement = progress.advance()
    assert agreement is not None
    assert agreement.claim == b"0001"
