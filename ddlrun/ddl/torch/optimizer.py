"""A PyTorch optimizer that averages gradients over all learners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ddlrun.ddl.consistency import average_metrics, describe_rank
from ddlrun.ddl.torch.gradient_averaging import AveragingOptions, GradientAverager
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimizer whose `step` uses the averages of the gradients over all learners.

    All learners create it and call `step` together. The rest is the wrapped optimizer's: state_dict, param_groups, ...

    Gradients are averaged in buckets, last parameters first, in the same order on all learners. A bucket starts during
    the backward pass, as soon as its gradients are computed. A parameter that has a gradient on no learner keeps none;
    if other learners have one, it counts as zeros here. A closure is evaluated with averaged gradients, and returns the
    average loss.

    Between backward and step, call `synchronize` before gradients are clipped or unscaled, and before other reductions
    if learners use different parameters. The optimizer cannot be copied or pickled. The model does not keep it alive.

    Args:
        optimizer: The optimizer to wrap.
        backward_passes_per_step: Average in the n-th backward pass only. torch adds up the gradients of those before,
            and the sum is not divided by n.
        bucket_bytes: Bytes of a bucket, at most. Default: the tuning's.
        overlap: Begin during the backward pass; else in `step`.
        axes: As in `ddl.all_reduce`.
        wire: As in `ddl.all_reduce`.

    Raises:
        InputError: The learners' parameters differ.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        backward_passes_per_step: int = 1,
        bucket_bytes: int | None = None,
        overlap: bool = True,
        axes: str = "",
        wire: str | None = None,
    ) -> None:
        if backward_passes_per_step < 1:
            raise InputError(f"backward_passes_per_step {backward_passes_per_step}: at least 1")
        self.optimizer = optimizer
        options = AveragingOptions(
            passes=backward_passes_per_step, bucket_bytes=bucket_bytes, overlap=overlap, axes=axes, wire=wire
        )
        self._averager = GradientAverager(optimizer, options)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an attribute of the wrapped optimizer
        if name == "optimizer":  # not yet set
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # noqa: ANN401
        """The wrapped optimizer's state."""
        return self.optimizer.state

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """False, for GradScaler: else it would leave the scale to this object, not to the optimizer that steps.

        GradScaler reads it before it unscales, which torch does not count as a write to the gradients. Raises
        InputError if the gradients are not averaged yet: the averages would overwrite unscaled gradients, and a learner
        that alone has an infinite gradient would not step.
        """
        if not self._averager.averaged:
            raise InputError(
                f"{describe_rank()}: GradScaler: no averaged gradients; call synchronize() before unscale_() or step()"
            )
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, which can be loaded with or without this optimizer around it."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the wrapped optimizer's state."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. All learners call it together."""
        self.optimizer.add_param_group(param_group)
        self._averager.adopt()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients.

        After a backward pass without a step it completes the averages that are in progress. So either all learners skip
        a step or none, and after the same number of backward passes.
        """
        self._averager.discard()
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Average the gradients that are not averaged yet, then step the wrapped optimizer.

        Args:
            closure: A function that computes the loss, for optimizers that call it several times. The gradients of each
                call are averaged, and it returns the average loss.

        Returns:
            The result of the wrapped optimizer's step.

        Raises:
            InputError: A gradient is sparse, or was changed while its average was in progress.
        """
        if closure is not None:
            return self.optimizer.step(lambda: self._evaluate(closure))
        self.synchronize()
        self._averager.reset()
        return self.optimizer.step()

    def synchronize(self) -> None:
        """Return when the gradients are averaged. `step` calls it.

        Raises:
            InputError: A gradient is sparse, or was changed while its average was in progress.
        """
        self._averager.average()

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copy, deepcopy and pickle: a copy's parameters would not be the model's."""
        raise InputError(
            f"{describe_rank()}: DistributedOptimizer: no copy or pickle of it; copy its state_dict(), or copy the "
            "model and its optimizer (.optimizer) and make a DistributedOptimizer of the copy"
        )

    def _evaluate(self, closure: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Run a closure and return the average loss: line searches decide by it, so it must be the same everywhere."""
        loss = closure()
        self.synchronize()
        self._averager.reset()
        if loss is None:
            return None
        mean = average_metrics({"loss": loss})["loss"]
        return torch.full_like(loss.detach(), mean) if isinstance(loss, Tensor) else mean
