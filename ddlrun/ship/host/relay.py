"""The passage of an archive through a host: from the host before it in the chain to the disk and to the next host."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import shutil
import subprocess
import threading

from ddlrun.ship.host.link import LinkError
from ddlrun.ship.host.protocol import ARCHIVE
from ddlrun.ship.host.unpack import BLOCK, ArchiveError, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ddlrun.ship.host.link import HostLink, Successors
    from ddlrun.wire.frames import Bytes

# The blocks that wait for the disk.
DEPTH = 32


def has_zstd() -> bool:
    """Return True if the program zstd is installed here, by which archives are compressed on their way."""
    return shutil.which("zstd") is not None


class BlockQueue:
    """The blocks of an archive between two threads; an empty one is the last."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Bytes] = queue.Queue(DEPTH)
        self._rest = memoryview(b"")
        self._ended = False
        self.put = self._queue.put

    def end(self) -> None:
        """Add no more blocks."""
        self.put(b"")

    def read(self, most: int) -> Bytes:
        """Return the next bytes, at most some; none at the end."""
        if not self._rest and not self._ended:
            self._rest = memoryview(self._queue.get())
            self._ended = not self._rest
        data, self._rest = self._rest[:most], self._rest[most:]
        return data

    def close(self) -> None:
        """Do nothing more."""


class Decompression:
    """A zstd process between two threads."""

    def __init__(self) -> None:
        """Start the process. Raises OSError."""
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._process: Any = subprocess.Popen(["zstd", "-q", "-d", "-c"], stdin=pipe, stdout=pipe, stderr=null)  # noqa: S607

    def read(self, most: int) -> Bytes:
        """Return the next bytes, at most some; none at the end."""
        data: bytes = self._process.stdout.read(most)
        return data

    def put(self, block: Bytes) -> None:
        """Add a block. Where zstd has ended, the hash of the archive will be wrong."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(block)

    def end(self) -> None:
        """Add no more blocks."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """End the process."""
        self._process.stdout.close()
        self._process.wait()


class Extraction(threading.Thread):
    """The extraction of an archive into a new folder, in a thread, and the check of its hash."""

    def __init__(self, folder: str, digest: str, *, place: str, compressed: bool = False) -> None:
        """Start; `place` is the path that the folder will have."""
        super().__init__(daemon=True)
        self._folder, self._digest, self._place = folder, digest, place
        self._blocks: BlockQueue | Decompression = Decompression() if compressed else BlockQueue()
        self._hash = hashlib.sha256()
        self.put, self.end = self._blocks.put, self._blocks.end
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Extract the archive; after an error take the rest, which goes to the next host, too."""
        try:
            unpack(self, self._folder, self._place)
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.error = error
        while self.read(BLOCK):
            pass
        self._blocks.close()
        if self._hash.hexdigest() != self._digest:
            self.error = ArchiveError("it was altered on the way, or a file changed while it was read")

    def read(self, most: int) -> Bytes:
        """Return the next bytes of the archive, at most some; none at the end."""
        data = self._blocks.read(most)
        self._hash.update(data)
        return data


class Forwarding:
    """The passage of an archive to the next host, which fails alone: that host reports why."""

    def __init__(self, successors: Successors, digest: str) -> None:
        self._successors, self._digest = successors, digest
        self._link: HostLink | None = None
        self._failed = False

    def put(self, block: Bytes) -> None:
        """Send a block, the first one when the next host has connected."""
        try:
            if self._link is None and not self._failed:
                self._link = self._successors.take(self._digest)
                self._link.send(ARCHIVE)
            if self._link is not None:
                self._link.socket.sendall(block)
        except (OSError, LinkError):
            self._failed = True
            self.end()

    def end(self) -> None:
        """Send no more blocks."""
        if self._link is not None:
            self._link.close()
            self._link = None


def relay(blocks: Iterable[Bytes], extraction: Extraction, forwarding: Forwarding | None) -> None:
    """Pass an archive on to the disk and to the next host, block by block.

    Raises:
        ArchiveError, OSError: The archive could not be extracted.
        LinkError: The connection ended early.
    """
    sinks: list[Any] = [extraction] if forwarding is None else [extraction, forwarding]
    try:
        for block in blocks:
            for sink in sinks:
                sink.put(block)
    finally:
        for sink in sinks:
            sink.end()
        extraction.join()
    if extraction.error is not None:
        raise extraction.error
