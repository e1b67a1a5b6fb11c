"""The program that receives a job's files on a host, passes them on, and sends its results back."""

from __future__ import annotations

import json
import os
import sys

from ddlrun.ship.host.link import GREETING_SECONDS, LinkError, connect, listen, prove, reach, receive_message
from ddlrun.ship.host.relay import Extraction, Forwarding, Successors, relay
from ddlrun.ship.host.results import list_results, send_results, shorten
from ddlrun.ship.host.store import Store, StoreError, remove_tree
from ddlrun.ship.host.unpack import ArchiveError
from ddlrun.ship.host.zstd import has_zstd

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any

MARK = "@ship "


def main(text: str) -> None:
    """Do the task that ddlrun has sent, and print the report as a line of JSON."""
    task = json.loads(text)
    try:
        report = ACTIONS[task["action"]](task)
    except (LinkError, StoreError, ArchiveError) as error:
        report = {"error": str(error)}
    except OSError as error:
        report = {"error": describe_error(error, task["folder"])}
    sys.stdout.write(f"{MARK}{json.dumps(report)}\n")


def _receive(task: Mapping[str, Any]) -> dict[str, Any]:
    """Receive the files that are not here yet, and make the folder of the run."""
    sources = task["sources"]
    digests = [source["digest"] for source in sources]
    try:
        store = Store(task["folder"])
        missing = _prepare(store, sources, may_remove=not task["only_check"])
    except (OSError, StoreError) as error:
        return _report_error(task, error)
    control = reach(task["addresses"], task["port"])
    with listen(control) as listener:
        successors = Successors(listener, task["secret"])
        hello = {
            "host": task["host"], "missing": missing, "free": store.free, "port": listener.getsockname()[1],
            "python": sys.executable, "version": list(sys.version_info[:2]), "glibc": glibc(),
            "zstd": has_zstd(),
        }  # fmt: skip
        reply = _greet(control, task, hello)
        for transfer in reply["transfers"]:
            _take(store, task, transfer, successors)
    if not reply["stop"]:
        store.note_objects(task["run"], digests)
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


def _greet(control: socket.socket, task: Mapping[str, Any], hello: Mapping[str, Any]) -> dict[str, Any]:
    """Report this host's state to ddlrun; return its reply, which waits for all hosts.

    Where a message was altered on the way, this host reports once more: others wait for it.
    """
    try:
        return _ask(control, task, hello)
    except (LinkError, ConnectionResetError):
        return _ask(reach(task["addresses"], task["port"]), task, hello)


def _ask(control: socket.socket, task: Mapping[str, Any], hello: Mapping[str, Any]) -> dict[str, Any]:
    with control:
        prove(control, task["secret"], hello)
        control.settimeout(task["seconds"] + GREETING_SECONDS)
        reply: dict[str, Any] = json.loads(receive_message(control))
    return reply


def _report_error(task: Mapping[str, Any], error: Exception) -> dict[str, Any]:
    """Report that this host cannot receive files, so that the others do not wait for it."""
    text = describe_error(error, task["folder"])
    _greet(reach(task["addresses"], task["port"]), task, {"host": task["host"], "error": text})
    return {"error": text}


def _take(store: Store, task: Mapping[str, Any], transfer: Mapping[str, Any], successors: Successors) -> None:
    """Receive one archive and pass it on."""
    digest = transfer["digest"]
    body = {"digest": digest}
    folder = store.incoming(digest)
    try:
        with connect(transfer["addresses"], transfer["port"], task["secret"], body) as source:
            forwarding = Forwarding(successors, digest) if transfer["passes_on"] else None
            compressed = transfer["compressed"]
            extraction = Extraction(folder, digest, place=store.object(digest), compressed=compressed)
            relay(source, None if compressed else transfer["size"], extraction, forwarding)
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
    hello = {"host": task["host"], "unreadable": shorten(results.unreadable), "left": shorten(results.left)}
    with connect(task["addresses"], task["port"], task["secret"], hello) as link:
        send_results(link, folder, results.rows)
    return {}


def describe_error(error: Exception, folder: str) -> str:
    """Return an error in words, with its file, else the folder."""
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or folder}: {error.strerror or error}"


def glibc() -> list[int]:
    """Return the version of the C library; empty if it is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return []
    return [int(number) for number in version.split(".")] if name == "glibc" else []


ACTIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "receive": _receive, "clean": _clean, "send": _send,
}  # fmt: skip
