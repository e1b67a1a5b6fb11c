"""A FUSE file system without writes whose metadata operations take a time, one at a time over all such servers.

    python metadata_server.py ROOT MOUNT STATE [rw]

MOUNT shows the files below ROOT, as a client of a shared file system sees them: with caches of its own. STATE is a
file that all servers share; its first 8 bytes count the operations, and its second 8 bytes are the time of each in
microseconds. With `rw`, files can be opened to be locked, and get other times.
"""

import errno
import fcntl
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator

import mfusepy

STATE = struct.Struct("QQ")
CACHE_SECONDS = 3600
FIELDS = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")
TIMES = ("st_mtime", "st_ctime", "st_atime")


class SharedFiles(mfusepy.Operations):  # type: ignore[misc] # untyped where it is not installed
    """The operations of the file system."""

    use_ns = True

    def __init__(self, root: str, state: str) -> None:
        """Open the state."""
        self._root = root
        self._lock = os.open(state, os.O_RDWR)
        self._state = mmap.mmap(self._lock, STATE.size)

    def _wait(self, path: str) -> str:
        """Let an operation take its time, while no other server has one; return the file below the root."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            count, microseconds = STATE.unpack(self._state[:])
            self._state[:] = STATE.pack(count + 1, microseconds)
            time.sleep(microseconds / 1e6)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        return self._root + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:  # noqa: ARG002 - FUSE's arguments
        """Return the attributes of a file, as a lookup asks for them."""
        try:
            status = os.lstat(self._wait(path))
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno or errno.EIO) from error
        times = {name: getattr(status, f"{name}_ns") for name in TIMES}
        return {name: getattr(status, name) for name in FIELDS} | times

    def readlink(self, path: str) -> str:
        """Return the target of a link."""
        return os.readlink(self._wait(path))

    def readdir(self, path: str, fh: int) -> Iterator[str]:  # noqa: ARG002 - as above
        """Yield the names in a folder."""
        yield from (".", "..", *os.listdir(self._wait(path)))

    def open(self, path: str, flags: int) -> int:
        """Open a file."""
        return os.open(self._wait(path), flags)

    def utimens(self, path: str, times: tuple[int, int]) -> None:
        """Set the times of a file."""
        os.utime(self._wait(path), ns=times)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:  # noqa: ARG002 - as above
        """Read from a file; this is not a metadata operation."""
        return os.pread(fh, size, offset)

    def release(self, path: str, fh: int) -> int:  # noqa: ARG002 - as above
        """Close a file."""
        os.close(fh)
        return 0


if __name__ == "__main__":
    mfusepy.FUSE(
        SharedFiles(sys.argv[1], sys.argv[3]), sys.argv[2], foreground=True, nothreads=True, allow_other=True,
        default_permissions=True, entry_timeout=CACHE_SECONDS, attr_timeout=CACHE_SECONDS,
        negative_timeout=CACHE_SECONDS, kernel_cache=True, **({} if sys.argv[4:] else {"ro": True}),
    )  # fmt: skip
