"""Averages of gradients over all learners, begun during the backward pass."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ddlrun.ddl import session
from ddlrun.ddl.consistency import check_agreement, describe_rank
from ddlrun.ddl.torch.buckets import Bucket, describe_tensor, make_buckets
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from ddlrun.ddl.group.handle import Handle

# To name a second averager of the same parameter in an error.
_alive: weakref.WeakSet[GradientAverager] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class AveragingOptions:
    """The options of a `DistributedOptimizer`.

    passes: backward passes per step. bucket_bytes: None: the tuning's. overlap: begin during the backward pass. axes
    and wire: as in `ddl.all_reduce`.
    """

    passes: int
    bucket_bytes: int | None
    overlap: bool
    axes: str
    wire: str | None


class GradientAverager:
    """Averages the gradients of an optimizer's parameters in buckets, in the same order on all learners.

    A step goes through these states:

    - Backward: gradients arrive. `_begun` buckets have been started, and those in `_in_progress` are not complete.
    - Averaged (`averaged`): all averages are in the gradients, until `reset` or the next gradient.

    Parameters must not keep it alive, so their hooks hold a weak reference.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, options: AveragingOptions) -> None:
        self._optimizer, self._options = optimizer, options
        self._bucket_of: dict[Tensor, Bucket] = {}
        self._passes: dict[Tensor, int] = {}
        self._buckets: list[Bucket] = []
        self._in_progress: deque[tuple[Bucket, Handle]] = deque()
        self._begun, self.averaged = 0, False
        self._hooks: list[RemovableHandle] = []
        weakref.finalize(self, _remove, self._hooks).atexit = False
        self.adopt()
        _alive.add(self)

    def adopt(self) -> None:
        """Put parameters that are new, or no longer frozen, into buckets. All learners call it together.

        Raises InputError if the learners' parameters differ, or one has a dtype that cannot be averaged.
        """
        new = [
            (name, p) for name, p in _named_parameters(self._optimizer) if p.requires_grad and p not in self._bucket_of
        ]
        if not new:
            return
        lines = [f"{name}: {describe_tensor(p)}" for name, p in new]
        check_agreement("DistributedOptimizer", lines, "all learners build the same model")
        for name, p in new:
            if not p.is_floating_point() or p.element_size() < 2:
                raise InputError(
                    f"{describe_rank()}: {name}, {describe_tensor(p)}: no dtype to average; cast it to float32"
                )
        hook = _make_hook(weakref.ref(self))
        # The last parameters first: backward computes their gradients first.
        parameters = [p for _, p in reversed(new)]
        for bucket in make_buckets(parameters, self._options.bucket_bytes or session.bucket_bytes()):
            self._buckets.append(bucket)
            for parameter in bucket.parameters:
                self._bucket_of[parameter] = bucket
                if self._options.overlap:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def average(self) -> None:
        """Return when all gradients are averaged.

        Raises InputError if a gradient was changed while its average was in progress.
        """
        if self.averaged:
            return
        for bucket in self._buckets[: self._begun]:  # also those whose averages are written: else it depends on timing
            self._check_unchanged(bucket)
        self._begin_all()
        self.adopt()  # after all others have begun: learners may have been at different buckets
        self._begin_all()
        while self._in_progress:
            bucket, handle = self._in_progress.popleft()
            handle.wait()
            bucket.write_back()
        self.averaged = True
        for bucket in self._buckets:
            bucket.forget()

    def discard(self) -> None:
        """Forget the gradients of this step.

        After a backward pass without a step, averages may be in progress. They are begun and waited for on each
        learner, because the other learners rely on it.
        """
        if not self.averaged and max(self._passes.values(), default=0) >= self._options.passes:
            self._begin_all()  # the number of buckets begun differs where learners use different parameters
        while self._in_progress:
            self._in_progress.popleft()[1].wait()
        self.reset()

    def reset(self) -> None:
        """Begin a new step."""
        self._begun, self.averaged = 0, False
        self._passes.clear()
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
            bucket.forget()

    def count(self, parameter: Tensor) -> None:
        """Count a gradient that backward has computed; begin the buckets that are complete, and advance the others."""
        if self.averaged:
            self.reset()
        passes = self._passes[parameter] = self._passes.get(parameter, 0) + 1
        if passes > self._options.passes:
            raise InputError(
                f"{describe_rank()}: {self._describe(parameter)}: its gradient came {passes} times before step(); make "
                f"DistributedOptimizer with backward_passes_per_step={passes}{self._rival_remedy(parameter)}"
            )
        if passes == self._options.passes:
            self._bucket_of[parameter].missing -= 1
        while self._begun < len(self._buckets) and not self._buckets[self._begun].missing:
            self._begin_next()
        while self._in_progress and self._in_progress[0][1].test():
            self._check_unchanged(self._in_progress[0][0])
            self._in_progress.popleft()[0].write_back()

    def _begin_all(self) -> None:
        while self._begun < len(self._buckets):
            self._begin_next()

    def _begin_next(self) -> None:
        bucket = self._buckets[self._begun]
        self._begun += 1
        for parameter in bucket.parameters:
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise InputError(
                    f"{describe_rank()}: {self._describe(parameter)}: its gradient is sparse; make the layer dense"
                )
        handle = session.start([bucket.fill()], axes=self._options.axes, wire=self._options.wire)
        self._in_progress.append((bucket, handle))

    def _check_unchanged(self, bucket: Bucket) -> None:
        """Raise InputError if the average would overwrite a change of a gradient."""
        parameter = bucket.find_changed()
        if parameter is not None:
            raise InputError(
                f"{describe_rank()}: {self._describe(parameter)}: its gradient was changed between backward and step; "
                f"call synchronize() before it is clipped or unscaled{self._rival_remedy(parameter)}"
            )

    def _rival_remedy(self, parameter: Tensor) -> str:
        rivals = any(parameter in other._bucket_of for other in _alive if other is not self)  # noqa: SLF001 - one class
        return ", or delete the other DistributedOptimizer that has this parameter" if rivals else ""

    def _describe(self, parameter: Tensor) -> str:
        name = next(name for name, p in _named_parameters(self._optimizer) if p is parameter)
        return f"{name}, {describe_tensor(parameter)}"


def _make_hook(owner: weakref.ref[GradientAverager]) -> Callable[[Tensor], None]:
    """Return the function that a parameter calls when its gradient is computed."""

    def count(parameter: Tensor) -> None:
        averager = owner()
        if averager is not None:
            averager.count(parameter)

    return count


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def _named_parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield names and parameters. torch has the names only if the optimizer was created with them."""
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"parameter {at} of group {number}" for at in range(len(group["params"]))]
        yield from zip(names, group["params"], strict=True)
