"""Gradients in the rows of memory that they travel in. Tensors are asked for all; torch itself is not imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Tensor = Any  # torch.Tensor


class Bucket:
    """Parameters of one dtype on one device, and a row there with their gradients and one element more for each.

    Those say who has a gradient: 1 or 0 here, their average is 0 where no learner has one. So learners agree without
    a message for that, which could not be sent while their buckets may be at different places.
    """

    __slots__ = ("_seen", "missing", "parameters", "row")

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = tuple(parameters)
        self.missing = len(self.parameters)  # gradients that have not come in this step
        count = sum(p.numel() for p in self.parameters)
        self.row = self.parameters[0].detach().new_zeros(count + len(self.parameters))
        self._seen: list[tuple[Tensor | None, int]] = []  # gradients when they were copied, and torch's count of writes

    def fill(self) -> Tensor:
        """Copy the gradients in, zeros where there is none; return the row."""
        *parts, flags = self._parts()
        for parameter, part in zip(self.parameters, parts, strict=True):
            if parameter.grad is None:
                part.zero_()
            else:
                part.copy_(parameter.grad.detach())
        flags.copy_(flags.new_tensor([parameter.grad is not None for parameter in self.parameters]))
        self._note()
        return self.row

    def give_back(self) -> None:
        """Copy the averages out; a parameter without a gradient gets one if another learner has."""
        *parts, flags = self._parts()
        # Only who lacks one looks at the flags: to read them, the host must wait for the device.
        told = flags.tolist() if any(p.grad is None for p in self.parameters) else [1] * len(parts)
        for parameter, part, anywhere in zip(self.parameters, parts, told, strict=True):
            if not anywhere:
                continue
            if parameter.grad is None:
                parameter.grad = parameter.detach().new_empty(parameter.shape)
            parameter.grad.detach().copy_(part)
        self._note()

    def changed(self) -> Tensor | None:
        """Return a parameter whose gradient someone else changed or replaced since it was copied in or out, if any."""
        for parameter, (gradient, version) in zip(self.parameters, self._seen, strict=False):  # none seen: none changed
            if parameter.grad is not gradient or _version(gradient) != version:
                return parameter
        return None

    def forget(self) -> None:
        """Let go of the gradients: from here on they may change."""
        self._seen = []

    def _note(self) -> None:
        # The tensors themselves, not their addresses: memory that is let go is soon another gradient's.
        self._seen = [(parameter.grad, _version(parameter.grad)) for parameter in self.parameters]

    def _parts(self) -> list[Tensor]:
        """Return views of the row: one in the shape of each parameter, then the flags."""
        sizes = [p.numel() for p in self.parameters]
        *parts, flags = self.row.split([*sizes, len(sizes)])
        return [*(part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)), flags]


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version  # noqa: SLF001 - torch has no other name for it


def described(tensor: Tensor) -> str:
    """Return a tensor's dtype and shape in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def deal(parameters: Iterable[Tensor], most: int) -> list[Bucket]:
    """Deal parameters into buckets of one dtype and device and at most `most` bytes, but at least one parameter."""
    done, filling = list[list[Any]](), dict[Any, list[Any]]()
    for parameter in parameters:
        kind = parameter.dtype, parameter.device
        bucket = filling.get(kind)
        if bucket is None or _bytes(bucket) + _bytes([parameter]) > most:
            bucket = filling[kind] = []
            done.append(bucket)
        bucket.append(parameter)
    return [Bucket(bucket) for bucket in done]


def _bytes(parameters: Iterable[Tensor]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)
