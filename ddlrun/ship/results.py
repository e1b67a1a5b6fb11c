"""The files that ranks wrote on the hosts, as they come back; what hosts send is checked, and waits in a folder."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddlrun.remote.probe import ProbeTarget
from ddlrun.ship.host.link import FILES, HERE, HostLink
from ddlrun.ship.host.results import LARGEST_NUMBER, LONGEST_NAME, MOST_NAMED, End, Row, is_left_out, is_wanted, shorten
from ddlrun.ship.request import ShipRequest
from ddlrun.ship.server import HostServer, read
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
    return server.conclude(server.run(body, task.hosts, reach))


class ResultServer(HostServer):
    """The connections of hosts that send their files."""

    def __init__(self, task: FetchTask) -> None:
        """Listen."""
        super().__init__(task.addresses, task.hosts)
        self._task = task
        self._free = shutil.disk_usage(task.folder).free
        self._sizes: dict[str, int] = {}
        """Host -> the bytes of its files."""
        self._received: dict[str, tuple[list[ResultFile], str] | str] = {}
        """Host -> the files that it has sent last, with the hash of their contents; or why they were refused."""

    def serve(self, link: HostLink, digest: str, host: str, port: int) -> None:  # noqa: ARG002 - see HostServer
        """Receive the files of a host, in place of those of a connection that broke."""
        folder = tempfile.mkdtemp(dir=self._task.folder)
        try:
            link.send(HERE)
            self._received[host] = self._receive(link, host, folder)
        except (OSError, FrameError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            if not isinstance(error, ConnectionError):  # of which the host reports the reason, or is tried again
                self._received[host] = str(error)

    def _receive(self, link: HostLink, host: str, folder: str) -> tuple[list[ResultFile], str]:
        """Receive the files of a host, and their hash. Raises FrameError or OSError."""
        rows = read(link.receive(FILES), tuple[Row, ...])
        check_rows(rows, self._task.request.fetched)
        size = sum(row.size for row in rows)
        with self.lock:
            free = self._free - sum(self._sizes.values()) + self._sizes.get(host, 0)
            if size > free:
                raise FrameError(f"its files have {size} bytes, and here are {free} free")
            self._sizes[host] = size
        digest = _receive_contents(link, rows, folder)
        files = [ResultFile(host, row.path, row.size, f"{folder}/{number}") for number, row in enumerate(rows)]
        return files, digest

    def conclude(self, reports: Mapping[str, Mapping[str, object]]) -> Received:
        """Return the files that hosts have sent, given their reports."""
        files: list[ResultFile] = []
        problems: dict[str, Sequence[str]] = {}
        left: dict[str, Sequence[str]] = {}
        for host, report in reports.items():
            try:
                received, end = self._compare(host, report)
            except FrameError as error:
                problems[host] = [printable_line(str(error))]
                continue
            broken = {*end.broken}
            files += [file for number, file in enumerate(received) if number not in broken]
            short = [file.path for number, file in enumerate(received) if number in broken]
            reasons = shorten([(path, "it became shorter while it was read") for path in short])
            problems[host] = _render_reasons((*end.unreadable, *reasons))
            left[host] = _render_reasons(end.left)
        return Received(files, {host: lines for host, lines in problems.items() if lines}, left)

    def _compare(self, host: str, report: Mapping[str, object]) -> tuple[Sequence[ResultFile], End]:
        """Return the files of a host, and what it reports of them. Raises FrameError where these differ."""
        received = self._received.get(host)
        if isinstance(received, str):
            raise FrameError(received)
        if received is None or "error" in report:
            raise FrameError(str(report.get("error", "the connection was closed")))
        files, digest = received
        end = read(report.get("end"), End)
        if end.digest != digest:
            raise FrameError("its files were altered on the way")
        return files, end


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
