"""Files with the output of each rank: those of --output dir=DIR, the logs in the run folder, the open ones of all."""

import os
import resource
import time
from collections.abc import Callable

from ddlrun.plan.run_dir import RunDir
from ddlrun.remote.system_limits import OTHER_FILES, count_open_files
from ddlrun.runs.output_lines import LineMerger
from ddlrun.runs.output_order import ERR, SEPARATOR, TIME, TagSwitches, pack_entry, pack_header, pack_host, source_log
from ddlrun.runs.store import open_private

# The files that are open at the same time: these are among OTHER_FILES.
LEAST_OPEN_FILES = 8
MOST_OPEN_FILES = 8192
STREAMS = ("stdout", "stderr")


class OpenFiles:
    """Files that are appended to, of which the latest used are open."""

    def __init__(self, most: int, complain: Callable[[str], None]) -> None:
        """Take the number of files that may be open, and what gets a message on files that are given up."""
        self._complain = complain
        self._given_up: set[str] = set()
        self._most = most
        self._begun: set[str] = set()
        self._open: dict[str, int] = {}

    def attempt(self, place: str, write: Callable[[], None]) -> bool:
        """Write to a place, and return True; after a failure, as on a full disk, it is given up with a message."""
        try:
            if place not in self._given_up:
                write()
        except OSError as error:
            self._given_up.add(place)
            self._complain(f"{place}: {error.strerror}; no more output is stored there")
        return place not in self._given_up

    def append(self, path: str, block: bytes) -> None:
        """Append a block; the first one creates the file, or empties it. Raises OSError."""
        file = self._use(path)
        written = os.write(file, block)
        while written < len(block):
            written += os.write(file, block[written:])

    def close(self, path: str) -> None:
        """Close a file; the next block opens it again."""
        file = self._open.pop(path, None)
        if file is not None:
            os.close(file)

    def close_all(self) -> None:
        """Close all files."""
        for path in list(self._open):
            self.close(path)

    def _use(self, path: str) -> int:
        """Return a file that is about to be written to, after closing the one that was not for the longest time."""
        file = self._open.pop(path, None)
        if file is None:
            while len(self._open) >= self._most:
                self.close(next(iter(self._open)))
            how = os.O_APPEND if path in self._begun else os.O_TRUNC
            file = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how)
            self._begun.add(path)
        self._open[path] = file
        return file


class RankFiles:
    """The files of --output dir=DIR: one per rank and stream, with what the rank wrote."""

    def __init__(self, folder: str, ranks: int, open_files: OpenFiles) -> None:
        """Take the folder that has a folder per rank."""
        self._folder, self._open_files = folder, open_files
        self._width = len(str(ranks - 1))
        self._place = f"`--output` dir={folder}"

    def start(self, rank: int) -> None:
        """Create a rank's files."""
        folder = os.path.dirname(self._path(rank, 0))
        self._open_files.attempt(self._place, lambda: os.makedirs(folder, mode=0o700, exist_ok=True))
        for stream in range(len(STREAMS)):
            self.write(rank, stream, b"")

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Store a rank's output to standard output (0) or standard error (1)."""
        self._open_files.attempt(self._place, lambda: self._open_files.append(self._path(rank, stream), data))

    def end(self, rank: int) -> None:
        """Close the files of a rank."""
        for stream in range(len(STREAMS)):
            self._open_files.close(self._path(rank, stream))

    def _path(self, rank: int, stream: int) -> str:
        return f"{self._folder}/rank.{rank:0{self._width}d}/{STREAMS[stream]}"


class JobLog:
    """The logs of a job. After a failure, as on a full disk, they are given up with a message, and the job goes on."""

    def __init__(self, files: RunDir, switches: TagSwitches, ranks: int, open_files: OpenFiles) -> None:
        """Take the run folder; the log of a rank begins when it prints."""
        self._files, self._ranks, self._open_files = files, ranks, open_files
        self._sources: dict[int, tuple[str, LineMerger]] = {}
        """Rank, or the number of ranks for ddlrun -> its log, and the state of the last line there."""
        self._order = bytearray(pack_header(switches))
        self._last = 0, 0
        """Kind and source of the last block, whose entry is not in the order yet."""
        self._length = 0
        self._second = 0
        self._place = f"run folder {files.path}"

    def open(self) -> None:
        """Make the folder of the logs of ranks, and begin the order."""
        folder = self._files.rank_logs
        self._open_files.attempt(self._place, lambda: os.makedirs(folder, mode=0o700, exist_ok=True))
        self.flush()

    def start(self, rank: int, host: str) -> None:
        """Record the host of a rank."""
        self._end_entry()
        self._order += pack_host(rank, host)

    def write(self, source: int, stream: int, block: bytes) -> None:
        """Append a block of a source to its log; an unfinished line of its other stream ends."""
        if source not in self._sources:
            self._sources[source] = source_log(self._files, source, self._ranks), LineMerger()
        path, lines = self._sources[source]
        joined = lines.join(stream, block, b"")
        if self._append(path, joined):
            self._note(SEPARATOR, source, len(joined) - len(block))
            self._note(stream, source, len(block))

    def tell(self, block: bytes) -> None:
        """Log lines of ddlrun's own."""
        self.write(self._ranks, ERR, block)

    def write_manager(self, chunk: bytes) -> None:
        """Log what the process manager printed."""
        self._append(self._files.manager_log, chunk)

    def end(self, rank: int) -> None:
        """Close the log of a rank."""
        self._open_files.close(source_log(self._files, rank, self._ranks))

    def flush(self) -> None:
        """Store the order of the blocks so far, which makes them visible."""
        self._end_entry()
        if self._order:
            self._append(self._files.order, bytes(self._order))
            self._order.clear()

    def _note(self, kind: int, source: int, length: int) -> None:
        if (kind, source) != self._last and length:
            self._end_entry()
            self._last = kind, source
        self._length += length

    def _end_entry(self) -> None:
        if self._length:
            now = int(time.time())
            if now != self._second:
                self._second = now
                self._order += pack_entry(TIME, 0, now)
            self._order += pack_entry(*self._last, self._length)
            self._length = 0

    def _append(self, path: str, block: bytes) -> bool:
        return self._open_files.attempt(self._place, lambda: self._open_files.append(path, block))


def most_open_files(ranks: int) -> int:
    """Return the number of files that may be open beside the connections of the ranks."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    unused = MOST_OPEN_FILES if limit == resource.RLIM_INFINITY else limit - count_open_files() - ranks - OTHER_FILES
    return min(MOST_OPEN_FILES, max(LEAST_OPEN_FILES, unused))
