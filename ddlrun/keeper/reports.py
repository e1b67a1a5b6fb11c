"""The reports of a running program: the use of resources, and snapshots of its processes."""

from __future__ import annotations

import os

from ddlrun.keeper import protocol
from ddlrun.keeper.settings import HOOK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.keeper.connection import LauncherConnection
    from ddlrun.keeper.nccl_log import NcclLog
    from ddlrun.keeper.settings import KeeperSettings
    from ddlrun.keeper.singleton import SingletonWatch, WorldFinding
    from ddlrun.keeper.stacks.snapshot_process import SnapshotProcess
    from ddlrun.keeper.usage.rank import UsageReporter
    from ddlrun.wire.loop import Loop

SNAPSHOT_SECONDS = 15.0
# The time from the start of a program to the first look for a singleton.
FIRST_LOOK = 0.1


class ProgramReports:
    """The tasks that report on a program; they end with it."""

    def __init__(
        self, loop: Loop, connection: LauncherConnection, settings: KeeperSettings, is_running: Callable[[], bool],
        nccl_log: NcclLog | None,
    ) -> None:  # fmt: skip
        """Begin, with a log at most. `is_running` returns False once the program has been ordered to end."""
        self._loop, self._connection, self._settings = loop, connection, settings
        self._is_running = is_running
        self._usage: UsageReporter | None = None
        self._snapshot: SnapshotProcess | None = None
        self._singleton: SingletonWatch | None = None
        self._nccl_log = nccl_log
        if nccl_log is not None:
            nccl_log.join(loop)

    def take_snapshot(self, program: int) -> None:
        """Report the state of a program's processes, unless that is under way."""
        from ddlrun.keeper.stacks.snapshot_process import SnapshotProcess  # noqa: PLC0415 - for stalls alone

        if self._snapshot is None:
            is_first = self._settings.local_rank == 0
            self._snapshot = SnapshotProcess(program, SNAPSHOT_SECONDS, self._on_snapshot, with_ras=is_first)
            self._snapshot.join(self._loop)

    def _on_snapshot(self, text: bytes) -> None:
        self._snapshot = None
        self._connection.send(protocol.SNAPSHOT, text)

    def measure(self, guard: int, started_at: float, interval: float) -> None:
        """Report the use of resources from now on, by the processes below the guard and by the host."""
        from ddlrun.keeper.usage.rank import UNREADABLE, UsageReporter  # noqa: PLC0415 - not for a moment's ranks

        if self._usage is not None:
            self._usage.leave()
        try:
            self._usage = UsageReporter(guard, interval, started_at)
            if self._settings.local_rank == 0:
                self._add_host(self._usage, interval)
            self._usage.begin(self._loop, self._connection, self._on_problem)
        except UNREADABLE as error:
            self._on_problem(error)

    def _on_problem(self, problem: str | Exception) -> None:
        """Report a problem with measuring: a text, or the error at a file of /proc that has another content here."""
        if isinstance(problem, Exception):
            problem = f"{self._settings.label}: no samples of its use of resources: {problem!r}"
        if self._is_running():  # an order ends nvidia-smi, too
            self._connection.send(protocol.NOTE, problem.encode(errors="replace"))

    def _add_host(self, usage: UsageReporter, interval: float) -> None:
        from ddlrun.keeper.usage.gpus import GpuRanks, GpuUsageReader  # noqa: PLC0415 - once per host
        from ddlrun.keeper.usage.host import HostUsageReader  # noqa: PLC0415 - once per host

        ranks = GpuRanks(os.environ, self._settings.rank, self._settings.size)
        usage.host, usage.gpus = HostUsageReader(), GpuUsageReader(ranks, interval)

    def watch_world(self, program: int, started_at: float, end: Callable[[str], None]) -> None:
        """Look for a singleton after a moment; `end` takes the reason to end the program."""
        if self._settings.size < 2 or "world" not in os.environ.get(HOOK, "world"):
            return

        def first_look() -> float:
            return started_at + FIRST_LOOK

        def begin(_now: float) -> None:
            from ddlrun.keeper.singleton import SingletonWatch  # noqa: PLC0415 - not for a moment's ranks

            self._loop.forget_deadline(first_look)
            if self._is_running():
                self._singleton = SingletonWatch(program, self._settings.size, started_at, report)
                self._singleton.join(self._loop)

        def report(finding: WorldFinding) -> None:
            if finding.ends:
                end(finding.text)
            else:
                self._connection.send(protocol.NOTE, f"{self._settings.label}: {finding.text}".encode())

        self._loop.watch_deadline(first_look, begin)

    def stop(self) -> None:
        """End all tasks."""
        for task in (self._singleton, self._usage, self._snapshot, self._nccl_log):
            if task is not None:
                task.leave()
