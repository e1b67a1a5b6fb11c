"""Log files of a run and its restarts: which ones there are, and their bytes as they grow."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import IO

from ddlrun.errors import InputError
from ddlrun.plan.run_dir import RunDir, rank_log
from ddlrun.runs.history import PastRunState, read_past_run, restart_folder
from ddlrun.runs.merged_output import MergedOutput, SourceLogs
from ddlrun.runs.output_order import CHUNK_BYTES, OUT
from ddlrun.runs.state_folders import find_path
from ddlrun.wording import counted

POLL_SECONDS = 0.2


def rank_logs(folder: str, ranks: Iterable[int], count: int) -> list[str]:
    """Return the logs of some of the ranks of a run, which it does not have yet while it is starting.

    Raises InputError where the run has no such ranks.
    """
    wanted = sorted(ranks)
    if wanted[-1] >= count:
        raise InputError(f"rank {wanted[-1]}: the run has {counted(count, 'rank')}, numbered from 0")
    return [rank_log(folder, rank, count) for rank in wanted]


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
    """Yield the blocks of the logs of some ranks, each with its stream; None: of all, in the order of their arrival.

    Each log begins with its last lines (None: all). `follow`: go on until the run and its restarts end.

    Raises InputError where the run has no such ranks, or a file cannot be read.
    """
    following: str | None = folder
    try:
        while following is not None:
            yield from _read_run(following, ranks, lines, follow=follow)
            following, lines = _await_restart(following) if follow else None, None
    except OSError as error:
        raise InputError(f"run folder {following}: {error.filename}: {error.strerror}") from error


def _read_run(
    folder: str, ranks: Iterable[int] | None, lines: int | None, *, follow: bool
) -> Iterator[tuple[int, bytes]]:
    count = count_ranks(folder)
    reader = MergedOutput(folder, count) if ranks is None else RankLogs(rank_logs(folder, ranks, count))
    with closing(reader):
        ended = _has_ended(folder)  # before reading: all that it wrote is read afterwards
        yield from reader.read() if lines is None else reader.read_last(lines)
        while follow and not ended:
            time.sleep(POLL_SECONDS)
            ended = _has_ended(folder)
            yield from reader.read()
        if ended:
            yield from reader.read_rest()


def _await_restart(folder: str) -> str | None:
    """Return the folder of a failed run's restart; None where its ddlrun ends without one."""
    past, restart = read_past_run(folder), find_path(restart_folder(folder))
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
        return os.path.exists(find_path(RunDir(folder).outcome)) or not os.path.exists(RunDir(folder).plan)
    return not past.state.may_run


class RankLogs(SourceLogs):
    """The logs of some ranks, one after the other."""

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes that were added since the last call, each block for standard output."""
        for source, length in self.blocks():
            yield OUT, self.take(source, length)

    def read_last(self, lines: int) -> Iterator[tuple[int, bytes]]:
        """Yield the last lines of each log, in place of all that the first `read` would yield."""
        for source in range(len(self.paths)):
            if log := self.use(source):
                self.move(source, seek_last_lines(log, lines))
        yield from self.read()

    def read_rest(self) -> Iterator[tuple[int, bytes]]:
        """Yield nothing: `read` leaves nothing out."""
        return iter(())


def seek_last_lines(file: IO[bytes], count: int) -> int:
    """Move to the beginning of a file's last lines, and return its place."""
    start = file.seek(0, os.SEEK_END)
    tail = b""
    while start > 0 and tail.count(b"\n") <= count:
        size = min(CHUNK_BYTES, start)
        start = file.seek(start - size)
        tail = file.read(size) + tail
    before, *lines = tail.removesuffix(b"\n").rsplit(b"\n", count)
    return file.seek(start if len(lines) < count else start + len(before) + 1)
