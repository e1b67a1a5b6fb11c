"""Flat arrays: the caller's memory as one-dimensional numpy views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
