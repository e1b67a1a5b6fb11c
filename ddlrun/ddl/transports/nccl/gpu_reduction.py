"""Reductions of tensors on devices: by NCCL along each dimension, or through host memory and MPI."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ddlrun.ddl.group.flat import FlatArray, flatten, on_device, stage
from ddlrun.ddl.group.host_reduction import make_buckets, unpack_bucket
from ddlrun.ddl.group.reduce_ops import find_reduce_op
from ddlrun.ddl.transports.nccl import pipeline
from ddlrun.ddl.transports.nccl.process_groups import ProcessGroups
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddlrun.ddl.group.handle import Handle
    from ddlrun.ddl.group.host_reduction import HostReducer

NCCL_MODES = "bn"
# The least bytes of a chunk in mode b. The tuning's chunks are sized for MPI, and each chunk costs NCCL several kernel
# launches. Not measured.
MIN_CHUNK = 8 << 20


class DeviceBuffer(FlatArray):
    """A tensor on a device that is reduced in its own memory, or a contiguous copy of it."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{super().__str__()} on {self.elements.device.type}"


class GpuReduction:
    """Reduces tensors on devices over the grid of a host reducer. All learners `free` it together."""

    def __init__(self, reducer: HostReducer, *, one_host: bool) -> None:
        self._reducer, self._one_host = reducer, one_host
        self._grid, self._options, self._tuning = reducer.grid, reducer.options, reducer.tuning
        self._groups: ProcessGroups | None = None

    @property
    def groups(self) -> ProcessGroups:
        """The process groups, which all learners create together at the first use."""
        if self._groups is None:
            self._groups = ProcessGroups(self._grid, one_host=self._one_host)
            if self._grid.rank == 0 and self._groups.why_no_nccl and torch.cuda.is_available():
                sys.stderr.write(
                    f"ddlrun.ddl: no NCCL: {self._groups.why_no_nccl}; tensors on GPUs go through the host's memory "
                    "and MPI\n"
                )
        return self._groups

    def reduce(self, arrays: Sequence[Any], op: str, axes: str, wire: str, *, blocking: bool) -> Handle:
        """Begin to reduce tensors in place, on devices or not, small ones fused.

        `wire` applies to what MPI carries; NCCL sends the tensors' own dtype. Raises InputError, with the rank, if a
        tensor cannot be reduced.
        """
        devices = {x.device for x in arrays if on_device(x)}
        self._synchronize(devices, 1)
        by_nccl = [x for x in arrays if self._uses_nccl(x)]
        by_mpi = [x for x in arrays if not self._uses_nccl(x)]
        handle = self._reducer.reduce(self._flatten(by_mpi, op), op, axes, wire, blocking=blocking)
        handle.at_end.append(partial(self._synchronize, devices, 2))
        if by_nccl:
            self.reduce_over_groups(by_nccl, op, axes, handle)
        return handle

    def reduce_over_groups(self, tensors: Sequence[Any], op: str, axes: str, handle: Handle) -> None:
        """Begin to reduce tensors in place over the process groups, which must have a backend for their device."""
        rows = [_view_as_row(tensor.detach()) for tensor in tensors]
        with self._name_rank():
            for row in rows:
                find_reduce_op(row.dtype, op)
        self._reducer.compare(rows, op, axes)
        dimensions = self.groups.along(axes)
        for bucket in make_buckets(rows, self._tuning):
            elements: Any = (
                bucket[0].elements if len(bucket) == 1 else torch.cat([row.elements for row in bucket])  # type: ignore[misc]
            )
            longest = len(elements)
            if self._options.mode == "b":
                longest = max(self._tuning.chunk, MIN_CHUNK) // elements.element_size()
            self._reducer.guard.begin_messages()
            reduction = pipeline.start(elements, op, dimensions, longest)
            handle.add_on_device(reduction, partial(unpack_bucket, bucket, elements))

    def free(self) -> None:
        """End torch.distributed if it was started here."""
        if self._groups is not None:
            self._groups.free()

    def _synchronize(self, devices: set[Any], level: int) -> None:
        """Wait for everything that was issued to the devices, if -dev_sync is at least `level`."""
        for device in devices if self._options.dev_sync >= level else ():
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def _uses_nccl(self, x: Any) -> bool:  # noqa: ANN401
        return (
            self._options.mode in NCCL_MODES
            and on_device(x)
            and x.is_cuda
            and _dtype_name(x) in pipeline.TYPES
            and self._grid.size > 1
            and not self.groups.why_no_nccl
        )

    def _flatten(self, arrays: Sequence[Any], op: str) -> list[FlatArray]:
        """Return flat arrays; tensors on devices are copied to host memory with one wait for all."""
        with self._name_rank():
            copies = iter(stage([x for x in arrays if on_device(x)]))
            flat_arrays = [next(copies) if on_device(x) else flatten(x) for x in arrays]
            for array in flat_arrays:
                find_reduce_op(array.dtype, op)
        return flat_arrays

    @contextmanager
    def _name_rank(self) -> Iterator[None]:
        """Add the rank to the message of an InputError."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self._grid}: all_reduce: {error}") from error


def _view_as_row(tensor: Any) -> DeviceBuffer:  # noqa: ANN401 - a tensor
    if tensor.is_contiguous():
        return DeviceBuffer(tensor.view(-1), _dtype_name(tensor), tuple(tensor.shape))
    return DeviceBuffer(tensor.contiguous().view(-1), _dtype_name(tensor), tuple(tensor.shape), tensor)


def _dtype_name(x: Any) -> str:  # noqa: ANN401
    return str(x.dtype).removeprefix("torch.")
