"""The files that ranks wrote on the hosts, as they come back; what hosts send is checked, and waits in a folder."""

import hashlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddlrun.remote.probe import ProbeTarget
from ddlrun.ship.host.link import LinkError, MessageError, receive_exactly, receive_message, send_message
from ddlrun.ship.host.results import (
    DIGEST_BYTES,
    LARGEST_NUMBER,
    LONGEST_NAME,
    MOST_NAMED,
    WHOLE,
    is_left_out,
    is_wanted,
    shorten,
)
from ddlrun.ship.host.unpack import BLOCK
from ddlrun.ship.link_server import LinkServer
from ddlrun.ship.request import ShipRequest
from ddlrun.ship.script import run_tasks
from ddlrun.wording import printable, printable_line

LONGEST_MANIFEST = 1 << 28
LONGEST_PATH = 4096


class ResultError(Exception):
    """A host sent what is not accepted; the text says what."""


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file of a host, as it was received."""

    host: str
    path: str
    """Its path relative to the working folder."""
    mode: int
    mtime: int
    """In nanoseconds."""
    size: int
    received: str
    """The path of the file that has its content."""


@dataclass(frozen=True, slots=True)
class Received:
    """What hosts have sent."""

    files: Sequence[ResultFile]
    problems: Mapping[str, Sequence[str]]
    """Host -> what did not come, and why."""
    left: Mapping[str, Sequence[str]]
    """Host -> files that are never copied back, such as links, and why."""


@dataclass(frozen=True, slots=True)
class FetchTask:
    """The run whose results come back."""

    request: ShipRequest
    run_id: str
    python: str
    """The Python under which hosts send files, where they have it."""
    hosts: Sequence[str]
    addresses: Sequence[str]
    """ddlrun's own addresses."""
    folder: str
    """The folder in which files are received."""


def receive_results(task: FetchTask, reach: ProbeTarget) -> Received:
    """Receive the wanted files of all hosts; the files of a host that fails are left out."""
    secret = os.urandom(32).hex()
    server = ResultServer(task, secret)
    body = {
        "action": "send",
        "folder": task.request.folder,
        "run": task.run_id,
        "working_folder": task.request.working_folder,
        "paths": list(task.request.fetched),
        "secret": secret,
        "addresses": list(task.addresses),
        "port": server.port,
    }
    server.accept_hosts()
    try:
        reports = run_tasks({host: {**body, "host": host} for host in task.hosts}, task.python, reach)
    finally:
        server.close()
    problems = {host: list(server.unreadable.get(host, ())) for host in task.hosts}
    for host, report in reports.items():
        if host not in server.files:
            own = printable_line(str(report.get("error", "the connection was closed")))
            problems[host].append(server.failures.get(host, own))
    files = [file for host in task.hosts for file in server.files.get(host, ())]
    return Received(files, {host: lines for host, lines in problems.items() if lines}, server.left)


