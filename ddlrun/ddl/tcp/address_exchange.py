"""The exchange of addresses at the start of a job: each rank sends its own to rank 0, which sends all of them back.

Messages are JSON after their length, each with a CRC. Rank 0 listens only until the exchange is complete.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ddlrun.ddl.tcp.handshake import EXCHANGE, HandshakeError, accept_at, connect_as
from ddlrun.ddl.tcp.message import CODE, AlteredBytesError, seal, unseal
from ddlrun.ddl.tcp.own_host import TooManyFilesError, accept
from ddlrun.ddl.tcp.poller import MOST_UNAUTHENTICATED, READ, Introduction, Poller
from ddlrun.errors import LostRankError
from ddlrun.ranges import name_numbers

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from ddlrun.ddl.tcp.handshake import Greeting

    Record = dict[str, Any]

LENGTH = struct.Struct("<I")
HEAD_BYTES = LENGTH.size + CODE.size
LONGEST_RECORD = 1 << 16
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
    secret: bytes
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


class AddressExchange:
    """Rank 0's part: it collects the records of the other ranks, and replies to all of them at once."""

    def __init__(self, job: Membership, listener: socket.socket) -> None:
        self._job, self._listener = job, listener
        self._poller = Poller()
        self._members: dict[int, tuple[socket.socket, Record]] = {}
        self._problems: list[str] = []
        listener.setblocking(False)
        self._poller.watch(listener, READ, self._accept)

    def collect(self) -> dict[int, Record]:
        """Return the record of each other rank. Raises LostRankError, on all ranks, if one does not arrive in time."""
        until = time.monotonic() + self._job.seconds
        while len(self._members) < self._job.size - 1 and not self._problems:
            left = until - time.monotonic()
            if left <= 0:
                missing = {*range(1, self._job.size)} - self._members.keys()
                self._problems.append(
                    f"{name_numbers('rank', missing)} did not arrive within {self._job.seconds:.0f} s"
                )
                break
            self._poller.poll(left)
        if self._problems:
            self.reply({"problem": self._problems[0]})
            raise LostRankError(f"{self._job}: {self._problems[0]}")
        return {rank: record for rank, (_, record) in self._members.items()}

    def reply(self, record: Record) -> None:
        """Send a record to all ranks that have arrived, and end."""
        data = pack(record)
        for file, _ in self._members.values():
            file.settimeout(self._job.seconds)
            try:
                file.sendall(data)
            except OSError as error:
                self._problems.append(str(error))  # the rank has ended, which its peers will see
        self._poller.close()

    def _accept(self, _mask: int) -> None:
        try:
            file = accept(self._listener)
        except TooManyFilesError as error:
            if not self._poller.drop_unauthenticated():
                self._problems.append(str(error.strerror))
            return
        if file is not None:
            self._poller.limit(file, MOST_UNAUTHENTICATED + self._job.size)
            Introduction(self._poller, file, self._talk(file), self._arrived, lambda _error: None)

    def _talk(self, file: socket.socket) -> Generator[tuple[bytes, int], bytes, Greeting]:
        """Run the handshake, and receive the record of a rank."""
        greeting = yield from accept_at(0, self._job.size, self._job.secret)
        try:
            (size,) = LENGTH.unpack(unseal((yield b"", HEAD_BYTES)))
            if greeting.purpose != EXCHANGE or size > LONGEST_RECORD:
                raise HandshakeError
            record = json.loads(bytes(unseal((yield b"", size))))
        except AlteredBytesError as error:
            raise HandshakeError from error
        if greeting.sender in self._members:
            self._problems.append(f"two processes are rank {greeting.sender}")
        elif record["size"] != self._job.size:
            self._problems.append(f"rank {greeting.sender} is one of {record['size']}, rank 0 one of {self._job.size}")
        self._members[greeting.sender] = file, record
        return greeting

    def _arrived(self, file: socket.socket, _greeting: Greeting) -> None:
        self._poller.trust(file)
        self._poller.watch(file, 0, lambda _mask: None)


def connect_to_rank_0(job: Membership) -> socket.socket:
    """Return a connection to rank 0, which may not listen yet, after the handshake. Raises LostRankError."""
    until = time.monotonic() + job.seconds
    while True:
        try:
            file = socket.create_connection((job.address, job.port), timeout=job.seconds)
            break
        except OSError as error:
            if time.monotonic() > until:
                place = f"{job.address} port {job.port}"
                raise LostRankError(
                    f"{job}: rank 0 cannot be reached at {place} (MASTER_ADDR, MASTER_PORT): {error.strerror or error}"
                ) from error
            time.sleep(PAUSE)
    steps = connect_as(EXCHANGE, job.rank, 0, job.secret)
    try:
        _run(file, steps)
    except (OSError, HandshakeError) as error:
        file.close()
        raise LostRankError(
            f"{job}: {job.address} port {job.port} refuses this rank: another program, or another job, has this port"
        ) from error
    return file


def exchange(job: Membership, file: socket.socket, record: Record) -> Record:
    """Send this rank's record to rank 0; return its reply. Raises LostRankError."""
    try:
        with file:
            file.sendall(pack(record))
            file.settimeout(job.seconds + PAUSE)
            (size,) = LENGTH.unpack(unseal(_receive(file, HEAD_BYTES)))
            reply: Record = json.loads(bytes(unseal(_receive(file, size))))
    except OSError as error:
        raise LostRankError(f"{job}: rank 0 is lost: {error.strerror or error}") from error
    if "problem" in reply:
        raise LostRankError(f"{job}: {reply['problem']}")
    return reply


def pack(record: Record) -> bytes:
    """Return a record as it is sent."""
    data = seal(json.dumps(record).encode())
    return seal(LENGTH.pack(len(data))) + data


def _run(file: socket.socket, steps: Generator[tuple[bytes, int], bytes, Greeting]) -> None:
    """Run a handshake over a socket that blocks."""
    received = b""
    data, wanted = next(steps)
    while True:
        file.sendall(data)
        received = _receive(file, wanted)
        try:
            data, wanted = steps.send(received)
        except StopIteration:
            return


def _receive(file: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = file.recv(size - len(data))
        if not part:
            raise ConnectionResetError(0, "it has closed the connection")
        data += part
    return data
