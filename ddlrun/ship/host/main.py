"""The task that receives a job's files on a host, passes them on, and sends its results back."""

from __future__ import annotations

import contextlib
import json
import os

from ddlrun.ship.host.link import LinkError, RemoteEnd, Successors
from ddlrun.ship.host.protocol import (
    ARCHIVE,
    HANDSHAKE_SECONDS,
    OFFER,
    READY,
    STATE,
    TRANSFERS,
    HostState,
    Offer,
    Transfer,
)
from ddlrun.ship.host.relay import Extraction, Forwarding, has_zstd, relay
from ddlrun.ship.host.results import list_results, send_results, shorten
from ddlrun.ship.host.store import Store, StoreError, remove_tree
from ddlrun.ship.host.unpack import ArchiveError
from ddlrun.wire.frames import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# The time in which an interpreter has to print its version.
PYTHON_SECONDS = 20.0


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


def _receive(task: Mapping[str, Any]) -> dict[str, Any]:
    """Receive the files that are not here yet, and make the folder of the run."""
    sources, launcher = task["sources"], RemoteEnd(task["addresses"], task["port"], task["secret"])
    seconds = task["seconds"] + HANDSHAKE_SECONDS  # the reply waits for all hosts
    try:
        store = Store(task["folder"])
        missing = _prepare(store, sources, may_remove=not task["only_check"])
    except (OSError, StoreError) as error:
        text = describe_error(error, task["folder"])
        launcher.ask(TRANSFERS, STATE, HostState(task["host"], text), seconds=seconds)
        return {"error": text}
    link = launcher.connect()
    with contextlib.closing(Successors(link.socket, task["secret"])) as successors:
        state = HostState(
            host=task["host"], port=successors.port, missing=tuple(missing), free=store.free,
            version=python_version(task["interpreter"]), glibc=glibc(), zstd=has_zstd(),
        )  # fmt: skip
        link, reply = launcher.ask(TRANSFERS, STATE, state, seconds=seconds, link=link)
        link.close()
        transfers, stop = json.loads(reply)
        for transfer in map(Transfer._make, transfers):
            _take(store, transfer, task["secret"], successors)
    if not stop:
        store.make_run(task["run"], task["working_folder"], sources, task["fetched"])
    return {}


def _prepare(store: Store, sources: list[dict[str, Any]], *, may_remove: bool) -> list[str]:
    """Return the hashes of the archives that are not here; make room for them where old ones may be removed."""
    if may_remove:
        store.remove_old()
    missing = store.missing(source["digest"] for source in sources)
    if may_remove:
        store.make_room(sum(source["space"] for source in sources if source["digest"] in missing))
    return missing


def _take(store: Store, transfer: Transfer, secret: str, successors: Successors) -> None:
    """Receive one archive and pass it on."""
    digest, compressed = transfer.digest, transfer.compressed
    folder = store.incoming(digest)
    try:
        link, _ = RemoteEnd(transfer.addresses, transfer.port, secret, bytes.fromhex(digest)).ask(ARCHIVE)
        with contextlib.closing(link):
            extraction = Extraction(folder, digest, place=store.object(digest), compressed=compressed)
            forwarding = Forwarding(successors, digest) if transfer.passes_on else None
            relay(link.blocks(None if compressed else transfer.size), extraction, forwarding)
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
    """Send the files that ranks of a run wrote in their working folder."""
    store = Store(task["folder"])
    folder = store.run(task["run"]) + task["working_folder"]
    results = list_results(folder, task["paths"], store.shipped(task["run"]))
    offer = Offer(task["host"], shorten(results.unreadable), shorten(results.left))
    link, _ = RemoteEnd(task["addresses"], task["port"], task["secret"]).ask(READY, OFFER, offer)
    with contextlib.closing(link):
        send_results(link, folder, results.rows)
    return {}


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
    "receive": _receive, "clean": _clean, "send": _send,
}  # fmt: skip
