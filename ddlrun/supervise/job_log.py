"""The output of a job in its run folder: a log per rank, and the order of what is in them."""

import os
import time

from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.output_lines import LineMerger
from ddlrun.runs.output_order import ERR, SEPARATOR, TIME, TagSwitches, pack_entry, pack_header, pack_host, source_log
from ddlrun.supervise.rank_files import OpenFiles


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