class ResultServer(LinkServer):
    """The threads that receive the files of hosts."""

    def __init__(self, task: FetchTask, secret: str) -> None:
        """Listen."""
        super().__init__(secret, task.addresses, len(task.hosts))
        self._task = task
        self._waiting = set(task.hosts)
        self._free = shutil.disk_usage(task.folder).free
        self._lock = threading.Lock()
        self.files: dict[str, list[ResultFile]] = {}
        self.unreadable: dict[str, list[str]] = {}
        self.left: dict[str, list[str]] = {}
        self.failures: dict[str, str] = {}

    def serve(self, link: socket.socket, address: str, body: Mapping[str, Any]) -> None:  # noqa: ARG002 - see LinkServer
        """Receive the files of a host, once."""
        host = str(body.get("host"))
        with self._lock:
            if host not in self._waiting:
                return
            self._waiting.remove(host)
            folder = f"{self._task.folder}/{len(self._waiting)}"
        try:
            self.unreadable[host] = _render_reasons(body["unreadable"])
            self.left[host] = _render_reasons(body["left"])
            os.mkdir(folder)
            send_message(link, {"ready": True})
            files = self._receive(link, host, folder)
            send_message(link, {"received": True})
            self.files[host] = files
        except (OSError, ResultError, MessageError) as error:
            self.failures[host] = str(error)
        except (LinkError, KeyError, TypeError, ValueError):
            return  # the host reports what went wrong

    def _receive(self, link: socket.socket, host: str, folder: str) -> list[ResultFile]:
        """Receive all files of a host. Raises ResultError for what is not accepted."""
        manifest = receive_message(link, LONGEST_MANIFEST)
        files = parse_manifest(manifest, host, folder, self._task.request.fetched)
        self._reserve(sum(file.size for file in files))
        digest = hashlib.sha256(manifest)
        whole: list[ResultFile] = []
        broken: list[ResultFile] = []
        for file in files:
            (whole if _receive_file(link, file, digest) else broken).append(file)
        if receive_exactly(link, DIGEST_BYTES) != digest.digest():
            raise ResultError("its files were altered on the way")
        reasons = shorten([(file.path, "it became shorter while it was read") for file in broken])
        self.unreadable[host] += _render_reasons(reasons)
        return whole

    def _reserve(self, size: int) -> None:
        with self._lock:
            if size > self._free:
                raise ResultError(f"its files have {size} bytes, and here are {self._free} free")
            self._free -= size


def _render_reasons(rows: Sequence[Sequence[object]]) -> list[str]:
    """Render the paths that a host has named, and the reasons."""
    return [
        f"{str(path)[:LONGEST_NAME]!a}: {printable_line(str(reason)[:LONGEST_NAME])}"
        for path, reason in list(rows)[: MOST_NAMED + 1]
    ]


def parse_manifest(text: bytes, host: str, folder: str, wanted: Sequence[str]) -> list[ResultFile]:
    """Return the files of a host, which will be received in a folder.

    Raises ResultError for a path that is not wanted or leads out of the working folder, and for anything else that no
    ddlrun sends.
    """
    try:
        rows = json.loads(text)
        files = [
            ResultFile(
                host=host,
                path=_check_path(path, wanted),
                mode=_check_number(mode) & 0o777,
                mtime=_check_number(mtime),
                size=_check_number(size),
                received=f"{folder}/{number}",
            )
            for number, (path, mode, mtime, size) in enumerate(rows)
        ]
    except (ValueError, TypeError, RecursionError) as error:
        raise ResultError("its list of files cannot be read") from error
    if len({file.path for file in files}) < len(files):
        raise ResultError("its list of files names one twice")
    return files


def _check_path(path: object, wanted: Sequence[str]) -> str:
    """Return a path from a host. Raises ResultError where it is not one of a wanted file in the working folder."""
    if not isinstance(path, str):
        raise ResultError("its list of files cannot be read")
    parts = path.split("/")
    wrong = {"", ".", ".."}.intersection(parts) or any(map(is_left_out, parts))
    length = len(path.encode("utf-8", "surrogateescape"))
    if wrong or "\0" in path or length > LONGEST_PATH or not is_wanted(path, wanted):
        raise ResultError(f"it sent the path {printable(ascii(path[:200]))}, which was not asked for")
    return path


def _check_number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_NUMBER:
        raise ResultError("its list of files has a wrong number")
    return value


def _receive_file(link: socket.socket, file: ResultFile, digest: "hashlib._Hash") -> bool:
    """Receive a file; return whether the host could read all of it."""
    left = file.size
    opened = os.open(file.received, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
    with open(opened, "wb") as target:
        while left:
            block = link.recv(min(left, BLOCK))
            if not block:
                raise LinkError("the connection was closed")
            digest.update(block)
            target.write(block)
            left -= len(block)
    os.utime(file.received, ns=(file.mtime, file.mtime))
    state = receive_exactly(link, len(WHOLE))
    digest.update(state)
    return state == WHOLE
