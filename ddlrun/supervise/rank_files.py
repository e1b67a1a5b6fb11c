"""Files with the output of each rank: those of --output dir=DIR, and the logs in the run folder."""

import os
import resource
from collections.abc import Callable

from ddlrun.plan.run_dir import rank_log
from ddlrun.supervise.listener import OTHER_FILES
from ddlrun.supervise.streams import OutputLog

# The files that are open at the same time: these are among OTHER_FILES.
LEAST_OPEN_FILES = 8
MOST_OPEN_FILES = 8192
STREAMS = ("stdout", "stderr")


class RankFiles:
    """The files of all ranks, of which the latest used are open."""

    def __init__(self, folder: str | None, run_folder: str, *, ranks: int, complain: Callable[[str], None]) -> None:
        """Make the folder of the logs in the run folder, with one per rank that prints.

        `folder` is that of --output dir=DIR, with a file per rank and stream; None: none.
        """
        self._folder, self._run_folder, self._ranks, self._complain = folder, run_folder, ranks, complain
        self._width = len(str(ranks - 1))
        self._files: dict[str, OutputLog] = {}
        self._open: dict[str, OutputLog] = {}
        self._most_open = _most_open_files(ranks)
        self._make_folder(os.path.dirname(rank_log(run_folder, 0, ranks)), "the logs of ranks")

    def start(self, rank: int) -> None:
        """Create a rank's files of --output dir=DIR."""
        if self._folder is not None:
            self._make_folder(os.path.dirname(self._path(rank, 0)), "`--output` dir")
            for stream in range(len(STREAMS)):
                self._use(self._path(rank, stream)).write(b"")

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Store a rank's output to standard output (0) or standard error (1)."""
        if self._folder is not None:
            self._use(self._path(rank, stream)).write(data)
        log = self._use(rank_log(self._run_folder, rank, self._ranks))
        log.write(log.lines.join(stream, data, b""))

    def end(self, rank: int) -> None:
        """Close the files of a rank."""
        for path in self._paths(rank):
            file = self._open.pop(path, None)
            if file is not None:
                file.close()

    def _paths(self, rank: int) -> list[str]:
        paths = [] if self._folder is None else [self._path(rank, stream) for stream in range(len(STREAMS))]
        return [*paths, rank_log(self._run_folder, rank, self._ranks)]

    def _path(self, rank: int, stream: int) -> str:
        return f"{self._folder}/rank.{rank:0{self._width}d}/{STREAMS[stream]}"

    def _make_folder(self, folder: str, purpose: str) -> None:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            self._complain(f"{purpose} {folder}: {error.strerror}")

    def _use(self, path: str) -> OutputLog:
        """Return a file that is about to be written to, after closing the one that was not for the longest time."""
        if path not in self._files:
            self._files[path] = OutputLog(path, self._complain)
        self._open.pop(path, None)
        while len(self._open) >= self._most_open:
            self._open.pop(next(iter(self._open))).close()
        self._open[path] = self._files[path]
        return self._files[path]


def _most_open_files(ranks: int) -> int:
    """Return the number of files that may be open beside the connections of the ranks."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    unused = MOST_OPEN_FILES if limit == resource.RLIM_INFINITY else limit - ranks - OTHER_FILES
    return min(MOST_OPEN_FILES, max(LEAST_OPEN_FILES, unused))
