"""A learner: its grid, and the collectives over it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl.group.flat import FlatArray, copy_of, flatten, on_device, restore_type
from ddlrun.ddl.group.host_reduction import HostReducer
from ddlrun.ddl.group.reduce_ops import find_reduce_op
from ddlrun.ddl.selection.wire_compression import find_wire
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.ddl.group.dimensions import Grid
    from ddlrun.ddl.group.group import Group
    from ddlrun.ddl.group.handle import Handle
    from ddlrun.ddl.launch_context import HostPosition
    from ddlrun.ddl.transports.nccl.gpu_reduction import GpuReduction


# Bytes of a broadcast: MPI counts up to 2^31 - 1.
MAX_BROADCAST = 1 << 30


class Learner:
    """Runs collectives over a grid. All ranks create it together, and `free` it before MPI ends."""

    def __init__(self, grid: Grid, group: Group, host: HostPosition) -> None:
        self.grid, self.group, self.host = grid, group, host
        self.options, self.tuning = group.selection.options, group.selection.tuning
        self._find_wire = lru_cache(maxsize=16)(self._make_wire)
        self.reducer = HostReducer(grid, group, self._find_wire(None))
        self.guard = self.reducer.guard
        self._small_messages = self.reducer.small_messages
        self._devices: GpuReduction | None = None

    def free(self) -> None:
        """Free the communicators and the process groups."""
        with self.guard:
            self.guard.begin_messages()
            if self._devices is not None:
                self._devices.free()
            self.group.free()
            self.grid.free()

    @property
    def devices(self) -> GpuReduction:
        """The reductions of tensors on devices, with the process groups."""
        if self._devices is None:
            from ddlrun.ddl.transports.nccl.gpu_reduction import GpuReduction  # noqa: PLC0415 - 1.5 s: torch

            self._devices = GpuReduction(self.reducer, one_host=self.host.hosts == 1)
        return self._devices

    def all_reduce(self, x: Any, op: str, axes: str, in_place: bool, wire: str | None = None) -> Any:  # noqa: ANN401, FBT001
        """Reduce one array; see `ddl.all_reduce`."""
        result = x if in_place else copy_of(x)
        small = self._small_messages if wire is None and not axes else None
        if small is not None and type(result) is np.ndarray and not self.guard.problem:
            try:
                is_reduced = small.reduce(result, op)
            except BaseException as error:
                self.guard.remember(error)
                raise
            if is_reduced:
                return result if in_place else restore_type(x, result)
        with self.guard:
            self._start([result], op, axes, wire).advance(blocking=True)
        return restore_type(x, result)

    def all_reduce_n(self, arrays: Sequence[Any], op: str, *, axes: str, in_place: bool, wire: str | None) -> list[Any]:
        """Reduce several arrays, small ones fused."""
        results = list(arrays) if in_place else [copy_of(x) for x in arrays]
        with self.guard:
            self._start(results, op, axes, wire).advance(blocking=True)
        return [restore_type(x, result) for x, result in zip(arrays, results, strict=True)]

    def start(self, arrays: Sequence[Any], op: str, *, axes: str, wire: str | None) -> Handle:
        """Begin to reduce arrays in place."""
        with self.guard:
            return self._start(arrays, op, axes, wire, blocking=False)

    def reduce_scatter(self, x: Any, op: str) -> Any:  # noqa: ANN401
        """Reduce x, which is overwritten; return this learner's block of the result, flat."""
        array = self._flatten(x, "reduce_scatter", op)
        with self.guard:
            self.reducer.reduce_scatter(array, find_reduce_op(array.dtype, op))
        return x.reshape(-1)[slice(*self.piece(len(array.elements)))]

    def allgather_pieces(self, x: Any) -> Any:  # noqa: ANN401
        """Fill x from the block of each learner: the inverse of `reduce_scatter`."""
        array = self._flatten(x, "allgather_pieces", "sum")
        with self.guard:
            self.reducer.allgather(array)
        return x

    def allgather(self, x: Any) -> Any:  # noqa: ANN401
        """Return the x of all learners in rank order: a numpy array of shape (size, *x.shape)."""
        array = self._flatten(copy_of(x), "allgather")
        rows = np.empty((self.grid.size, len(array.elements)), array.elements.dtype)
        rows[self.grid.index] = array.elements
        as_bytes = FlatArray(rows.reshape(-1).view(np.uint8), "uint8", rows.shape)
        with self.guard:
            self.reducer.allgather(as_bytes)
        places = [self.grid.index_of(rank) for rank in range(self.grid.size)]
        ordered = rows if places == sorted(places) else rows[places]
        return ordered.reshape(self.grid.size, *array.shape)

    def bcast(self, x: Any, root: int, *, in_place: bool) -> Any:  # noqa: ANN401
        """Return rank root's x."""
        if not 0 <= root < self.grid.size:
            raise InputError(f"{self.grid}: bcast from root {root}: there are ranks 0 to {self.grid.size - 1}")
        result = x if in_place else copy_of(x)
        if self.grid.size > 1:
            array = self._flatten(result, "bcast")
            memory, root_in_comm = array.elements.view(np.uint8), self.grid.host_index_of(root)
            with self.guard:
                self.guard.begin_messages()
                for at in range(0, len(memory), MAX_BROADCAST):
                    self.group.communicator.Bcast(memory[at : at + MAX_BROADCAST], root_in_comm)
                array.write_back()
        return restore_type(x, result)

    def barrier(self) -> None:
        """Wait until all learners have called it."""
        if self.grid.size > 1:
            with self.guard:
                self.guard.begin_messages()
                self.group.communicator.Barrier()

    def piece(self, count: int) -> tuple[int, int]:
        """Return (low, high): the block of a flat array of `count` elements that reduce_scatter leaves here."""
        return self.reducer.schedules.own_block(count)

    def _start(self, arrays: Sequence[Any], op: str, axes: str, wire: str | None, *, blocking: bool = True) -> Handle:
        complete_wire = self._find_wire(wire)
        if any(map(on_device, arrays)):
            return self.devices.reduce(arrays, op, axes, complete_wire, blocking=blocking)
        flat_arrays = [self._flatten(x, "all_reduce", op) for x in arrays]
        return self.reducer.reduce(flat_arrays, op, axes, complete_wire, blocking=blocking)

    def _flatten(self, x: object, caller: str, op: str = "") -> FlatArray:
        try:
            array = flatten(x)
            if op:
                find_reduce_op(array.dtype, op)
        except InputError as error:
            raise InputError(f"{self.grid}: {caller}: {error}") from error
        return array

    def _make_wire(self, text: str | None) -> str:
        """Return the wire of a call with its dimensions; None: that of the tuning."""
        try:
            return find_wire(
                self.tuning.wire if text is None else text, self.options.mode, self.grid.axes, self.host.leaving
            )
        except InputError as error:
            raise InputError(f"{self.grid}: {error}") from error
