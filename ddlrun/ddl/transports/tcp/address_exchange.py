"""The exchange of addresses at the start of a job: each rank sends its own to rank 0, which sends all of them back.

Rank 0 listens only until the exchange is complete.
"""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ddlrun.ddl.transports.tcp.own_host import TooManyFilesError, raise_file_limit
from ddlrun.ddl.transports.tcp.protocol import CLAIM, EXCHANGE, RECORD, RECORDS, REPLIES, Claim, make_secret
from ddlrun.errors import LostRankError
from ddlrun.ranges import name_numbers
from ddlrun.wire.authentication import HandshakeError, connect_as
from ddlrun.wire.connection import Connection, run_handshake
from ddlrun.wire.frames import FrameError
from ddlrun.wire.listening import MOST_UNAUTHENTICATED, Acceptor, AcceptorEvents
from ddlrun.wire.loop import Loop

if TYPE_CHECKING:
    import _socket
    from collections.abc import Sequence

    from ddlrun.wire.frames import Agreement

    Record = dict[str, Any]

# Seconds between two attempts to connect to rank 0, which may start later.
PAUSE = 0.05


class Membership(NamedTuple):
    """A rank, the number of ranks, the address of rank 0, the secret of the job ("": none), and a limit in seconds.

    In a group of a job's ranks these are numbered from 0. `ranks` are their numbers in the job, for messages.
    """

    rank: int
    size: int
    address: str
    port: int
    secret: str
    seconds: float
    group: str = ""
    ranks: Sequence[int] = ()

    def __str__(self) -> str:
        if self.group:
            return f"{self.group} ({self.size} ranks), rank {self.number(self.rank)}"
        return f"rank {self.rank} of {self.size}"

    def number(self, rank: int) -> int:
        """Return the number of a rank in the job."""
        return self.ranks[rank] if self.ranks else rank


class AddressExchange(AcceptorEvents):
    """Rank 0's part: it collects the records of the other ranks, and replies to all of them at once."""

    def __init__(self, job: Membership, listener: socket.socket) -> None:
        self._job, self._loop = job, Loop()
        self._records: dict[int, Record] = {}
        self._connections: dict[int, Connection] = {}
        self._problems: list[str] = []
        most = MOST_UNAUTHENTICATED + job.size
        self._acceptor = Acceptor(self._loop, [listener], make_secret(job.secret), self, CLAIM.size, most=most)

    def collect(self) -> dict[int, Record]:
        """Return the record of each other rank. Raises LostRankError, on all ranks, if one does not arrive in time."""
        until = time.monotonic() + self._job.seconds
        while len(self._records) < self._job.size - 1 and not self._problems:
            left = until - time.monotonic()
            if left <= 0:
                missing = {*range(1, self._job.size)} - self._records.keys()
                self._problems.append(
                    f"{name_numbers('rank', missing)} did not arrive within {self._job.seconds:.0f} s"
                )
                break
            self._loop.wait(left)
        if self._problems:
            self.reply({"problem": self._problems[0]})
            raise LostRankError(f"{self._job}: {self._problems[0]}")
        return self._records

    def reply(self, record: Record) -> None:
        """Send a record to all ranks that have arrived, and end. Their peers will see that one has ended."""
        until = time.monotonic() + self._job.seconds
        self._acceptor.close()
        for connection in self._connections.values():
            connection.pause(reading=False)
            connection.send(RECORD, json.dumps(record).encode())
        while any(connection.unsent for connection in self._connections.values()) and time.monotonic() < until:
            self._loop.wait(until - time.monotonic())
        for connection in self._connections.values():
            connection.close()
        self._loop.close()

    def check(self, claim: bytes) -> None:
        """Refuse a claim of a rank that is not of this job."""
        purpose, sender, receiver = Claim.parse(claim)
        if purpose != EXCHANGE or receiver or not 0 < sender < self._job.size:
            raise HandshakeError("it looks for another rank")

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Receive the record of a rank."""
        rank, connection = Claim.parse(agreement.claim).sender, Connection(link)
        connection.begin(agreement, sent=REPLIES, received=RECORDS)
        connection.join(self._loop, lambda: self._receive(rank, connection))

    def on_full(self, error: OSError) -> None:
        """Raise the limit of open files, or give up."""
        try:
            raise_file_limit(error)
        except TooManyFilesError as problem:
            self._problems.append(str(problem.strerror))

    def _receive(self, rank: int, connection: Connection) -> None:
        try:
            for _, text in connection.receive():
                self._take(rank, connection, json.loads(text))
        except (OSError, FrameError):
            connection.close()

    def _take(self, rank: int, connection: Connection, record: Record) -> None:
        if rank in self._records:
            self._problems.append(f"two processes are rank {rank}")
        elif record["size"] != self._job.size:
            self._problems.append(f"rank {rank} is one of {record['size']}, rank 0 one of {self._job.size}")
        self._records[rank], self._connections[rank] = record, connection


def connect_to_rank_0(job: Membership) -> tuple[str, Connection]:
    """Connect to rank 0, which may not listen yet; return the own address there too. Raises LostRankError."""
    until = time.monotonic() + job.seconds
    while True:
        try:
            link = socket.create_connection((job.address, job.port), timeout=job.seconds)
            break
        except OSError as error:
            if time.monotonic() > until:
                place = f"{job.address} port {job.port}"
                raise LostRankError(
                    f"{job}: rank 0 cannot be reached at {place} (MASTER_ADDR, MASTER_PORT): {error.strerror or error}"
                ) from error
            time.sleep(PAUSE)
    try:
        steps = connect_as(make_secret(job.secret), Claim(EXCHANGE, job.rank, 0).pack())
        agreement = run_handshake(link, steps, time.monotonic() + job.seconds)
    except (OSError, HandshakeError) as error:
        link.close()
        raise LostRankError(
            f"{job}: {job.address} port {job.port} refuses this rank: another program, or another job, has this port"
        ) from error
    connection = Connection(link)
    connection.begin(agreement, sent=RECORDS, received=REPLIES)
    return link.getsockname()[0], connection


def exchange(job: Membership, connection: Connection, record: Record) -> Record:
    """Send this rank's record to rank 0; return its reply. Raises LostRankError."""
    until, replies, loop = time.monotonic() + job.seconds + PAUSE, list[bytes](), Loop()
    connection.join(loop, lambda: replies.extend(text for _, text in connection.receive()))
    connection.send(RECORD, json.dumps(record).encode())
    try:
        while not replies:
            if time.monotonic() >= until:
                raise LostRankError(f"{job}: rank 0 is lost: timed out")
            loop.wait(until - time.monotonic())
    except (OSError, FrameError) as error:
        raise LostRankError(f"{job}: rank 0 is lost: {getattr(error, 'strerror', '') or error}") from error
    finally:
        loop.close()
        connection.close()
    reply: Record = json.loads(replies[0])
    if "problem" in reply:
        raise LostRankError(f"{job}: {reply['problem']}")
    return reply
