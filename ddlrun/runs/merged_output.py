"""The output of all ranks of a run, as its launch printed it: rendered from the logs of ranks and their order."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

from ddlrun.errors import InputError
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import OutputStyle
from ddlrun.runs.output_lines import LineMerger, RankTags
from ddlrun.runs.output_order import (
    CHUNK_BYTES,
    ERR,
    HEADER_BYTES,
    HOST,
    OUT,
    TIME,
    OrderEntry,
    OrderParser,
    parse_header,
    source_log,
)

MOST_OPEN_FILES = 256


class MergedOutput:
    """The lines of all ranks and of ddlrun with their tags, as they are added to the logs; none before the start."""

    def __init__(self, folder: str, ranks: int) -> None:
        """Take a run folder and the number of ranks."""
        self._files, self._ranks = RunDir(folder), ranks
        self._logs = SourceLogs([source_log(self._files, source, ranks) for source in range(ranks + 1)])
        self._lines = {stream: LineMerger() for stream in (OUT, ERR)}
        self._second = 0
        self._order: IO[bytes] | None = None
        self._parser = OrderParser()
        self._tags = RankTags(OutputStyle(), ranks)

    def close(self) -> None:
        """Close the files."""
        self._logs.close()
        if self._order is not None:
            self._order.close()

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that were added since the last call, each block with its stream. Raises InputError."""
        for entry in self._entries():
            yield from self._render(entry)

    def read_last(self, lines: int) -> Iterator[tuple[int, bytes]]:
        """Yield the last lines, in place of all that the first `read` would yield. Raises InputError."""
        entries = list(self._entries())
        for entry in entries:
            self._logs.move(entry.source, entry.moved)
        start, newlines = len(entries), -1
        while start and newlines < lines:
            start -= 1
            entry = entries[start]
            self._logs.move(entry.source, -entry.moved)
            if entry.kind in self._lines:
                newlines += self._logs.take(entry.source, entry.length).count(b"\n")
                self._logs.move(entry.source, -entry.length)
        before = [entry for entry in entries[:start] if not entry.moved]  # hosts and times
        yield from _keep_last([block for entry in before + entries[start:] for block in self._render(entry)], lines)

    def read_rest(self) -> Iterator[tuple[int, bytes]]:
        """Yield what the logs have beyond their order, as after ddlrun was killed or the disk was full."""
        for source, length in self._logs.blocks():
            yield from self._render(OrderEntry(OUT, source, length))

    def _entries(self) -> Iterator[OrderEntry]:
        """Yield the entries that were added to the order since the last call. Raises InputError."""
        if self._order is None:
            self._open_order()
        while self._order is not None and (data := self._order.read(CHUNK_BYTES)):
            for entry in self._parser.feed(data):
                if entry.source > self._ranks:
                    raise InputError(f"run folder {self._files.path}: output.order is damaged; read the files in ranks")
                yield entry

    def _open_order(self) -> None:
        """Open the order once ddlrun has begun it."""
        with suppress(FileNotFoundError):
            order = open(self._files.order, "rb", buffering=0)  # noqa: SIM115 - `close`
            header = order.read(HEADER_BYTES)
            switches = parse_header(header)
            if switches is None:
                order.close()
                if not header:  # it has just been made
                    return
                raise InputError(f"run folder {self._files.path}: another version of ddlrun wrote it; read its files")
            self._order = order
            self._tags = RankTags(OutputStyle(tag=switches.tags, timestamp=switches.timestamps), self._ranks)

    def _render(self, entry: OrderEntry) -> Iterator[tuple[int, bytes]]:
        if entry.kind == HOST:
            self._tags.hosts[entry.source] = entry.host
        elif entry.kind == TIME:
            self._second = entry.length
        elif entry.kind not in self._lines:
            self._logs.move(entry.source, entry.length)
        else:
            block = self._logs.take(entry.source, entry.length)
            tag = self._tags.render((entry.source,), at=self._second) if entry.source < self._ranks else b""
            yield entry.kind, self._lines[entry.kind].join(entry.source, block, tag)


def _keep_last(blocks: list[tuple[int, bytes]], lines: int) -> Iterator[tuple[int, bytes]]:
    """Yield blocks without all lines but the last; the end of a line may be missing."""
    surplus = sum(text.count(b"\n") for _, text in blocks) - lines
    if blocks and not blocks[-1][1].endswith(b"\n"):
        surplus += 1
    for stream, text in blocks:
        kept = text.split(b"\n", surplus)[-1] if surplus > 0 else text
        surplus -= text.count(b"\n") - kept.count(b"\n")
        if kept and surplus <= 0:
            yield stream, kept


class SourceLogs:
    """The logs of sources, each with the place up to which it was read; the latest used are open."""

    def __init__(self, paths: list[str]) -> None:
        """Take the paths of the logs by the numbers of their sources."""
        self.paths = paths
        self._offsets = [0] * len(paths)
        self._open: dict[int, IO[bytes]] = {}

    def close(self) -> None:
        """Close the logs."""
        for log in self._open.values():
            log.close()

    def move(self, source: int, length: int) -> None:
        """Pass over bytes, or go back."""
        self._offsets[source] += length

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the source and the length of each block after the places, of which each is to be taken."""
        for source in range(len(self.paths)):
            while (log := self.use(source)) and (length := log.seek(0, 2) - self._offsets[source]) > 0:
                yield source, min(length, CHUNK_BYTES)

    def take(self, source: int, length: int) -> bytes:
        """Return the next bytes; fewer where the log has been cut."""
        log = self.use(source)
        self._offsets[source] += length
        return b"" if log is None else log.read(min(length, os.fstat(log.fileno()).st_size))

    def use(self, source: int) -> IO[bytes] | None:
        """Return a log at its place; None where there is none."""
        log = self._open.pop(source, None)
        with suppress(FileNotFoundError):
            log = log or open(self.paths[source], "rb")  # noqa: SIM115 - `close`
        if log is None:
            return None
        while len(self._open) >= MOST_OPEN_FILES:
            self._open.pop(next(iter(self._open))).close()
        self._open[source] = log
        if log.tell() != self._offsets[source]:
            log.seek(self._offsets[source])
        return log
