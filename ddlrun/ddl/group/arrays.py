"""Arguments of the collectives: arrays of numpy, torch, DLPack and `__array_interface__`, and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddlrun.ddl.group.flat import FlatArray, as_numpy
from ddlrun.errors import InputError


def flatten(x: Any) -> FlatArray:  # noqa: ANN401
    """Return x as a flat array: a view of its memory, or a copy if it is on a device or not contiguous.

    Raises InputError if x is not an array, or is read-only.
    """
    if on_device(x):
        from ddlrun.ddl.transports.nccl.staging import stage  # noqa: PLC0415 - 1.4 s: torch, loaded already, as there is a tensor

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
