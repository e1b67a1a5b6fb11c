"""The task that receives a job's files on a host, passes them on, and sends its results back."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from ddlrun.ship.host.link import CLAIM, NO_ARCHIVE, LinkError, RemoteEnd, Successors
from ddlrun.ship.host.relay import Extraction, Forwarding, has_zstd, relay
from ddlrun.ship.host.results import list_results, send_results
from ddlrun.ship.host.store import Store, StoreError, remove_tree
from ddlrun.ship.host.unpack import ArchiveError
from ddlrun.wire.authentication import Secret
from ddlrun.wire.frames import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# The time in which an interpreter has to print its version.
PYTHON_SECONDS = 20.0


class HostState(NamedTuple):
    """The state of a host before the transfer."""

    error: str = ""
    """The reason why it cannot receive files."""
    missing: tuple[str, ...] = ()
    """The hashes of the archives that are not there."""
    free: int = 0
    version: tuple[int, ...] = ()
    """That of the interpreter which an environment needs; empty: there is none, or it needs none."""
    glibc: tuple[int, ...] = ()
    zstd: bool = False
    """Whether it has the program zstd."""


def main(task: Mapping[str, Any]) -> dict[str, Any]:
    """Do the task; return the report."""
    try:
        return ACTIONS[task["action"]](task)
    except (LinkError, FrameError, StoreError, ArchiveError) as error:
        return {"error": str(error)}
    except ConnectionError:
        return {"error": "the connection was closed"}
    except OSError as error:
        return {"error": describe_error(error, task["folder"])}


def _examine(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of this host. If no archive is missing, make the folder of the run."""
    try:
        store = Store(task["folder"])
        missing = _prepare(store, task["sources"], may_remove=not task["only_check"])
    except (OSError, StoreError) as error:
        return {"state": HostState(describe_error(error, task["folder"]))}
    if not (missing or task["only_check"]):
        _make_run(store, task)
    state = HostState("", tuple(missing), store.free, python_version(task["interpreter"]), glibc(), has_zstd())
    return {"state": state}


def _receive(task: Mapping[str, Any]) -> dict[str, Any]:
    """Receive the archives that are not here yet, pass them on, and make the folder of the run."""
    store, launcher = Store(task["folder"]), _launcher(task)
    with contextlib.closing(launcher.reach()) as link:
        successors = Successors(link, launcher.secret)
    with contextlib.closing(successors):
        for transfer in task["transfers"]:
            _take(store, transfer, task, successors)
    _make_run(store, task)
    return {}


def _launcher(task: Mapping[str, Any]) -> RemoteEnd:
    return RemoteEnd(task["addresses"], task["port"], Secret(task["secret"]))


def _make_run(store: Store, task: Mapping[str, Any]) -> None:
    store.make_run(task["run"], task["working_folder"], task["sources"], task["fetched"])


def _prepare(store: Store, sources: list[dict[str, Any]], *, may_remove: bool) -> list[str]:
    """Return the hashes of the archives that are not here; make room for them where old ones may be removed."""
    if may_remove:
        store.remove_old()
    missing = store.missing(source["digest"] for source in sources)
    if may_remove:
        store.make_room(sum(source["space"] for source in sources if source["digest"] in missing))
    return missing


def _take(store: Store, transfer: Mapping[str, Any], task: Mapping[str, Any], successors: Successors) -> None:
    """Receive one archive and pass it on."""
    digest, compressed, launcher = transfer["digest"], transfer["compressed"], _launcher(task)
    claim = CLAIM.pack(bytes.fromhex(digest), task["number"], successors.port)
    folder = store.incoming(digest)
    try:
        link, before = launcher.open(claim)
        if before is not None:
            link.close()
            link, _ = RemoteEnd([before[0]], before[1], launcher.secret).open(claim)
        with contextlib.closing(link):
            extraction = Extraction(folder, digest, place=store.object(digest), compressed=compressed)
            forwarding = Forwarding(successors, digest) if transfer["passes_on"] else None
            relay(link.blocks(None if compressed else transfer["size"]), extraction, forwarding)
        store.put(folder, digest)
    finally:
        if os.path.isdir(folder):
            remove_tree(folder)


def _clean(task: Mapping[str, Any]) -> dict[str, Any]:
    """Remove files that no run has used for some time."""
    if not os.path.isdir(task["folder"]):
        return {"removed": 0, "left": 0, "stuck": []}
    store = Store(task["folder"])
    removed, left = store.remove_old(task["days"], task["most_bytes"])
    return {"removed": removed, "left": left, "stuck": store.stuck}


def _send(task: Mapping[str, Any]) -> dict[str, Any]:
    """Send the files that ranks of a run wrote in their working folder; return their hash, and which did not come."""
    store = Store(task["folder"])
    folder = store.run(task["run"]) + task["working_folder"]
    results = list_results(folder, task["paths"], store.shipped(task["run"]))
    link, _ = _launcher(task).open(CLAIM.pack(NO_ARCHIVE, task["number"], 0))
    with contextlib.closing(link):
        return {"end": send_results(link, folder, results)}


def describe_error(error: Exception, folder: str) -> str:
    """Return an error in words, with its file, else the folder."""
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or folder}: {error.strerror or error}"


def python_version(interpreter: str) -> tuple[int, ...]:
    """Return the version of an interpreter on this host; empty if there is none."""
    if not interpreter:
        return ()
    import subprocess  # noqa: PLC0415 - 3 ms, for environments alone

    argv = [interpreter, "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        version = subprocess.check_output(argv, stdin=subprocess.DEVNULL, timeout=PYTHON_SECONDS)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(map(int, version.split()))


def glibc() -> tuple[int, ...]:
    """Return the version of the C library; empty if it is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return ()
    return tuple(map(int, version.split("."))) if name == "glibc" else ()


ACTIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "examine": _examine, "receive": _receive, "clean": _clean, "send": _send,
}  # fmt: skip
