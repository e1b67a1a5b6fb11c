"""Flat arrays: the caller's memory as one-dimensional numpy views.

The arguments of the collectives are arrays of numpy, torch, DLPack and `__array_interface__`, and numbers. Tensors on
devices are copied to host memory: MPI libraries are rarely built to read a GPU's memory.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Tensor = Any  # torch.Tensor


class FlatArray(NamedTuple):
    """An array in one dimension, with the name of its dtype and its original shape.

    `elements` of bfloat16 are uint16, as numpy has no such dtype. `whole` is the caller's array if `elements` had to be
    a copy of it, else None. For tensors on a device `elements` and `whole` are tensors (`DeviceBuffer`).
    """

    elements: Any
    dtype: str
    shape: tuple[int, ...]
    whole: Any = None

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"

    def write_back(self) -> None:
        """Copy the elements to the caller's memory if they are a copy of it."""
        if self.whole is not None:
            self.whole[...] = self.elements.reshape(self.shape)


def as_numpy(x: Any) -> tuple[NDArray[Any], str]:  # noqa: ANN401
    """Return x as a numpy view of its memory, and the name of its dtype ("bfloat16" for a view of uint16).

    Raises InputError if x is not an array in this host's memory.
    """
    if isinstance(x, np.ndarray):
        return _view_ndarray(x)
    if isinstance(x, np.generic):
        raise InputError(f"{type(x).__name__} is a number, which nothing can be written to; pass an array")
    device = str(getattr(x, "device", "cpu")).lower()
    if "cpu" not in device:
        raise InputError(f"{type(x).__name__} on {device}: pass a torch tensor, or an array in this host's memory")
    if hasattr(x, "detach"):
        return _view_tensor(x.detach())  # numpy accepts no tensor that requires a gradient
    try:
        view = np.asarray(x) if hasattr(x, "__array_interface__") else np.from_dlpack(x)
    except (AttributeError, TypeError, BufferError, RuntimeError) as error:
        raise InputError(f"{type(x).__name__} is not an array: {error}; pass a NumPy array or torch tensor") from error
    return view, view.dtype.name


def view_bytes(tensor: Any) -> NDArray[Any]:  # noqa: ANN401
    """Return the memory of a contiguous tensor on the CPU as flat bytes."""
    return _view_memory(tensor, np.dtype(np.uint8), (tensor.numel() * tensor.element_size(),))


def _view_tensor(tensor: Any) -> tuple[NDArray[Any], str]:  # noqa: ANN401
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        dtype = np.dtype("uint16" if name == "bfloat16" else name)
        strides = None if tensor.is_contiguous() else tuple(step * dtype.itemsize for step in tensor.stride())
        return _view_memory(tensor, dtype, tuple(tensor.shape), strides), name
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"tensor of {tensor.dtype}, {tensor.layout}: {error}; make it a dense one of another type"
        ) from error


def _view_memory(
    tensor: Any,  # noqa: ANN401
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
) -> NDArray[Any]:
    place = tensor.data_ptr()
    if not tensor.numel():
        return np.empty(shape, dtype)
    if not place or dtype.kind not in "biufc" or tensor.is_conj() or tensor.is_neg():
        raise TypeError("its memory does not hold its elements")
    return np.asarray(_TensorMemory(tensor, {
        "version": 3, "data": (place, False), "typestr": dtype.str, "shape": shape, "strides": strides,
    }))  # fmt: skip


class _TensorMemory:
    """The memory of a tensor for numpy, which keeps the tensor. `tensor.numpy()` would forbid torch to resize it."""

    def __init__(self, tensor: Any, interface: dict[str, Any]) -> None:  # noqa: ANN401
        self.tensor, self.__array_interface__ = tensor, interface


def _view_ndarray(x: NDArray[Any]) -> tuple[NDArray[Any], str]:
    if isinstance(x, np.ma.MaskedArray):
        raise InputError("a masked array: its mask would be ignored; pass x.filled(0)")
    if x.dtype.hasobject or not x.dtype.isnative:
        content = "Python objects" if x.dtype.hasobject else f"{x.dtype.str}, another machine's byte order"
        raise InputError(f"ndarray of {content}; cast to float32")
    x = x.view(np.ndarray)  # np.matrix would stay two-dimensional
    name = x.dtype.name  # numpy computes it in 1 us
    return (x.view(np.uint16) if name == "bfloat16" else x), name


def flatten(x: Any) -> FlatArray:  # noqa: ANN401
    """Return x as a flat array: a view of its memory, or a copy if it is on a device or not contiguous.

    Raises InputError if x is not an array, or is read-only.
    """
    if on_device(x):
        return stage([x])[0]
    view, dtype = as_numpy(x)
    if not view.flags.writeable:
        raise InputError(f"{type(x).__name__} of {dtype} is read-only; pass a copy")
    if view.flags.c_contiguous:
        return FlatArray(view.reshape(-1), dtype, view.shape)
    return FlatArray(np.ascontiguousarray(view).reshape(-1), dtype, view.shape, view)


def on_device(x: Any) -> bool:  # noqa: ANN401
    """Return True if x is a torch tensor outside the host's memory."""
    return hasattr(x, "detach") and hasattr(x, "device") and bool(x.device.type != "cpu")


def copy_of(x: Any) -> Any:  # noqa: ANN401 - an array of the kind of x
    """Return a copy of x that can be modified in place; a numpy array for a number or a list."""
    if isinstance(x, np.generic):
        return np.array(x)
    for name in ("clone", "copy"):  # torch's name, numpy's
        if hasattr(x, name) and not isinstance(x, list | dict):
            return getattr(x.detach() if hasattr(x, "detach") else x, name)()
    return np.array(x, dtype=np.float64 if isinstance(x, float) else None)


def restore_type(x: object, result: Any) -> Any:  # noqa: ANN401
    """Return a result in the type of the argument x: a number for a number, a numpy scalar for a numpy scalar."""
    return result.item() if isinstance(x, int | float) else result[()] if isinstance(x, np.generic) else result


class StagedTensor(FlatArray):
    """A device tensor; `elements` are its copy in host memory, `whole` is the pair (tensor, copy)."""

    __slots__ = ()

    def write_back(self) -> None:
        """Copy the elements to the device, in the order of its current stream."""
        tensor, host = self.whole
        tensor.copy_(host, non_blocking=tensor.is_cuda)


def stage(tensors: Sequence[Tensor]) -> list[StagedTensor]:
    """Copy tensors to pinned host memory, and wait for the copies: MPI does not know the device's streams.

    Raises InputError if numpy has no dtype for a tensor.
    """
    copies = [_copy(tensor.detach()) for tensor in tensors]
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        _torch().cuda.current_stream(device).synchronize()
    return copies


def _torch() -> Any:  # noqa: ANN401 - a module
    """Return torch, which is loaded, as there is a tensor."""
    return sys.modules["torch"]


def _copy(tensor: Tensor) -> StagedTensor:
    host = _torch().empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    host.copy_(tensor, non_blocking=tensor.is_cuda)
    view, dtype = as_numpy(host)
    return StagedTensor(view.reshape(-1), dtype, view.shape, (tensor, host))
