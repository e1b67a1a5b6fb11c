"""Temporary folders that are removed even if this process is killed."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

# Removes a folder when its standard input ends.
REMOVE = 'trap "" INT TERM HUP; read _; rm -rf "$1"'


@contextmanager
def temporary_folder(prefix: str, above: str | None = None) -> Iterator[str]:
    """Provide a new folder, which only this user can read, and remove it at the end. Raises OSError.

    A process with a session of its own removes it. It waits for the end of a pipe from this process.
    """
    folder = tempfile.mkdtemp(prefix=prefix, dir=above)
    with subprocess.Popen(  # noqa: S603 - a constant script
        ["/bin/sh", "-c", REMOVE, "sh", folder], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    ):  # fmt: skip
        yield folder
