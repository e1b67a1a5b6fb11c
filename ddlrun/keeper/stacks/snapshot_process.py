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


def start_snapshot(
    loop: Loop, program: int, seconds: float, on_snapshot: Callable[[bytes], None]
) -> SnapshotProcess | None:
    """Start the snapshot of a program and its descendants in a loop; return None where there can be no process for it.

    Args:
        loop: The loop.
        program: The program.
        seconds: The time that all stacks together take at most.
        on_snapshot: Takes the snapshot, which is empty if there can be no process.
    """
    try:
        process = SnapshotProcess(program, seconds, on_snapshot)
    except OSError:
        on_snapshot(NOTHING)
        return None
    process.join(loop)
    return process


class SnapshotProcess(Task):
    """The child, and what it has written so far."""

    def __init__(self, program: int, seconds: float, on_snapshot: Callable[[bytes], None]) -> None:
        """Start the child: see start_snapshot. Raises OSError if there can be no process."""
        self._on_snapshot = on_snapshot
        self._text = b""
        self._child = HelperProcess(lambda output: _take(program, seconds, output))
        self.fd = self._child.fd

    def on_ready(self, _events: int) -> None:
        """Read what the child has written; pass the snapshot on once it is complete."""
        chunk = os.read(self.fd, CHUNK)
        self._text += chunk
        if not chunk:
            self.stop()
            self._on_snapshot(self._text if self._text.endswith(END) else NOTHING)

    def stop(self) -> None:
        """End the child and what it has started."""
        self.leave()
        self._child.stop()


def _take(program: int, seconds: float, output: int) -> None:
    """Write the snapshot of a program to a descriptor: the child's part."""
    # The keeper's modules may come from an archive, whose descriptor is closed, too.
    from ddlrun.keeper.stacks.snapshot import take_snapshot  # noqa: PLC0415 - in the child alone

    close_files(0, 1, 2, output)
    with open(output, "wb") as file:
        file.write(take_snapshot(program, seconds).encode(errors="replace") + END)
