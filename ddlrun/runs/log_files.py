"""Log files of a run and its restarts: which ones there are, and their bytes as they grow."""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import IO

from ddlrun.errors import InputError
from ddlrun.plan.run_dir import RunDir, rank_log
from ddlrun.runs.history import PastRunState, read_past_run, restart_folder
from ddlrun.wording import counted

BLOCK_BYTES = 1 << 20
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Source:
    """A log file, and the stream on which it is printed: 0 standard output, 1 standard error."""

    path: str
    stream: int


def rank_sources(folder: str, ranks: Iterable[int]) -> list[Source]:
    """Return the logs of some ranks, which a run that is starting does not have yet.

    Raises InputError where the run has no such ranks.
    """
    wanted = sorted(ranks)
    count = count_ranks(folder)
    if wanted[-1] >= count:
        raise InputError(f"rank {wanted[-1]}: the run has {counted(count, 'rank')}, numbered from 0")
    return [Source(rank_log(folder, rank, count), 0) for rank in wanted]


def count_ranks(folder: str) -> int:
    """Return the number of ranks of a run. Raises InputError where its plan cannot be read."""
    try:
        with open(RunDir(folder).plan, encoding="utf-8") as file:
            return len(json.load(file)["ranks"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"run folder {folder}: plan.json cannot be read") from error


def read_logs(
    folder: str, ranks: Iterable[int] | None, lines: int | None, *, follow: bool
) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of the logs of some ranks (None: all), each with its stream.

    Each log begins with its last lines (None: all). `follow`: go on until the run and its restarts end.
    """
    following: str | None = folder
    while following is not None:
        with closing(LogReader(_sources(following, ranks), lines)) as reader:
            yield from reader.read()
            if not follow:
                return
            yield from _follow(reader, following)
        _sources(following, ranks)  # ranks that were not known while the run was starting
        following, lines = _await_restart(following), None


def _sources(folder: str, ranks: Iterable[int] | None) -> list[Source]:
    files = RunDir(folder)
    return [Source(files.stdout, 0), Source(files.stderr, 1)] if ranks is None else rank_sources(folder, ranks)


def _follow(reader: "LogReader", folder: str) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of logs as they grow, until the run has ended."""
    while True:
        ended, grown = _has_ended(folder), False  # before reading: all that it wrote is read afterwards
        for block in reader.read():
            grown = True
            yield block
        if not grown:
            if ended:
                return
            time.sleep(POLL_SECONDS)


def _await_restart(folder: str) -> str | None:
    """Return the folder of a failed run's restart; None where its ddlrun ends without one."""
    past, restart = read_past_run(folder), restart_folder(folder)
    while past is not None and past.state is PastRunState.FAILED:
        alive = past.run.alive()  # before looking: a restart that it wrote is seen afterwards
        if os.path.exists(RunDir(restart).plan):
            return restart
        if not alive:
            return None
        time.sleep(POLL_SECONDS)
    return None


def _has_ended(folder: str) -> bool:
    past = read_past_run(folder)
    if past is None:  # it is not yet written, or the folder is gone
        return os.path.exists(RunDir(folder).outcome) or not os.path.exists(RunDir(folder).plan)
    return not past.state.may_run


class LogReader:
    """The bytes of several log files, each from the place that was read last; a missing file is one without bytes."""

    def __init__(self, sources: Sequence[Source], last_lines: int | None = None) -> None:
        """Create a reader that begins with the last lines of each file; None: with all."""
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
        """Yield the bytes that were added to the files since the last call, each block with its stream."""
        self._open_files()
        for index, file in sorted(self._files.items()):
            while block := file.read(BLOCK_BYTES):
                yield self._sources[index].stream, block

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
