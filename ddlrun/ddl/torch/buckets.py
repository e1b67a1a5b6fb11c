"""Buckets of gradients: tensors copied together into the memory that they are sent from.

torch is not imported here: tensors have all the methods that are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Tensor = Any  # torch.Tensor


class Bucket:
    """Parameters of one dtype on one device, and a flat tensor there for their gradients.

    The tensor has one more element per parameter, a flag: 1 if the parameter has a gradient here, else 0. The average
    of a flag is 0 if no learner has a gradient. So learners agree on that without a message of its own, which could not
    be sent while their other buckets may be at different stages. Sent as int8, a flag may become 0 beside far larger
    gradients; then averages that are not 0 show that a learner has a gradient.
    """

    __slots__ = ("_snapshot", "missing", "parameters", "row")

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = tuple(parameters)
        self.missing = len(self.parameters)
        """Gradients that backward has not computed yet in this step."""
        count = sum(p.numel() for p in self.parameters)
        self.row = self.parameters[0].detach().new_zeros(count + len(self.parameters))
        # The gradients when they were copied, and torch's count of writes to each.
        self._snapshot: list[tuple[Tensor | None, int]] = []

    def fill(self) -> Tensor:
        """Copy the gradients to the flat tensor, zeros where there is none, and return it."""
        *parts, flags = self._parts()
        for parameter, part in zip(self.parameters, parts, strict=True):
            if parameter.grad is None:
                part.zero_()
            else:
                part.copy_(parameter.grad.detach())
        flags.copy_(flags.new_tensor([parameter.grad is not None for parameter in self.parameters]))
        self._take_snapshot()
        return self.row

    def write_back(self) -> None:
        """Copy the averages to the gradients. A parameter without one gets one if another learner has one."""
        *parts, flags = self._parts()
        # Reading the flags makes the host wait for the device, so they are read only if a gradient is missing here.
        flag_values = flags.tolist() if any(p.grad is None for p in self.parameters) else [1] * len(parts)
        for parameter, part, flag in zip(self.parameters, parts, flag_values, strict=True):
            if not flag and not part.any():
                continue
            if parameter.grad is None:
                parameter.grad = parameter.detach().new_empty(parameter.shape)
            parameter.grad.detach().copy_(part)
        self._take_snapshot()

    def find_changed(self) -> Tensor | None:
        """Return a parameter whose gradient was modified or replaced since it was copied, or None."""
        for parameter, (gradient, version) in zip(self.parameters, self._snapshot, strict=False):
            if parameter.grad is not gradient or _version(gradient) != version:
                return parameter
        return None

    def forget(self) -> None:
        """Drop the snapshot: from here on the gradients may change."""
        self._snapshot = []

    def _take_snapshot(self) -> None:
        # The tensors, not their addresses: freed memory is soon that of another gradient.
        self._snapshot = [(parameter.grad, _version(parameter.grad)) for parameter in self.parameters]

    def _parts(self) -> list[Tensor]:
        """Return views of the flat tensor: one in the shape of each parameter, then the flags."""
        sizes = [p.numel() for p in self.parameters]
        *parts, flags = self.row.split([*sizes, len(sizes)])
        return [*(part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)), flags]


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version  # noqa: SLF001 - torch has no other name for it


def describe_tensor(tensor: Tensor) -> str:
    """Return the dtype and shape of a tensor as text."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def make_buckets(parameters: Iterable[Tensor], limit: int) -> list[Bucket]:
    """Divide parameters into buckets of one dtype and device, and of at most `limit` bytes or one parameter."""
    groups, open_groups = list[list[Any]](), dict[Any, list[Any]]()
    for parameter in parameters:
        key = parameter.dtype, parameter.device
        group = open_groups.get(key)
        if group is None or _nbytes(group) + _nbytes([parameter]) > limit:
            group = open_groups[key] = []
            groups.append(group)
        group.append(parameter)
    return [Bucket(group) for group in groups]


def _nbytes(parameters: Iterable[Tensor]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)
