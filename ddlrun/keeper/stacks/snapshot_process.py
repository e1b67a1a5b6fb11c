"""The child of a keeper that takes a snapshot of its rank, while the keeper itself goes on with its work."""

from __future__ import annotations

import os

from ddlrun.keeper.forks import HelperProcess, close_files
from ddlrun.keeper.task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.wire.loop import Loop

CHUNK = 1 << 16
# The snapshot where the child could not start, or was killed, as by a host without memory.
NOTHING = b'{"processes": [], "connections": []}'
END = b"\n"


class SnapshotProcess(Task):
    """The child, and what it has written so far."""

    def __init__(
        self, program: int, seconds: float, on_snapshot: Callable[[bytes], None], *, with_ras: bool = False
    ) -> None:
        """Take the program, the time for all stacks together, and what takes the snapshot; see `take_snapshot`."""
        self._on_snapshot = on_snapshot
        self._take = lambda output: _take(program, seconds, output, with_ras=with_ras)
        self._text = b""
        self._child: HelperProcess | None = None

    def join(self, loop: Loop) -> None:
        """Start the child in a loop; the snapshot is empty if there can be no process for it."""
        try:
            self._child = HelperProcess(self._take)
        except OSError:
            self._on_snapshot(NOTHING)
            return
        self.fd = self._child.fd
        super().join(loop)

    def on_ready(self, _events: int) -> None:
        """Read what the child has written; pass the snapshot on once it is complete."""
        chunk = os.read(self.fd, CHUNK)
        self._text += chunk
        if not chunk:
            self.leave()
            self._on_snapshot(self._text if self._text.endswith(END) else NOTHING)

    def leave(self) -> None:
        """End the child and what it has started."""
        super().leave()
        if self._child is not None:
            self._child.stop()


def _take(program: int, seconds: float, output: int, *, with_ras: bool) -> None:
    """Write the snapshot of a program to a descriptor: the child's part."""
    # The keeper's modules may come from an archive, whose descriptor is closed, too.
    from ddlrun.keeper.stacks.snapshot import take_snapshot  # noqa: PLC0415 - in the child alone

    close_files(0, 1, 2, output)
    with open(output, "wb") as file:
        file.write(take_snapshot(program, seconds, with_ras=with_ras).encode(errors="replace") + END)
