"""A PyTorch optimizer whose state is divided among all learners (ZeRO, stage 1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ddlrun.ddl import session
from ddlrun.ddl.buckets import describe_tensor, divide
from ddlrun.ddl.consistency import check_agreement, describe_rank
from ddlrun.ddl.optimizer import OptimizerWrapper
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Bytes of a bucket. A step needs that much memory beside the parameters and their gradients.
BUCKET_BYTES = 16 << 20


class ShardedOptimizer(OptimizerWrapper):
    """An optimizer that averages gradients, with 1/P of the state on each of P learners.

    Each learner updates its block of the parameters with its block of the averages, then all learners exchange their
    blocks. The optimizer must treat each element apart from the others, as SGD, Adam and AdamW do. All learners create
    it and call `step` together.

    The parameters become views of buckets. A parameter without a gradient counts as one with zeros. Learning-rate
    schedulers work as usual. `state_dict` is the part of this learner.

    Args:
        params: Parameters, or dictionaries of parameter groups, as for any optimizer of torch.
        optimizer_class: The class of the optimizer, such as torch.optim.Adam.
        bucket_bytes: Bytes of a bucket, at most, unless a parameter is larger.
        **defaults: Arguments of the optimizer.

    Raises:
        InputError: The learners' parameters differ.

    References:
        Rajbhandari and others, "ZeRO: memory optimizations toward training trillion parameter models", arXiv
        1910.02054.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        *,
        bucket_bytes: int = BUCKET_BYTES,
        **defaults: Any,  # noqa: ANN401
    ) -> None:
        groups = _read_groups(params)
        _check([parameter for group in groups for parameter in group["params"]])
        self._buckets: list[_Bucket] = []
        for group in groups:
            buckets = [_Bucket(parameters) for parameters in divide(group["params"], bucket_bytes)]
            group["params"] = [bucket.block for bucket in buckets]
            self._buckets += buckets
        self._averaged = False
        self.optimizer = optimizer_class(groups, **defaults)
        """The optimizer of this learner's blocks, which are its parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return this learner's part of the state, which the same learner of a job of the same size can load."""
        return {**self.optimizer.state_dict(), "learner": session.rank(), "learners": session.size()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this learner's part of the state. Raises InputError if it is another learner's part."""
        place = state_dict.get("learner"), state_dict.get("learners")
        if place != (session.rank(), session.size()):
            raise InputError(
                f"{describe_rank()}: ShardedOptimizer: a state of learner {place[0]} of {place[1]}; load the state "
                "that this learner has saved, in a job of the same size"
            )
        self.optimizer.load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:  # noqa: ARG002 - torch's signature
        """Refuse another group."""
        raise InputError(f"{describe_rank()}: ShardedOptimizer: no further groups; create it with all of them")

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients."""
        self._averaged = False
        for bucket in self._buckets:
            bucket.clear(set_to_none=set_to_none)

    def synchronize(self) -> None:
        """Average the gradients into this learner's blocks. `step` calls it."""
        if not self._averaged:
            for bucket in self._buckets:
                bucket.average()
        self._averaged = True

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the averages so that their norm over all parameters is at most `max_norm`.

        All learners call it together, before `step`.

        Returns:
            The norm before, which is the same on all learners.
        """
        self.synchronize()
        squares = sum(float(bucket.gradient.double().square().sum()) for bucket in self._buckets)
        norm = math.sqrt(session.all_reduce(squares))
        if norm > max_norm:
            for bucket in self._buckets:
                bucket.gradient.mul_(max_norm / norm)
        return norm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Average the gradients, update this learner's blocks, and exchange the blocks.

        Args:
            closure: A function that computes the loss and the gradients.

        Returns:
            The loss of the closure on this learner, if there is one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.synchronize()
        self.optimizer.step()
        self._averaged = False
        for bucket in self._buckets:
            bucket.exchange()
        return loss

    def __repr__(self) -> str:
        return f"ShardedOptimizer({self.optimizer!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copy, deepcopy and pickle: a copy would have other parameters than the model."""
        raise InputError(f"{describe_rank()}: ShardedOptimizer: no copy or pickle of it; copy its state_dict()")


class _Bucket:
    """Parameters of one dtype on one device, as views of a flat tensor, and this learner's block of it."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        with torch.no_grad():
            self._row = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        for parameter, part in zip(parameters, self._split(self._row), strict=True):
            parameter.data = part
        low, high = session.current_learner().piece(len(self._row))
        self.block = torch.nn.Parameter(self._row[low:high])

    @property
    def gradient(self) -> Tensor:
        """The average of this learner's block."""
        if self.block.grad is None:
            raise InputError(f"{describe_rank()}: ShardedOptimizer: no averages yet; call synchronize() before")
        return self.block.grad

    def average(self) -> None:
        """Average the gradients; the block gets its part."""
        row = torch.zeros_like(self._row)
        for parameter, part in zip(self._parameters, self._split(row), strict=True):
            if parameter.grad is not None:
                part.copy_(parameter.grad.detach())
        self.block.grad = session.reduce_scatter(row, "avg").clone()

    def exchange(self) -> None:
        """Fill the parameters from the blocks of all learners."""
        self.block.grad = None
        session.allgather_pieces(self._row)

    def clear(self, *, set_to_none: bool) -> None:
        """Clear the gradients of the parameters and the average."""
        self.block.grad = None
        for parameter in self._parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def _split(self, row: Tensor) -> list[Tensor]:
        """Return views of a flat tensor in the shapes of the parameters."""
        parts = row.split([parameter.numel() for parameter in self._parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._parameters, strict=True)]


def _read_groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    """Return parameter groups, without parameters that are frozen."""
    items = list(params)
    groups = [dict(item) for item in items] if items and isinstance(items[0], dict) else [{"params": items}]
    for group in groups:
        tensors = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        group["params"] = [tensor for tensor in tensors if tensor.requires_grad]
    return groups


def _check(parameters: Sequence[Tensor]) -> None:
    """Raise InputError if the learners' parameters differ, or if there are none."""
    if not parameters:
        raise InputError(f"{describe_rank()}: ShardedOptimizer: no parameters that require a gradient")
    lines = [f"parameter {number}: {describe_tensor(tensor)}" for number, tensor in enumerate(parameters)]
    check_agreement("ShardedOptimizer", lines, "all learners build the same model")
