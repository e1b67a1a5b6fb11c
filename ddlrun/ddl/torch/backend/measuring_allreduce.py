"""An allreduce before which measurements are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlrun.ddl.torch.backend.works import Exclusive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.ddl.group.operation import Operation

    Start = Callable[[], Operation | None]


class MeasuringAllreduce(Exclusive):
    """An allreduce before which measurements are made.

    They begin when all members have called it: until then, a member may wait for a message of another one.
    """

    def __init__(self, measurements: Sequence[Callable[[], None]], barrier: Operation | None, start: Start) -> None:
        """Take a barrier, which is complete once all members have begun it, and the start of the allreduce."""
        self._measurements, self._start = measurements, start
        self._has_begun = False
        self._operation = barrier

    def __call__(self) -> bool:
        """Measure, then begin the allreduce; return whether it is complete."""
        if not self._has_begun and self._is_complete():
            self._has_begun = True  # and never again if a work runs out of time meanwhile
            for measure in self._measurements:
                measure()
            self._operation = self._start()
            self.over = True
        return self.over and self._is_complete()

    def _is_complete(self) -> bool:
        return self._operation is None or not self._operation.left
