"""A reduction that is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.ddl.engine import Engine, Operation


class Handle:
    """Wait for it before its arrays are read or written. Messages move in calls to `start`, `test` and `wait` alone."""

    def __init__(self, engine: Engine | None, what: str = "") -> None:
        self._engine, self._what = engine, what
        self._open: list[tuple[Operation, Callable[[], None]]] = []

    def add(self, work: Operation, done: Callable[[], None]) -> None:
        """Count one more work in; `done` runs once, when it is found complete."""
        self._open.append((work, done))

    def wait(self) -> None:
        """Return when the results are in the arrays; at once the second time."""
        while self._open and self._engine is not None:
            work, done = self._open[0]
            try:
                self._engine.wait(work)
            except RuntimeError as error:
                raise self._failed(error) from error
            del self._open[0]
            done()

    def test(self) -> bool:
        """Move on what is ready; say whether the results are in the arrays."""
        try:
            while self._open and self._engine is not None and self._engine.test(self._open[0][0]):
                self._open.pop(0)[1]()
        except RuntimeError as error:
            raise self._failed(error) from error
        return not self._open

    def _failed(self, error: RuntimeError) -> InputError:
        """Say what the messages were of: MPI's errors (they are RuntimeErrors) know neither type nor shape."""
        return InputError(f"{self._what}: {error}; -dbg_level 1 tells whether another rank reduces something else")
