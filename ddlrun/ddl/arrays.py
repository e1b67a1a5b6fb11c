"""The caller's arrays as flat numpy views: numpy, torch, DLPack, `__array_interface__`, plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FlatArray(NamedTuple):
    """One array: its elements in a row, the name of their type (bfloat16 lies there as uint16), its shape.

    `whole` is the caller's memory where `elements` had to be a copy of it; else it is None. On a device (`Row` in
    devices.py) both are tensors.
    """

    elements: Any
    dtype: str
    shape: tuple[int, ...]
    whole: Any = None

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"

    def give_back(self) -> None:
        """Write the elements into the caller's memory, where they are a copy."""
        if self.whole is not None:
            self.whole[...] = self.elements.reshape(self.shape)


def flat(x: Any) -> FlatArray:  # noqa: ANN401
    """Return x in a row: a copy if a device has it or it is not contiguous. Raises InputError on what is no array."""
    if on_device(x):
        from ddlrun.ddl.staging import staged  # noqa: PLC0415 - it needs torch, which made x

        return staged([x])[0]
    view, dtype = as_numpy(x)
    if not view.flags.writeable:
        raise InputError(f"{type(x).__name__} of {dtype} is only to be read; pass a copy")
    if view.flags.c_contiguous:
        return FlatArray(view.reshape(-1), dtype, view.shape)
    return FlatArray(np.ascontiguousarray(view).reshape(-1), dtype, view.shape, view)


def on_device(x: Any) -> bool:  # noqa: ANN401
    """Say whether x is a torch tensor outside of the host's memory."""
    return hasattr(x, "detach") and hasattr(x, "device") and bool(x.device.type != "cpu")


def copied(x: Any) -> Any:  # noqa: ANN401 - any array goes in, one of its kind comes out
    """Return a copy that can be worked on in place."""
    if isinstance(x, np.generic):
        return np.array(x)
    for name in ("clone", "copy"):  # torch's name, numpy's
        if hasattr(x, name) and not isinstance(x, list | dict):
            return getattr(x.detach() if hasattr(x, "detach") else x, name)()
    return np.array(x, dtype=np.float64 if isinstance(x, float) else None)


def like(x: object, result: Any) -> Any:  # noqa: ANN401
    """Return a result as what was passed in: a number for a number, numpy's for numpy's."""
    return result.item() if isinstance(x, int | float) else result[()] if isinstance(x, np.generic) else result


def as_numpy(x: Any) -> tuple[NDArray[Any], str]:  # noqa: ANN401
    """Return x as a view of numpy's, and the name of its type. Raises InputError on what is no array of this host."""
    if isinstance(x, np.ndarray):
        return _plain(x)
    if isinstance(x, np.generic):
        raise InputError(f"{type(x).__name__} is a number, which nothing can be written to; pass an array")
    device = str(getattr(x, "device", "cpu")).lower()
    if "cpu" not in device:
        raise InputError(f"{type(x).__name__} on {device}: only torch tensors there, else arrays in this host's memory")
    if hasattr(x, "detach"):  # torch: numpy knows no bfloat16, and takes no tensor that wants a gradient
        x = x.detach()
        half = str(x.dtype) == "torch.bfloat16"
        try:
            view = (_as_int16(x) if half else x).numpy()
        except (TypeError, RuntimeError) as error:
            raise InputError(
                f"tensor of {x.dtype}, {x.layout}: {error}; make it a dense one of another type"
            ) from error
        return (view.view(np.uint16), "bfloat16") if half else (view, view.dtype.name)
    try:
        view = np.asarray(x) if hasattr(x, "__array_interface__") else np.from_dlpack(x)
    except (AttributeError, TypeError, BufferError, RuntimeError) as error:
        raise InputError(f"{type(x).__name__} is no array: {error}; pass a numpy array or a torch tensor") from error
    return view, view.dtype.name


def _plain(x: NDArray[Any]) -> tuple[NDArray[Any], str]:
    if isinstance(x, np.ma.MaskedArray):
        raise InputError("a masked array: nobody would ask for its mask; pass x.filled(0)")
    if x.dtype.hasobject or not x.dtype.isnative:
        what = "Python objects" if x.dtype.hasobject else f"{x.dtype.str}, another machine's byte order"
        raise InputError(f"ndarray of {what}; cast to float32")
    x = x.view(np.ndarray)  # a matrix stays two-dimensional whatever one does
    return (x.view(np.uint16), "bfloat16") if x.dtype.name == "bfloat16" else (x, x.dtype.name)


def _as_int16(tensor: Any) -> Any:  # noqa: ANN401
    import torch  # noqa: PLC0415 - whoever made a tensor has imported it

    return tensor.view(torch.int16)
