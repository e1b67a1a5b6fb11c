"""The passage of an archive through a host: from the host before it in the chain to the disk and to the next host."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import shutil
import threading

from ddlrun.ship.host.link import HERE, LinkError
from ddlrun.ship.host.unpack import BLOCK, ArchiveError, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable
    from typing import Any

    from ddlrun.ship.host.link import HostLink, Successors
    from ddlrun.wire.frames import Bytes

# The blocks that wait for the disk.
DEPTH = 32


def has_zstd() -> bool:
    """Return True if the program zstd is installed here, by which archives are compressed on their way."""
    return shutil.which("zstd") is not None


class Extraction(threading.Thread):
    """The extraction of an archive into a new folder, in a thread, and the check of its hash."""

    def __init__(self, folder: str, digest: str, *, place: str, compressed: bool = False) -> None:
        """Start; `place` is the path that the folder will have. Raises OSError."""
        super().__init__(daemon=True)
        self._folder, self._digest, self._place = folder, digest, place
        self._zstd: Any = _start_zstd() if compressed else None
        self._queue: queue.Queue[Bytes] = queue.Queue(DEPTH)
        self._rest, self._ended = memoryview(b""), False
        self._hash = hashlib.sha256()
        self.error: Exception | None = None
        self.start()

    def put(self, block: Bytes) -> None:
        """Add a block; an empty one is the last. Where zstd has ended, the hash of the archive will be wrong."""
        if self._zstd is None:
            self._queue.put(block)
            return
        with contextlib.suppress(BrokenPipeError):
            if block:
                self._zstd.stdin.write(block)
            else:
                self._zstd.stdin.close()

    def run(self) -> None:
        """Extract the archive; after an error take the rest, which goes to the next host, too."""
        try:
            unpack(self, self._folder, self._place)
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.error = error
        while self.read(BLOCK):
            pass
        if self._zstd is not None:
            self._zstd.stdout.close()
            self._zstd.wait()
        if self._hash.hexdigest() != self._digest:
            self.error = ArchiveError("it was altered on the way, or a file changed while it was read")

    def read(self, most: int) -> Bytes:
        """Return the next bytes of the archive, at most some; none at the end."""
        if not self._rest and not self._ended:
            block = self._queue.get() if self._zstd is None else self._zstd.stdout.read(BLOCK)
            self._hash.update(block)
            self._rest, self._ended = memoryview(block), not block
        data, self._rest = self._rest[:most], self._rest[most:]
        return data


def _start_zstd() -> subprocess.Popen[bytes]:
    import subprocess  # noqa: PLC0415 - 3 ms, for compressed archives alone

    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(["zstd", "-q", "-d", "-c"], stdin=pipe, stdout=pipe, stderr=null)  # noqa: S607


class Forwarding:
    """The passage of an archive to the next host, which fails alone: that host reports why."""

    def __init__(self, successors: Successors, digest: str) -> None:
        self._successors, self._digest = successors, digest
        self._link: HostLink | None = None
        self._failed = False

    def put(self, block: Bytes) -> None:
        """Send a block, the first one when the next host has connected; an empty one is the last."""
        if not block and self._link is not None:
            self._link.close()
        if not block or self._failed:
            return
        try:
            if self._link is None:
                self._link = self._successors.take(self._digest)
                self._link.send(HERE)
            self._link.socket.sendall(block)
        except (OSError, LinkError):
            self._failed = True
            self.put(b"")


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
            sink.put(b"")
        extraction.join()
    if extraction.error is not None:
        raise extraction.error
