"""The modules of agents and keepers as a zip archive, for hosts without ddlrun."""

from __future__ import annotations

import os

from ddlrun.agent.tasks import TASKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BASE = ("__init__.py", "errors.py", "ranges.py", "wire")
PARTS = (*BASE, "agent", "keeper", *dict.fromkeys(part for parts in TASKS.values() for part in parts))

# The program that receives the archive and runs the agent in it. The archive lasts as long as the agent. It must arrive
# within a minute, as a host whose network fails is not told that no more will come.
BOOTSTRAP = """
import os, sys
from _signal import alarm
if sys.version_info < (3, 8):
    own = sys.version.split()[0]
    sys.exit("ddlrun: %s: %s is Python %s, and agents need 3.8 or later" % (os.uname()[1], sys.executable, own))
os.write(1, b"@ddlrun-agent archive\\n")
alarm(60)
def read(number):
    data = b""
    while len(data) < number:
        more = os.read(0, number - len(data))
        if not more:
            sys.exit(1)
        data += more
    return data
size = b""
while size[-1:] != b"\\n":
    size += read(1)
archive = os.memfd_create("ddlrun")
os.write(archive, read(int(size)))
sys.path.insert(0, "/proc/self/fd/%d" % archive)
from ddlrun.agent.main import main
main(sys.argv[2:], archive)
"""


def build_archive(parts: Sequence[str] = PARTS) -> bytes:
    """Return an archive of modules and folders; an agent that runs from one returns that."""
    root = os.path.dirname(PACKAGE)
    if os.path.isfile(root):
        with open(root, "rb") as file:
            return file.read()
    import io  # noqa: PLC0415 - for hosts without ddlrun alone
    import zipfile  # noqa: PLC0415 - the same

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _list_modules(parts):
            archive.write(path, os.path.relpath(path, root))
    return buffer.getvalue()


def _list_modules(parts: Sequence[str]) -> list[str]:
    paths = []
    for part in parts:
        path = os.path.join(PACKAGE, part)
        if part.endswith(".py"):
            paths.append(path)
        for folder, _, names in os.walk(path):
            paths += [os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")]
    return [*dict.fromkeys(paths)]  # tasks may need modules of agents
