"""The arguments of collectives: checks whose errors have the words of gloo's, and options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddlrun.ddl.torch.backend.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Tensors = Sequence[torch.Tensor]


def as_tensors(tensors: Any) -> list[torch.Tensor]:  # noqa: ANN401 - a tensor or a list of them
    """Return a list of tensors; a tensor is a list of one."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def read_seconds(opts: Any) -> float | None:  # noqa: ANN401 - options of torch's, or None
    """Return the time limit of a call; None: that of its group."""
    seconds = -1.0 if opts is None else opts.timeout.total_seconds()
    return None if seconds < 0 else seconds


def check_root(call: str, root: int, size: int) -> None:
    """Raise ArgumentError if a root is not in a group."""
    if not 0 <= root < size:
        raise ArgumentError(f"ddl {call}: invalid root rank: {root}; the group has the ranks 0 to {size - 1}")


def check_root_tensor(call: str, at: int, tensors: Tensors) -> None:
    """Raise ArgumentError if there is no tensor `at`."""
    if not 0 <= at < len(tensors):
        raise ArgumentError(f"ddl {call}: invalid root tensor: {at} of {len(tensors)}")


def check_some(call: str, tensors: Tensors) -> None:
    """Raise ArgumentError if a list is empty."""
    if not tensors:
        raise ArgumentError(f"ddl {call}: requires non-empty tensor list")


def check_single(call: str, kind: str, items: Sequence[Any]) -> None:
    """Raise ArgumentError if a list, such as the `input tensor list`, has not one item."""
    if len(items) != 1:
        raise ArgumentError(f"ddl {call}: requires a single-element {kind}; it has {len(items)}")


def check_length(call: str, kind: str, items: Sequence[Any], size: int) -> None:
    """Raise ArgumentError if the `input` or `output` list of a root has not one item per rank."""
    if len(items) != size:
        raise ArgumentError(
            f"ddl {call}: Incorrect {kind} list size {len(items)}. {kind.capitalize()} list size should be {size}, the "
            "size of the group"
        )


def check_empty(call: str, kind: str, lists: Sequence[Sequence[Any]]) -> None:
    """Raise ArgumentError if a rank that is not the root has an `input` or `output`. TorchComms needs an empty list."""
    if any(lists):
        raise ArgumentError(f"ddl {call}: requires empty {kind} on non-root ranks")


def check_alike(call: str, tensors: Tensors, like: torch.Tensor, *, sizes: bool = True) -> None:
    """Raise ArgumentError if a tensor has another device, layout, dtype or size than `like`."""
    for at, tensor in enumerate(tensors):
        if tensor.device.type != like.device.type:
            raise ArgumentError(f"ddl {call}: invalid tensor device at index {at}: {tensor.device}, not {like.device}")
        if tensor.layout != like.layout:
            raise ArgumentError(f"ddl {call}: invalid tensor layout at index {at}: {tensor.layout}, not {like.layout}")
        if tensor.dtype != like.dtype:
            raise ArgumentError(f"ddl {call}: invalid tensor type at index {at}: {tensor.dtype}, not {like.dtype}")
        if sizes and tensor.shape != like.shape:
            raise ArgumentError(
                f"ddl {call}: invalid tensor size at index {at}: {[*tensor.shape]}, not {[*like.shape]}"
            )


def check_same_type(call: str, tensors: Tensors) -> None:
    """Raise ArgumentError if tensors that are reduced together differ in layout or dtype, or are sparse."""
    check_some(call, tensors)
    for at, tensor in enumerate(tensors):
        if tensor.layout != tensors[0].layout:
            raise ArgumentError(f"ddl {call}: invalid tensor layout at index {at}: {tensor.layout}")
        if tensor.dtype != tensors[0].dtype:
            raise ArgumentError(f"ddl {call}: tensors must all have the same type, not {tensor.dtype} at index {at}")
    if tensors[0].layout != torch.strided:
        raise ArgumentError(f"ddl {call}: unsupported layout {tensors[0].layout}")
