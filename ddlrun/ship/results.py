"""The files that ranks wrote on the hosts, as they come back; what hosts send is checked, and waits in a folder."""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddlrun.remote.probe import ProbeTarget
from ddlrun.ship.host.link import HostLink
from ddlrun.ship.host.protocol import END, FILES, OFFER, READY, RECEIVED, End, Offer, Row
from ddlrun.ship.host.results import LARGEST_NUMBER, LONGEST_NAME, MOST_NAMED, is_left_out, is_wanted, shorten
from ddlrun.ship.host_server import HostServer, receive
from ddlrun.ship.request import ShipRequest
from ddlrun.wire.frames import FrameError
from ddlrun.wording import printable, printable_line

LONGEST_PATH = 4096


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file of a host, as it was received."""

    host: str
    path: str
    """Its path relative to the working folder."""
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
    hosts: Sequence[str]
    addresses: Sequence[str]
    """ddlrun's own addresses."""
    folder: str
    """The folder in which files are received."""


def receive_results(task: FetchTask, reach: ProbeTarget) -> Received:
    """Receive the wanted files of all hosts; the files of a host that fails are left out."""
    body = {
        "action": "send",
        "folder": task.request.folder,
        "run": task.run_id,
        "working_folder": task.request.working_folder,
        "paths": task.request.fetched,
    }
    server = ResultServer(task)
    reports = server.run(body, reach)
    problems = {host: list(server.unreadable.get(host, ())) for host in task.hosts}
    for host, report in reports.items():
        if host not in server.files:
            own = printable_line(str(report.get("error", "the connection was closed")))
            problems[host].append(server.failures.get(host, own))
    files = [file for host in task.hosts for file in server.files.get(host, ())]
    return Received(files, {host: lines for host, lines in problems.items() if lines}, server.left)


class ResultServer(HostServer):
    """The connections of hosts that send their files."""

    def __init__(self, task: FetchTask) -> None:
        """Listen."""
        super().__init__(task.addresses, task.hosts)
        self._task = task
        self._waiting = set(task.hosts)
        self._receiving: set[str] = set()
        self._free = shutil.disk_usage(task.folder).free
        self.files: dict[str, list[ResultFile]] = {}
        self.unreadable: dict[str, list[str]] = {}
        self.left: dict[str, list[str]] = {}
        self.failures: dict[str, str] = {}

    def serve(self, link: HostLink, claim: bytes) -> None:  # noqa: ARG002 - see HostServer
        """Receive the files of a host, once; again if its connection breaks."""
        offer = receive(link, OFFER, Offer)
        host = offer.host
        with self.changed:
            self.changed.wait_for(lambda: host not in self._receiving or self.closing)
            if host not in self._waiting:
                return
            self._waiting.remove(host)
            self._receiving.add(host)
        try:
            self._take(link, offer)
        finally:
            with self.changed:
                self._receiving.remove(host)
                self.changed.notify_all()

    def _take(self, link: HostLink, offer: Offer) -> None:
        host, folder = offer.host, f"{self._task.folder}/{self._task.hosts.index(offer.host)}"
        self.unreadable[host], self.left[host] = map(_render_reasons, (offer.unreadable, offer.left))
        try:
            link.send(READY)
            self.files[host] = self._receive(link, host, folder)
        except ConnectionError:  # the host reports what went wrong, or is tried again
            shutil.rmtree(folder, ignore_errors=True)
            self._waiting.add(host)
            return
        except (OSError, FrameError) as error:
            self.failures[host] = str(error)
            return
        link.send(RECEIVED)

    def _receive(self, link: HostLink, host: str, folder: str) -> list[ResultFile]:
        """Receive the files of a host, without those that it could not read. Raises FrameError or OSError."""
        os.mkdir(folder)
        rows = receive(link, FILES, tuple[Row, ...])
        check_rows(rows, self._task.request.fetched)
        size = sum(row.size for row in rows)
        with self.changed:
            if size > self._free:
                raise FrameError(f"its files have {size} bytes, and here are {self._free} free")
            self._free -= size
        digest = _receive_contents(link, rows, folder)
        end = receive(link, END, End)
        if end.digest != digest:
            raise FrameError("its files were altered on the way")
        broken = set(end.broken)
        files = [ResultFile(host, row.path, row.size, f"{folder}/{number}") for number, row in enumerate(rows)]
        short = [file.path for number, file in enumerate(files) if number in broken]
        reasons = [(path, "it became shorter while it was read") for path in short]
        self.unreadable[host] += _render_reasons(shorten(reasons))
        return [file for number, file in enumerate(files) if number not in broken]


def _receive_contents(link: HostLink, rows: Sequence[Row], folder: str) -> str:
    """Receive the contents of files, which get numbers as names; return their SHA-256. Raises OSError."""
    digest = hashlib.sha256()
    for number, row in enumerate(rows):
        opened = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, row.mode & 0o777)
        with open(opened, "wb") as target:
            for block in link.blocks(row.size):
                digest.update(block)
                target.write(block)
        os.utime(f"{folder}/{number}", ns=(row.mtime, row.mtime))
    return digest.hexdigest()


def _render_reasons(reasons: Sequence[tuple[str, str]]) -> list[str]:
    """Render the paths that a host has named, and the reasons."""
    return [
        f"{path[:LONGEST_NAME]!a}: {printable_line(reason[:LONGEST_NAME])}"
        for path, reason in reasons[: MOST_NAMED + 1]
    ]


def check_rows(rows: Sequence[Row], wanted: Sequence[str]) -> None:
    """Raise FrameError for a list of files that no ddlrun sends: see `_check_path`."""
    for row in rows:
        _check_path(row.path, wanted)
    if not all(0 <= number <= LARGEST_NUMBER for row in rows for number in (row.mode, row.mtime, row.size)):
        raise FrameError("its list of files has a wrong number")
    if len({row.path for row in rows}) < len(rows):
        raise FrameError("its list of files names one twice")


def _check_path(path: str, wanted: Sequence[str]) -> None:
    """Raise FrameError for a path that is not that of a wanted file in the working folder."""
    parts = path.split("/")
    wrong = {"", ".", ".."}.intersection(parts) or any(map(is_left_out, parts))
    try:
        length = len(os.fsencode(path))
    except UnicodeEncodeError:
        length = LONGEST_PATH + 1
    if wrong or "\0" in path or length > LONGEST_PATH or not is_wanted(path, wanted):
        raise FrameError(f"it sent the path {printable(ascii(path[:200]))}, which was not asked for")
