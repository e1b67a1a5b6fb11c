"""Log files of a run: which ones there are, and their bytes as they grow."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO, NamedTuple

from ddlrun.errors import InputError
from ddlrun.plan.run_dir import RunDir, rank_log
from ddlrun.wording import counted

BLOCK_BYTES = 1 << 20


class Source(NamedTuple):
    """A log file, and the stream on which it is printed: 0 standard output, 1 standard error."""

    path: str
    stream: int


def run_sources(folder: str) -> list[Source]:
    """Return the logs of all ranks."""
    files = RunDir(folder)
    return [Source(files.stdout, 0), Source(files.stderr, 1)]


def rank_sources(folder: str, ranks: Iterable[int]) -> list[Source]:
    """Return the logs of some ranks, which a run that is starting does not have yet.

    Raises InputError where the run has no such ranks, or where ranks have no logs of their own.
    """
    wanted = sorted(ranks)
    count = _count_ranks(folder)
    if wanted[-1] >= count:
        raise InputError(f"rank {wanted[-1]}: the run has {counted(count, 'rank')}, numbered from 0")
    files = RunDir(folder)
    if os.path.exists(files.stdout) and not os.path.isdir(files.rank_logs):
        raise InputError(f"run folder {folder}: it has no logs of single ranks, as of `--no-rank-logs`")
    return [Source(rank_log(folder, rank, count), 0) for rank in wanted]


def _count_ranks(folder: str) -> int:
    """Return the number of ranks of a run. Raises InputError where its plan cannot be read."""
    try:
        with open(RunDir(folder).plan, encoding="utf-8") as file:
            return len(json.load(file)["ranks"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"run folder {folder}: plan.json cannot be read") from error


class LogReader:
    """The bytes of several log files, each from the place that was read last; a missing file is one without bytes."""

    def __init__(self, sources: Sequence[Source], last_lines: int | None = None) -> None:
        """Create a reader.

        Args:
            sources: The files.
            last_lines: The number of lines, at the end of each file, to begin with; None: all lines.
        """
        self._sources = sources
        self._files: dict[int, IO[bytes]] = {}
        self._open_files()
        if last_lines is not None:
            for file in self._files.values():
                seek_last_lines(file, last_lines)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield what the files have got since the last call, each block with the index of its source."""
        self._open_files()
        for index, file in sorted(self._files.items()):
            while block := file.read(BLOCK_BYTES):
                yield index, block

    def _open_files(self) -> None:
        for index, source in enumerate(self._sources):
            if index not in self._files:
                with suppress(FileNotFoundError):
                    self._files[index] = open(source.path, "rb", buffering=0)  # noqa: SIM115 - `__exit__`


def seek_last_lines(file: IO[bytes], count: int) -> None:
    """Move to the beginning of a file's last lines."""
    start = file.seek(0, os.SEEK_END)
    tail = b""
    while start > 0 and tail.count(b"\n") <= count:
        size = min(BLOCK_BYTES, start)
        start = file.seek(start - size)
        tail = file.read(size) + tail
    before, *lines = tail.removesuffix(b"\n").rsplit(b"\n", count)
    file.seek(start if len(lines) < count else start + len(before) + 1)
