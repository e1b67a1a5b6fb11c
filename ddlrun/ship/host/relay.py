"""The passage of an archive through a host: from the host before it in the chain to the disk and to the next host."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading

from ddlrun.ship.host.link import GREETING_SECONDS, SILENCE_SECONDS, LinkError, welcome
from ddlrun.ship.host.unpack import ArchiveError, unpack
from ddlrun.ship.host.zstd import DECOMPRESS, ZstdStream
from ddlrun.unauthenticated import UnauthenticatedConnections

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import Any

BLOCK = 1 << 18
# The blocks that wait for the disk or for the next host.
DEPTH = 32
END = b""


class Successors:
    """The connections of the next hosts, by the archive that they ask for."""

    def __init__(self, listener: socket.socket, secret: str) -> None:
        """Start to accept connections, in a thread."""
        self._listener, self._secret = listener, secret
        self._links: dict[str, socket.socket] = {}
        self._arrived = threading.Condition()
        self._unauthenticated = UnauthenticatedConnections(GREETING_SECONDS)
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self, digest: str) -> socket.socket:
        """Return the connection of the host that is to get an archive. Raises LinkError if none comes."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: digest in self._links, SILENCE_SECONDS):
                raise LinkError("the next host does not connect")
            return self._links.pop(digest)

    def _accept(self) -> None:
        for link, _ in self._unauthenticated.accept(self._listener):
            threading.Thread(target=self._greet, args=(link,), daemon=True).start()

    def _greet(self, link: socket.socket) -> None:
        body = welcome(link, self._secret)
        self._unauthenticated.remove(link)
        if body is None:
            link.close()
            return
        with self._arrived:
            self._links[str(body.get("digest"))] = link
            self._arrived.notify_all()


class ArchiveBlocks:
    """The blocks of an archive on their way to the disk, read like a file, and their SHA-256."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes] = queue.Queue(DEPTH)
        self._rest = memoryview(b"")
        self._hash = hashlib.sha256()
        self._ended = False

    def put(self, block: bytes) -> None:
        """Add a block; END is the last one."""
        self._queue.put(block)

    def read(self, most: int) -> bytes:
        """Return the next bytes, at most some."""
        if not self._rest and not self._ended:
            block = self._queue.get()
            self._hash.update(block)
            self._rest, self._ended = memoryview(block), block == END
        data, self._rest = self._rest[:most], self._rest[most:]
        return bytes(data)

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bytes that are left."""
        while block := self.read(BLOCK):
            yield block

    def digest(self) -> str:
        """Take the rest, and return the hash of all."""
        while self.read(BLOCK):
            pass
        return self._hash.hexdigest()


class _Worker(threading.Thread):
    """A thread that consumes blocks; after an error it takes no more of them, but does not block the others."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - it is reported by the main thread
            self.error = error
            self.drain()

    def work(self) -> None:
        """Consume the blocks."""
        raise NotImplementedError

    def drain(self) -> None:
        """Take the blocks that are left."""
        raise NotImplementedError


class Extraction(_Worker):
    """The extraction of an archive into a new folder, and the check of its hash."""

    def __init__(self, folder: str, digest: str, *, place: str, compressed: bool = False) -> None:
        """Start; `place` is the path that the folder will have."""
        super().__init__()
        self._folder, self._digest, self._place, self._compressed = folder, digest, place, compressed
        self.blocks = ArchiveBlocks()
        self.start()

    def work(self) -> None:
        """Extract the archive."""
        if self._compressed:
            with contextlib.closing(ZstdStream(DECOMPRESS, iter(self.blocks))) as stream:
                self._unpack(stream)
        else:
            self._unpack(self.blocks)

    def _unpack(self, source: ArchiveBlocks | ZstdStream) -> None:
        try:
            unpack(source, self._folder, self._place)
        finally:
            self._check(source)

    def _check(self, source: ArchiveBlocks | ZstdStream) -> None:
        """Take the rest. Raises ArchiveError for an archive other than the one sent, instead of other errors."""
        if source.digest() != self._digest:
            raise ArchiveError("it was altered on the way, or a file changed while it was read")

    def drain(self) -> None:
        """Take the blocks that are left."""
        self.blocks.digest()


class Forwarding(_Worker):
    """The passage of an archive to the next host."""

    def __init__(self, successors: Successors, digest: str) -> None:
        super().__init__()
        self._successors, self._digest = successors, digest
        self.blocks: queue.Queue[bytes] = queue.Queue(DEPTH)
        self._ended = False
        self.start()

    def work(self) -> None:
        """Send all blocks."""
        with contextlib.closing(self._successors.take(self._digest)) as link:
            while block := self._next():
                link.sendall(block)

    def drain(self) -> None:
        """Take the blocks that are left."""
        while not self._ended:
            self._next()

    def _next(self) -> bytes:
        block = self.blocks.get()
        self._ended = block == END
        return block


def relay(source: socket.socket, size: int | None, extraction: Extraction, forwarding: Forwarding | None) -> None:
    """Pass an archive from a connection on to the disk and to the next host, block by block.

    Args:
        source: The connection.
        size: The bytes to receive; None: up to its end, where the archive is compressed.
        extraction: The way to the disk.
        forwarding: The way to the next host; None: there is none.

    Raises:
        ArchiveError, OSError: The archive could not be extracted.
        LinkError: The connection ended early.
    """
    sinks: list[Any] = [extraction.blocks] if forwarding is None else [extraction.blocks, forwarding.blocks]
    error: Exception | None = None
    try:
        for block in _receive(source, size):
            for sink in sinks:
                sink.put(block)
    except (OSError, LinkError) as failure:
        error = failure
    for sink in sinks:
        sink.put(END)
    for worker in (extraction, forwarding):
        if worker is not None:
            worker.join()
    if error is not None or extraction.error is not None:
        raise error or extraction.error or LinkError("")


def _receive(source: socket.socket, size: int | None) -> Iterator[bytes]:
    """Yield the blocks of an archive of some size, or up to the end. Raises LinkError where it ends early."""
    left = size
    while left != 0:
        block = source.recv(BLOCK if left is None else min(BLOCK, left))
        if not block and left is None:
            return
        if not block:
            raise LinkError("the connection from the host before it ended early")
        left = None if left is None else left - len(block)
        yield block
