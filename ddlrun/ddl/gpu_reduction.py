"""Reductions of tensors on accelerators: by NCCL along each dimension, else through the host's memory and MPI."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ddlrun.ddl import nccl_pipeline
from ddlrun.ddl.arrays import FlatArray, flat, on_device
from ddlrun.ddl.fusion import buckets, deal_out
from ddlrun.ddl.handle import Handle
from ddlrun.ddl.process_groups import ProcessGroups
from ddlrun.ddl.reduce_ops import kind_of
from ddlrun.ddl.staging import staged
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.learner import Learner
    from ddlrun.ddl.nccl_pipeline import PipelinedReduction

BY_NCCL = "bn"
# Bytes of a chunk in mode b, if the tuning's are fewer: those are for MPI, and each chunk costs NCCL some launches.
# Not measured.
CHUNK = 8 << 20


class DeviceBuffer(FlatArray):
    """A tensor whose own memory is worked on, or a contiguous copy of it."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{super().__str__()} on {self.elements.device.type}"


class DeviceHandle(Handle):
    """Reductions that NCCL carries, and the handle of those over MPI; `last` is called when all are done."""

    def __init__(self, staged_ones: Handle, last: Callable[[], None]) -> None:
        super().__init__(None)
        self._staged, self._last = staged_ones, last
        self._flights: list[tuple[PipelinedReduction, Callable[[], None]]] = []
        self._over = False

    def add_flight(self, flight: PipelinedReduction, done: Callable[[], None]) -> None:
        """Count one more in; `done` runs once, when it is waited for."""
        self._flights.append((flight, done))

    def wait(self) -> None:
        """Return when the results are in the tensors, for what is issued to the current stream from now on."""
        self._staged.wait()
        while self._flights:
            flight, done = self._flights.pop(0)
            flight.wait()
            done()
        if not self._over:
            self._over = True
            self._last()

    def test(self) -> bool:
        """Move on what MPI carries; say whether the results are in the tensors."""
        if not self._staged.test() or not all(flight.test() for flight, _ in self._flights):
            return False
        self.wait()
        return True


class GpuReduction:
    """What a learner needs for tensors on accelerators; `free` it with the learner, all together."""

    def __init__(self, learner: Learner, comm: Intracomm | None) -> None:
        self._learner, self._comm = learner, comm
        self._groups: ProcessGroups | None = None

    @property
    def groups(self) -> ProcessGroups:
        """Return the process groups, which all learners make together the first time."""
        if self._groups is None:
            self._groups = ProcessGroups(self._learner.grid, self._comm, one_host=self._learner.host.hosts == 1)
            if self._learner.grid.rank == 0 and self._groups.why_no_nccl and torch.cuda.is_available():
                note = f"no NCCL: {self._groups.why_no_nccl}; tensors on GPUs go through the host's memory and MPI"
                sys.stderr.write(f"ddlrun.ddl: {note}\n")
        return self._groups

    def reduce(self, arrays: Sequence[Any], op: str, axes: str, wire: str, *, blocking: bool) -> Handle:
        """Begin to reduce tensors in place, on devices or not; small ones fused. Raises InputError, naming the rank.

        `wire` is for what MPI carries; NCCL's messages are of the tensors' own type.
        """
        devices = {x.device for x in arrays if on_device(x)}
        self._synchronise(devices, 1)
        direct = [x for x in arrays if self._goes_by_nccl(x)]
        others = [x for x in arrays if not self._goes_by_nccl(x)]
        handle = DeviceHandle(
            self._learner.reduce_flat(self._flats(others, op), op, axes, wire, blocking=blocking),
            partial(self._synchronise, devices, 2),
        )
        if direct:
            self.over_groups(direct, op, axes, handle)
        return handle

    def free(self) -> None:
        """End torch.distributed, where it was begun here."""
        if self._groups is not None:
            self._groups.free()

    def _synchronise(self, devices: set[Any], least: int) -> None:
        """Wait for all that was issued to the devices, if -dev_sync is at least so much."""
        for device in devices if self._learner.options.dev_sync >= least else ():
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def _goes_by_nccl(self, x: Any) -> bool:  # noqa: ANN401
        return (
            self._learner.options.mode in BY_NCCL
            and on_device(x)
            and x.is_cuda
            and _name(x) in nccl_pipeline.TYPES
            and self._learner.grid.size > 1
            and not self.groups.why_no_nccl
        )

    def _flats(self, arrays: Sequence[Any], op: str) -> list[FlatArray]:
        """Return arrays in a row, those on devices copied into the host's memory with one wait for all."""
        with self._named():
            copies = iter(staged([x for x in arrays if on_device(x)]))
            flats = [next(copies) if on_device(x) else flat(x) for x in arrays]
            for one in flats:
                kind_of(one.dtype, op)
        return flats

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let errors say whose they are."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self._learner}: all_reduce: {error}") from error

    def over_groups(self, tensors: Sequence[Any], op: str, axes: str, handle: DeviceHandle) -> None:
        """Begin to reduce tensors in place over the process groups, which must have a backend for their device."""
        rows = [_row(tensor.detach()) for tensor in tensors]
        with self._named():
            for row in rows:
                kind_of(row.dtype, op)
        self._learner.compare(rows, op, axes)
        dimensions = self.groups.along(axes)
        for bucket in buckets(rows, self._learner.tuning):
            elements: Any = bucket[0].elements if len(bucket) == 1 else torch.cat([one.elements for one in bucket])  # type: ignore[misc]
            longest = len(elements)
            if self._learner.options.mode == "b":
                longest = max(self._learner.tuning.chunk, CHUNK) // elements.element_size()
            flight = nccl_pipeline.start(elements, op, dimensions, longest)
            handle.add_flight(flight, partial(deal_out, bucket, elements))


def _row(tensor: Any) -> DeviceBuffer:  # noqa: ANN401 - a tensor
    if tensor.is_contiguous():
        return DeviceBuffer(tensor.view(-1), _name(tensor), tuple(tensor.shape))
    return DeviceBuffer(tensor.contiguous().view(-1), _name(tensor), tuple(tensor.shape), tensor)


def _name(x: Any) -> str:  # noqa: ANN401
    return str(x.dtype).removeprefix("torch.")
