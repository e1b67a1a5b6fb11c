"""A reduction that is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.ddl.engine import Engine, Work


class Handle:
    """Wait for it before its arrays are read or written. Messages move in calls to `start`, `test` and `wait` alone."""

    def __init__(self, engine: Engine | None) -> None:
        self._engine = engine
        self._open: list[tuple[Work, Callable[[], None]]] = []

    def add(self, work: Work, done: Callable[[], None]) -> None:
        """Count one more work in; `done` runs once, when it is found complete."""
        self._open.append((work, done))

    def wait(self) -> None:
        """Return when the results are in the arrays; at once the second time."""
        while self._open and self._engine is not None:
            work, done = self._open[0]
            self._engine.wait(work)
            del self._open[0]
            done()

    def test(self) -> bool:
        """Move on what is ready; say whether the results are in the arrays."""
        while self._open and self._engine is not None and self._engine.test(self._open[0][0]):
            self._open.pop(0)[1]()
        return not self._open
