"""What each rank said, as it started, of the CPUs and GPUs that it really has: see rank.py."""

import re
from collections.abc import Callable

_BEGIN, _END = b"\x1eddlrun\t", b"\x1e\n"
_TAG = rb"\[\d+,\d+\]<[a-z]+>: ?$"  # what mpirun --tag-output puts before a line
# More than this is no record of ours.
_LONGEST = 1 << 16
FIELDS = ("rank", "host", "cpus", "planned", "gpus", "problem")


class ReadBack:
    """Takes the ranks' records out of what mpirun prints."""

    def __init__(self) -> None:
        self.records: list[dict[str, object]] = []

    def as_dict(self, ranks: int) -> dict[str, object]:
        """Return the records as JSON can carry them: how many ranks there are, said so, and differ from the plan."""
        records = sorted(self.records, key=lambda record: int(str(record["rank"])))
        different = [record["rank"] for record in records if record["problem"]]
        return {"ranks": ranks, "reported": len(records), "different": different, "bindings": records}

    def stream(self) -> Callable[[bytes], bytes]:
        """Return what takes one stream's next bytes (none: its end) and returns those that are not records."""
        held = b""

        def feed(chunk: bytes) -> bytes:
            nonlocal held
            out, held = self._take(held + chunk)
            if not chunk or len(held) > _LONGEST:
                out, held = out + held, b""
            return out

        return feed

    def _take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return (what is passed on, the beginning of a record that may be there)."""
        out = b""
        while True:
            start = data.find(_BEGIN)
            if start < 0:
                tail = data.rfind(b"\x1e")
                cut = tail if tail >= 0 and _BEGIN.startswith(data[tail:]) else len(data)
                return out + data[:cut], data[cut:]
            end = data.find(_END, start + 1)
            if end < 0:
                return out + data[:start], data[start:]
            fields = data[start + len(_BEGIN) : end].decode(errors="replace").split("\t")
            if len(fields) != len(FIELDS) or not fields[0].isdigit():
                out, data = out + data[: start + 1], data[start + 1 :]
                continue
            self.records.append({**dict(zip(FIELDS, fields, strict=True)), "rank": int(fields[0])})
            out += re.sub(_TAG, b"", data[:start])
            data = data[end + len(_END) :]
