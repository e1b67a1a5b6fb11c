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
        raise InputError(f"{type(x).__name__} on {device}: only torch tensors there, else arrays in this host's memory")
    if hasattr(x, "detach"):
        return _view_tensor(x.detach())  # numpy accepts no tensor that requires a gradient
    try:
        view = np.asarray(x) if hasattr(x, "__array_interface__") else np.from_dlpack(x)
    except (AttributeError, TypeError, BufferError, RuntimeError) as error:
        raise InputError(f"{type(x).__name__} is no array: {error}; pass a numpy array or a torch tensor") from error
    return view, view.dtype.name


def _view_tensor(tensor: Any) -> tuple[NDArray[Any], str]:  # noqa: ANN401
    is_bfloat16 = str(tensor.dtype) == "torch.bfloat16"
    try:
        view = (_view_as_int16(tensor) if is_bfloat16 else tensor).numpy()
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"tensor of {tensor.dtype}, {tensor.layout}: {error}; make it a dense one of another type"
        ) from error
    return (view.view(np.uint16), "bfloat16") if is_bfloat16 else (view, view.dtype.name)


def _view_ndarray(x: NDArray[Any]) -> tuple[NDArray[Any], str]:
    if isinstance(x, np.ma.MaskedArray):
        raise InputError("a masked array: its mask would be ignored; pass x.filled(0)")
    if x.dtype.hasobject or not x.dtype.isnative:
        content = "Python objects" if x.dtype.hasobject else f"{x.dtype.str}, another machine's byte order"
        raise InputError(f"ndarray of {content}; cast to float32")
    x = x.view(np.ndarray)  # np.matrix would stay two-dimensional
    return (x.view(np.uint16), "bfloat16") if x.dtype.name == "bfloat16" else (x, x.dtype.name)


def _view_as_int16(tensor: Any) -> Any:  # noqa: ANN401
    import torch  # noqa: PLC0415 - loaded already, as there is a tensor

    return tensor.view(torch.int16)
