"""The file of a run's samples, metrics.jsonl: written while the run lasts, thinned out, and read as it grows."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import IO, Any, TypeAlias

from ddlrun.metrics.gpu_samples import GpuSample
from ddlrun.metrics.samples import HostSample, NicSample, PeerSample, RankSample

Sample: TypeAlias = RankSample | HostSample
LIMIT = 8 << 20
"""A file that is larger is thinned out."""
# The part of a file that is read when it is opened.
TAIL_BYTES = 1 << 22


class MetricsFile:
    """The file as ddlrun writes it. After a failure, as on a full disk, it is given up with a message."""

    def __init__(self, path: str, complain: Callable[[str], None], limit: int = LIMIT) -> None:
        """Take a path; `complain` prints a problem, and a file of more bytes than the limit is thinned out."""
        self._path, self._complain, self._limit = path, complain, limit
        self._failed = False

    def append(self, time: float, samples: Sequence[Sample]) -> None:
        """Append the samples of a time."""
        if self._failed or not samples:
            return
        block = "".join(render_line(replace(sample, time=time)) for sample in samples).encode()
        try:
            with open(self._path, "ab", buffering=0, opener=_open_private) as file:
                file.write(block)
                size = file.tell()
            if size > self._limit:
                self._thin_out()
        except OSError as error:
            self._failed = True
            self._complain(f"no more samples in {self._path}: {error.strerror}")

    def _thin_out(self) -> None:
        with open(self._path, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        new = f"{self._path}.new"
        with open(new, "wb", opener=_open_private) as file:
            file.writelines(thin_out(lines))
        os.replace(new, self._path)


def thin_out(lines: Sequence[bytes]) -> Iterator[bytes]:
    r"""Yield the lines of every second time, and of the last quarter of all times; a line begins with its time.

    >>> b"".join(thin_out([b"1,\n", b"1,\n", b"2,\n", b"3,\n", b"4,\n"]))
    b'1,\n1,\n3,\n4,\n'
    """
    times = list(dict.fromkeys(line.partition(b",")[0] for line in lines))
    recent = len(times) * 3 // 4
    chosen = {time for index, time in enumerate(times) if index % 2 == 0 or index >= recent}
    return (line for line in lines if line.partition(b",")[0] in chosen)


def render_line(sample: Sample) -> str:
    """Render a sample as a line of JSON that begins with its time."""
    return json.dumps(asdict(sample)) + "\n"


def parse_line(line: bytes) -> Sample:
    """Parse a line. Raises ValueError, TypeError or KeyError where it is not a sample."""
    record: Mapping[str, Any] = json.loads(line)
    if "ranks" in record:
        return RankSample(**_fields_of(RankSample, record))
    # Samples of older versions have neither peers nor GPUs.
    parts: dict[str, Any] = {
        "nics": tuple(NicSample(**_fields_of(NicSample, nic)) for nic in record["nics"]),
        "peers": tuple(PeerSample(**_fields_of(PeerSample, peer)) for peer in record.get("peers", ())),
        "gpus": tuple(map(_parse_gpu, record.get("gpus", ()))),
    }
    return HostSample(**_fields_of(HostSample, {**record, **parts}))


def _parse_gpu(record: Mapping[str, Any]) -> GpuSample:
    return GpuSample(**_fields_of(GpuSample, {**record, "limits": tuple(record["limits"])}))


def _fields_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record's fields; newer versions may have more. Raises KeyError where one is missing."""
    return {field.name: values[field.name] for field in fields(kind)}


def choose_lines(lines: Sequence[bytes], most: int) -> list[bytes]:
    r"""Return up to about `most` of the lines: those of every n-th time, and of the last times.

    >>> choose_lines([b"1,\n", b"2,\n", b"3,\n", b"4,\n", b"5,\n"], 3)
    [b'1,\n', b'3,\n', b'5,\n']
    """
    if len(lines) <= most:
        return list(lines)
    times = list(dict.fromkeys(line.partition(b",")[0] for line in lines))
    count = max(2, most * len(times) // len(lines))
    recent = len(times) - count // 2
    chosen = {*times[recent:], *times[: recent : -(-recent // (count - count // 2))]}
    return [line for line in lines if line.partition(b",")[0] in chosen]


class MetricsReader:
    """The samples of a file, and then new ones as it grows: those near its end, or a choice from all."""

    def __init__(self, path: str, tail: int = TAIL_BYTES, most: int | None = None) -> None:
        """Take the path, and the size of the end that is read at first; `most`: that many samples of all instead."""
        self._path, self._tail, self._most = path, tail, most
        self._file: IO[bytes] | None = None
        self._rest = b""

    def read(self) -> Iterator[Sample]:
        """Yield the samples that were written since the last call; none where there is no file."""
        if self._file is None or self._was_replaced(self._file):
            self._open()
        if self._file is None:
            return
        lines = (self._rest + self._file.read()).split(b"\n")
        self._rest = lines.pop()
        if self._most is not None:
            lines = choose_lines(lines, self._most)
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):  # a line of another version
                yield parse_line(line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _was_replaced(self, file: IO[bytes]) -> bool:
        try:
            return os.stat(self._path).st_ino != os.fstat(file.fileno()).st_ino
        except OSError:
            return False

    def _open(self) -> None:
        """Open the file at the beginning of a line near its end."""
        self.close()
        self._rest = b""
        try:
            self._file = open(self._path, "rb")  # noqa: SIM115 - `close`
        except OSError:
            return
        start = max(0, self._file.seek(0, os.SEEK_END) - self._tail) if self._most is None else 0
        self._file.seek(start)
        if start:
            self._file.readline()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
