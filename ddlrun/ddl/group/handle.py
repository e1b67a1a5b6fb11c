"""Handles of reductions in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlrun.ddl.transports.communicators import message_errors
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.ddl.group.engine import Engine
    from ddlrun.ddl.group.operation import Operation
    from ddlrun.ddl.transports.interruption import InterruptionGuard
    from ddlrun.ddl.transports.nccl.pipeline import PipelinedReduction


class Handle:
    """A reduction in progress: wait for it before its arrays are read or written.

    Messages move only during calls of `start`, `test` and `wait`.
    """

    def __init__(self, engine: Engine, guard: InterruptionGuard, description: str = "") -> None:
        self._engine, self._guard, self._description = engine, guard, description
        self._is_complete = False
        self._open: list[tuple[Operation, Callable[[], None]]] = []
        self._on_devices: list[tuple[PipelinedReduction, Callable[[], None]]] = []
        self.at_end: list[Callable[[], None]] = []
        """Are called once, when all is complete."""

    def add(self, operation: Operation, finish: Callable[[], None]) -> None:
        """Add an operation. `finish` is called once, when the operation is complete."""
        self._open.append((operation, finish))

    def add_on_device(self, reduction: PipelinedReduction, finish: Callable[[], None]) -> None:
        """Add a reduction by NCCL. `finish` is called once, when work issued from then on sees the result."""
        self._on_devices.append((reduction, finish))

    def wait(self) -> None:
        """Return when the results are in the arrays. A second call returns at once.

        Raises:
            InputError: A message had the wrong length, because another rank reduces other arrays.
            LostRankError: A rank has ended (without MPI), or an exception such as KeyboardInterrupt has interrupted an
                earlier call of this rank.
        """
        if not self._is_complete:
            with self._guard:
                self._guard.begin_messages()
                self.advance(blocking=True)

    def test(self) -> bool:
        """Handle the messages that are complete, without blocking.

        Returns:
            True if the results are in the arrays.

        Raises:
            InputError, LostRankError: As in `wait`.
        """
        if not self._is_complete:
            with self._guard:
                self._guard.begin_messages()
                self.advance()
        return self._is_complete

    def advance(self, *, blocking: bool = False) -> bool:
        """Do what `test` does, or `wait` if `blocking`, in a call that is guarded already."""
        while self._open:
            operation, finish = self._open[0]
            try:
                if blocking:
                    self._engine.wait(operation)
                elif not self._engine.test(operation):
                    return False
            except message_errors() as error:
                raise self.explain(error) from error
            del self._open[0]
            finish()
        if not blocking and not all(reduction.test() for reduction, _ in self._on_devices):
            return False
        while self._on_devices:
            reduction, finish = self._on_devices.pop(0)
            reduction.wait()
            finish()
        for call in self.at_end:
            call()
        self._is_complete = True
        return True

    def explain(self, error: Exception) -> InputError:
        """Return an error of the transport or MPI with the dtype and shape of the arrays, which it lacks."""
        return InputError(f"{self._description}: {error}; -dbg_level 1 shows whether ranks reduce different arrays")
