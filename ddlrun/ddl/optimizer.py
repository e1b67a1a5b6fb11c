"""An optimizer of PyTorch whose gradients are averages over all learners."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ddlrun import ddl
from ddlrun.ddl.buckets import Bucket, deal, described
from ddlrun.ddl.consistency import agree, average_metrics, here
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.hooks import RemovableHandle

    from ddlrun.ddl.handle import Handle

_alive: weakref.WeakSet[DistributedOptimizer] = weakref.WeakSet()


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimizer whose `step` works with the gradients' averages over all learners; all make and step it together.

    Gradients are averaged in buckets of at most `bucket_bytes` (else the tuning's), last parameters first, in the same
    order on all learners. A bucket starts during the backward pass as soon as its gradients are there, unless `overlap`
    is off. With `backward_passes_per_step` n that is the n-th pass: gradients add up before, as torch adds them.
    `axes` and `wire` as in `ddl.all_reduce`. A parameter that has a gradient on no learner keeps none; where others
    have one, it counts as zeros here. A closure is evaluated with averaged gradients and returns the average loss.

    Everything else is the wrapped optimizer's: state_dict, param_groups, ... Between backward and step, call
    `synchronize` before gradients are clipped or unscaled, and before other reductions if learners differ in what they
    use. Raises InputError if the learners' parameters differ. `step` and `synchronize` raise it if a gradient changed
    while its average was under way. It cannot be copied or pickled; the model does not keep it alive.
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
        # Optimizer.__init__ is left out: groups and state are those of the one that is wrapped.
        self.optimizer = optimizer
        self._passes_wanted, self._overlap, self._axes, self._wire, self._bytes = (
            backward_passes_per_step, overlap, axes, wire, bucket_bytes,
        )  # fmt: skip
        self._place: dict[Tensor, Bucket] = {}
        self._passes: dict[Tensor, int] = {}
        self._buckets: list[Bucket] = []
        self._under_way: deque[tuple[Bucket, Handle]] = deque()
        self._begun, self._averaged = 0, False
        self._hooks: list[RemovableHandle] = []
        weakref.finalize(self, _remove, self._hooks).atexit = False
        self._adopt()
        _alive.add(self)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the wrapped one has
        if name == "optimizer":  # not yet set
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the wrapped optimizer's groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Return the wrapped optimizer's state."""
        return self.optimizer.state

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Say no to GradScaler: it would leave the scale with this object, not with the one that steps.

        It asks before it unscales, which torch does not count as a write. Raises InputError if averages are to come:
        they would overwrite that, and a learner alone with an infinite gradient would not step.
        """
        if not self._averaged:
            raise InputError(
                f"{here()}: GradScaler: no averaged gradients; call synchronize() before unscale_() or step()"
            )
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, to be loaded with or without this around it."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the wrapped optimizer's state."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; all learners together."""
        self.optimizer.add_param_group(param_group)
        self._adopt()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Forget gradients.

        If a backward pass has been and no step, averages may be under way; they are begun and waited for on each
        learner, as the others count on it. So all learners skip a step, or none, and after as many passes.
        """
        if not self._averaged and max(self._passes.values(), default=0) >= self._passes_wanted:
            self._begin_all()  # how many have begun differs where learners differ in what they use
        while self._under_way:
            self._under_way.popleft()[1].wait()
        self._reset()
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Average what is not averaged yet, then let the wrapped optimizer step."""
        if closure is not None:
            return self.optimizer.step(lambda: self._evaluate(closure))
        self.synchronize()
        self._reset()
        return self.optimizer.step()

    def synchronize(self) -> None:
        """Wait until the gradients are averaged; `step` alone does not need it."""
        if self._averaged:
            return
        for bucket in self._buckets[: self._begun]:  # those that backward gave back too, else it would be luck
            self._check(bucket)
        self._begin_all()
        self._adopt()  # after all others have begun: learners may have been at different ones
        self._begin_all()
        self._finish()
        self._averaged = True
        for bucket in self._buckets:
            bucket.forget()

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copy, deepcopy and pickle: a copy would have other parameters than the model."""
        raise InputError(
            f"{here()}: DistributedOptimizer: no copy or pickle of it; copy its state_dict(), or copy the model and "
            "its optimizer (.optimizer) and make a DistributedOptimizer of the copy"
        )

    def _evaluate(self, closure: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Run a closure: line searches decide by the loss, so it must be the same on all learners."""
        loss = closure()
        self.synchronize()
        self._reset()
        if loss is None:
            return None
        mean = average_metrics({"loss": loss})["loss"]
        return torch.full_like(loss.detach(), mean) if isinstance(loss, Tensor) else mean

    def _adopt(self) -> None:
        """Put parameters that are new or no longer frozen into buckets."""
        found = [(name, p) for name, p in _parameters(self.optimizer) if p.requires_grad and p not in self._place]
        if not found:
            return
        agree("DistributedOptimizer", [f"{n}: {described(p)}" for n, p in found], "all learners build the same model")
        for name, p in found:
            if not p.is_floating_point() or p.element_size() < 2:
                raise InputError(f"{here()}: {name}, {described(p)}: no dtype to average; cast it to float32")
        count = _hook(weakref.ref(self))
        for bucket in deal([p for _, p in reversed(found)], self._bytes or ddl.bucket_bytes()):
            self._buckets.append(bucket)
            for parameter in bucket.parameters:
                self._place[parameter] = bucket
                if self._overlap:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(count))

    def _count(self, parameter: Tensor) -> None:
        """Count a gradient that has come; begin the buckets that are whole now, and move those under way."""
        if self._averaged:
            self._reset()
        passes = self._passes[parameter] = self._passes.get(parameter, 0) + 1
        if passes > self._passes_wanted:
            raise InputError(
                f"{here()}: {self._named(parameter)}: its gradient came {passes} times before step(); make "
                f"DistributedOptimizer with backward_passes_per_step={passes}{self._rival(parameter)}"
            )
        self._place[parameter].missing -= passes == self._passes_wanted
        while self._begun < len(self._buckets) and not self._buckets[self._begun].missing:
            self._begin_next()
        while self._under_way and self._under_way[0][1].test():
            self._check(self._under_way[0][0])
            self._under_way.popleft()[0].give_back()

    def _check(self, bucket: Bucket) -> None:
        """Raise InputError if the average would overwrite what someone wrote into a gradient."""
        parameter = bucket.changed()
        if parameter is not None:
            raise InputError(
                f"{here()}: {self._named(parameter)}: its gradient was changed between backward and step; call "
                f"synchronize() before it is clipped or unscaled{self._rival(parameter)}"
            )

    def _rival(self, parameter: Tensor) -> str:
        others = any(parameter in other._place for other in _alive if other is not self)  # noqa: SLF001 - one class
        return ", or delete the other DistributedOptimizer that has this parameter" if others else ""

    def _named(self, parameter: Tensor) -> str:
        name = next(name for name, p in _parameters(self.optimizer) if p is parameter)
        return f"{name}, {described(parameter)}"

    def _begin_all(self) -> None:
        while self._begun < len(self._buckets):
            self._begin_next()

    def _begin_next(self) -> None:
        bucket = self._buckets[self._begun]
        self._begun += 1
        for parameter in bucket.parameters:
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise InputError(f"{here()}: {self._named(parameter)}: its gradient is sparse; make the layer dense")
        self._under_way.append((bucket, ddl.start([bucket.fill()], axes=self._axes, wire=self._wire)))

    def _finish(self) -> None:
        while self._under_way:
            bucket, handle = self._under_way.popleft()
            handle.wait()
            bucket.give_back()

    def _reset(self) -> None:
        self._begun, self._averaged = 0, False
        self._passes.clear()
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
            bucket.forget()


def _hook(owner: weakref.ref[DistributedOptimizer]) -> Callable[[Tensor], None]:
    """Return what a parameter calls: it must not keep the optimizer alive."""

    def count(parameter: Tensor) -> None:
        optimizer = owner()
        if optimizer is not None:
            optimizer._count(parameter)  # noqa: SLF001 - its own hook

    return count


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield names and parameters; torch knows names only where the optimizer was made with them."""
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"parameter {at} of group {number}" for at in range(len(group["params"]))]
        yield from zip(names, group["params"], strict=True)
