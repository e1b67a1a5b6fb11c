"""Trees of /proc and /sys, of which some have thousands of files: the tests of a process share them, and only read."""

import os
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal

from tests.machines.facts import load
from tests.machines.render_sysfs import write_sysfs


@cache
def described_tree(name: str, *, cgroup: Literal[1, 2] = 2) -> Path:
    """Return the root of a described machine's tree."""
    return write_sysfs(load(name), _folder(), cgroup=cgroup)


@cache
def captured_tree(archive: Path) -> Path:
    """Return the root of one of hwloc's trees, unpacked."""
    folder = _folder()
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # Debian 12's Python has none
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)  # noqa: S202 - hwloc's own test data
    root = next(folder.iterdir())
    for path in root.rglob("*"):  # some captures are filled up with NUL bytes, which grep calls binary
        if path.is_file() and b"\0" in (content := path.read_bytes()):
            path.chmod(0o644)
            path.write_bytes(content.replace(b"\0", b""))
    return root


def _folder() -> Path:
    """Return a new folder, which is removed at the end of the session."""
    return Path(tempfile.mkdtemp(prefix="ddlm", dir=os.environ["TMPDIR"]))
