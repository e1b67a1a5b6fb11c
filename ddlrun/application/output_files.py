"""Files that the user names for output: written whole or not at all."""

import os
import sys
from collections.abc import Iterable

from ddlrun.errors import InputError


def check_writable(path: str, option: str) -> None:
    """Raise InputError where `path` could not be written: before minutes of measuring are spent."""
    folder = os.path.dirname(path) or "."
    if path == "-":
        return
    if not os.path.isdir(folder):
        raise InputError(f"{option} {path}: there is no folder {folder}")
    special = os.path.exists(path) and not os.path.isfile(path)  # a device or a pipe
    if os.path.isdir(path) or not os.access(path if special else folder, os.W_OK):
        raise InputError(f"{option} {path}: no file can be written there")


def write_atomically(path: str, blocks: Iterable[str], option: str = "-o", *, private: bool = False) -> None:
    """Write blocks to a temporary file beside `path`, then rename it to `path`; only this user reads a `private` one.

    A device or a pipe is written to, never replaced; - is standard output. Raises InputError that names `option`.
    """
    if path == "-":
        sys.stdout.buffer.writelines(block.encode() for block in blocks)
        sys.stdout.flush()
        return
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(blocks)
        else:
            _replace(os.path.realpath(path), blocks, private=private)
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}") from error


def _replace(path: str, blocks: Iterable[str], *, private: bool) -> None:
    """Replace a file by one with the permissions that a new file has, or by a private one."""
    import tempfile  # noqa: PLC0415 - 2 ms, for output files alone

    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(blocks)
            if not private:
                umask = os.umask(0)
                os.umask(umask)
                os.fchmod(handle, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
