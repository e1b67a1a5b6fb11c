"""Handles of reductions in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.ddl.engine import Engine
    from ddlrun.ddl.operation import Operation


class Handle:
    """A reduction in progress: wait for it before its arrays are read or written.

    Messages move only during calls of `start`, `test` and `wait`.
    """

    def __init__(self, engine: Engine | None, description: str = "") -> None:
        self._engine, self._description = engine, description
        self._open: list[tuple[Operation, Callable[[], None]]] = []

    def add(self, operation: Operation, finish: Callable[[], None]) -> None:
        """Add an operation. `finish` is called once, when the operation is complete."""
        self._open.append((operation, finish))

    def wait(self) -> None:
        """Return when the results are in the arrays. A second call returns at once.

        Raises:
            InputError: A message had another length, because another rank reduces other arrays.
        """
        while self._open and self._engine is not None:
            operation, finish = self._open[0]
            try:
                self._engine.wait(operation)
            except RuntimeError as error:
                raise self.explain(error) from error
            del self._open[0]
            finish()

    def test(self) -> bool:
        """Handle the messages that are complete, without blocking.

        Returns:
            True if the results are in the arrays.

        Raises:
            InputError: As in `wait`.
        """
        try:
            while self._open and self._engine is not None and self._engine.test(self._open[0][0]):
                self._open.pop(0)[1]()
        except RuntimeError as error:
            raise self.explain(error) from error
        return not self._open

    def explain(self, error: RuntimeError) -> InputError:
        """Return an error of the transport or MPI with the dtype and shape of the arrays, which it lacks."""
        return InputError(
            f"{self._description}: {error}; -dbg_level 1 tells whether another rank reduces something else"
        )
