"""A rank of test_torch.py: training over all ranks compared with training alone, with every option.

    mpirun -n 4 python -m mpi4py torch_ranks.py OPTIONS ...

Every check runs on all ranks, once with each value of DDL_OPTIONS; each rank prints its errors.
"""

import gc
import itertools
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn

from ddlrun import ddl
from ddlrun.ddl.torch import (
    Averaging,
    DistributedOptimizer,
    average_metrics,
    broadcast_parameters,
    comm_hook,
    init_process_group,
)
from ddlrun.errors import InputError

STEPS, EACH, SMALL = 8, 8, 512  # a bucket of 512 bytes: several of them in this model
Losses = Callable[[int, nn.Module], torch.Tensor]


class Net(nn.Module):
    """Two layers, one that no learner uses, one that only some learners use, one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 33), nn.Linear(33, 3)
        self.never, self.sometimes, self.frozen = nn.Linear(5, 5), nn.Linear(12, 3), nn.Linear(12, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor, *, more: bool = False) -> torch.Tensor:
        y = self.second(torch.tanh(self.first(x))) + self.frozen(x)
        result: torch.Tensor = y + self.sometimes(x) if more else y
        return result


def full() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 33), nn.Tanh(), nn.Linear(33, 3))


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(3)
    return Net().to(dtype)


def batch(step: int, rank: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng([step, rank])
    x, y = random.normal(size=(EACH, 12)), random.normal(size=(EACH, 3))
    return torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)


def whole(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [batch(step, rank) for rank in range(ddl.size())]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def loss(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model(data[0]), data[1])


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def distribute(optimizer: torch.optim.Optimizer, **options: Any) -> DistributedOptimizer:
    return DistributedOptimizer(optimizer, bucket_bytes=SMALL, **options)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, alone: bool = False) -> list[torch.Tensor]:
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, whole(step) if alone else batch(step, ddl.rank())).backward()
        optimizer.step()
    return values(model)


def values(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def same_bits(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def close(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(left, right, strict=True))


def everywhere(tensors: list[torch.Tensor]) -> bool:
    """Return True if all ranks have the same bits."""
    flat = torch.cat([tensor.reshape(-1).float() for tensor in tensors]).numpy()
    rows = ddl.allgather(flat).view(np.uint8)
    return bool((rows == rows[0]).all())


def check_training() -> Iterator[tuple[str, bool]]:
    for make, build in itertools.product((adam, sgd), (net, full)):
        model, lonely, late = build(), build(), build()
        together = train(model, distribute(make(model)))
        what = f"{make.__name__}, {build.__name__}"
        yield f"{what}: the same bits on all ranks", everywhere(together)
        yield f"{what}: as alone", close(together, train(lonely, make(lonely), alone=True))
        plain = train(late, distribute(make(late), overlap=False))
        yield f"{what}: with overlap as without", same_bits(together, plain)
        if isinstance(model, Net):
            yield "a gradient that no learner has stays None", model.never.weight.grad is None
            yield "a layer that no learner uses does not change", torch.equal(model.never.weight, net().never.weight)


def check_overlap() -> Iterator[tuple[str, bool]]:
    """In mode m a reduction is complete when `start` returns, so the gradients show that it began in backward."""
    for overlap in (True, False) if os.environ["DDL_OPTIONS"].startswith("-mode m") else ():
        model = full()
        _optimizer = distribute(sgd(model), overlap=overlap)
        loss(model, batch(0, ddl.rank())).backward()
        last = [p.grad for p in model.parameters() if p.grad is not None][-2:]
        yield f"averaged in backward: {not overlap}", everywhere(last) == overlap


def check_start_values() -> Iterator[tuple[str, bool]]:
    for pick in (lambda m: m, lambda m: m.state_dict()):
        torch.manual_seed(ddl.rank())
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(3, 3, dtype=torch.bfloat16))
        model.append(nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        model.register_buffer("count", torch.tensor(ddl.rank()))
        root, before = ddl.size() - 1, values(model)
        broadcast_parameters(pick(model), root)
        yield "the same start", everywhere(values(model))
        yield "the root's start", same_bits(before, values(model)) == (ddl.rank() == root)


def check_unused() -> Iterator[tuple[str, bool]]:
    model, lonely = net(), net()
    optimizer, alone = distribute(sgd(model)), sgd(lonely)
    for step in range(STEPS):
        users = range(step % (ddl.size() + 1))  # from none to all
        optimizer.zero_grad()
        x, y = batch(step, ddl.rank())
        nn.functional.mse_loss(model(x, more=ddl.rank() in users), y).backward()
        optimizer.step()
        yield f"step {step}: a gradient for all or none", (model.sometimes.weight.grad is None) == (not users)
        alone.zero_grad()
        parts = [(batch(step, rank), rank in users) for rank in range(ddl.size())]
        sum(nn.functional.mse_loss(lonely(x, more=m), y) / ddl.size() for (x, y), m in parts).backward()  # type: ignore[union-attr]
        alone.step()
    yield "unused: the same bits on all ranks", everywhere(values(model))
    yield "unused: as alone", close(values(model), values(lonely))


def check_accumulation() -> Iterator[tuple[str, bool]]:
    results = []
    for overlap in (True, False):
        model, lonely = net(), net()
        optimizer, alone = distribute(sgd(model), backward_passes_per_step=3, overlap=overlap), sgd(lonely)
        for step in range(0, STEPS, 3):
            optimizer.zero_grad()
            alone.zero_grad()
            for at in range(step, min(step + 3, STEPS)):  # the last step has two passes
                (loss(model, batch(at, ddl.rank())) / 3).backward()
                (loss(lonely, whole(at)) / 3).backward()
            optimizer.step()
            alone.step()
        results.append(values(model))
        yield "accumulated: as alone", close(values(model), values(lonely)) and everywhere(values(model))
    yield "accumulated: with overlap as without", same_bits(*results)


def check_too_many_passes() -> Iterator[tuple[str, bool]]:
    model = net()
    optimizer = distribute(sgd(model))
    loss(model, batch(0, ddl.rank())).backward()
    try:
        loss(model, batch(1, ddl.rank())).backward()
        text = ""
    except InputError as error:
        text = str(error)
    yield f"too many passes: {text!r}", f"rank {ddl.rank()} of {ddl.size()}: parameter " in text
    yield (
        "too many passes: the remedy",
        "before step(); make DistributedOptimizer with backward_passes_per_step=2" in text,
    )
    optimizer.zero_grad()
    train(model, optimizer)
    yield "after zero_grad training continues", everywhere(values(model))


def check_half() -> Iterator[tuple[str, bool]]:
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-12)):
        model = net(dtype)
        optimizer = distribute(sgd(model))
        loss(model, batch(0, ddl.rank(), dtype)).backward()
        mine = model.first.weight.grad.double().numpy().copy()  # type: ignore[union-attr]
        optimizer.synchronize()
        grad = model.first.weight.grad
        assert grad is not None
        right = ddl.allgather(mine).mean(axis=0)
        yield f"{dtype}: the average", np.allclose(grad.double().numpy(), right, rtol=0, atol=tolerance)
        optimizer.step()
        yield f"{dtype}: the type stays", grad.dtype is dtype and everywhere(values(model))


def check_clipped() -> Iterator[tuple[str, bool]]:
    model, lonely = net(), net()
    optimizer, alone = distribute(sgd(model)), sgd(lonely)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, batch(step, ddl.rank())).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        alone.zero_grad()
        loss(lonely, whole(step)).backward()
        nn.utils.clip_grad_norm_(lonely.parameters(), 0.1)
        alone.param_groups[0]["lr"] = 0.1 * 0.1 ** (step // 5)
        alone.step()
    yield "clipped, scheduled: as alone", close(values(model), values(lonely)) and everywhere(values(model))


def check_changed() -> Iterator[tuple[str, bool]]:
    """A gradient that is clipped, unscaled or replaced before step is an error in every mode; the next step works."""
    for change in (clip, replace, unscale):
        model = full()
        optimizer = distribute(sgd(model))
        loss(model, batch(0, ddl.rank())).backward()
        message = error_of(lambda c=change, m=model, o=optimizer: (c(m, o), o.step()))  # type: ignore[misc]
        end = (
            ": its gradient was changed between backward and step; call synchronize() before it is clipped or unscaled"
        )
        if change is unscale:
            end = "GradScaler: no averaged gradients; call synchronize() before unscale_() or step()"
        start = f"rank {ddl.rank()} of {ddl.size()}: "
        yield f"{change.__name__}: {message!r}", message.startswith(start) and message.endswith(end)
        ddl.barrier()  # else a rank with its error would begin buckets that another still compares
        for set_to_none in (False, True):
            optimizer.zero_grad(set_to_none)
            loss(model, batch(1, ddl.rank())).backward()
            optimizer.step()
        yield f"{change.__name__}: then the next step", everywhere(values(model))


def unscale(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)


def clip(model: nn.Module, _: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def replace(model: nn.Module, _: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * 2


def check_unscaled() -> Iterator[tuple[str, bool]]:
    model, lonely = net(), net()
    optimizer, alone, scaler = distribute(sgd(model)), sgd(lonely), torch.amp.GradScaler("cpu")
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss(model, batch(step, ddl.rank()))).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        alone.zero_grad()
        loss(lonely, whole(step)).backward()
        alone.step()
    yield "unscaled: as alone", close(values(model), values(lonely)) and everywhere(values(model))


def check_skipped() -> Iterator[tuple[str, bool]]:
    """After a backward without a step, in which learners begin different buckets, training continues normally."""
    for overlap, passes in ((True, 1), (False, 1), (True, 2)):
        model, other = net(), net()
        optimizer = distribute(sgd(model), overlap=overlap, backward_passes_per_step=passes)
        nn.functional.mse_loss(model(batch(0, 0)[0], more=ddl.rank() == 0), batch(0, 0)[1]).backward()
        if ddl.rank() == 0:
            model.never(torch.ones(5)).sum().backward()  # all buckets have begun here, but on other ranks not the first
        optimizer.zero_grad()
        plain = distribute(sgd(other), overlap=overlap, backward_passes_per_step=passes)
        yield f"skipped: {overlap}, {passes}", same_bits(train(model, optimizer), train(other, plain))


def check_second() -> Iterator[tuple[str, bool]]:
    model, lonely = net(), net()
    plain = sgd(model)
    rivals = [distribute(plain, overlap=False)]
    loud, second = distribute(plain), distribute(plain)
    gone = weakref.ref(loud)
    del loud
    gc.collect()
    yield "deleted: gone", gone() is None
    for others in (", or delete the other DistributedOptimizer that has this parameter", ""):
        message = error_of(lambda: [loss(model, batch(0, ddl.rank())).backward() for _ in range(2)])
        yield f"two: {message!r}", message.endswith(f"backward_passes_per_step=2{others}")
        second.zero_grad()
        rivals.clear()
        gc.collect()
    yield "deleted: as alone", close(train(model, second), train(lonely, sgd(lonely), alone=True))


def check_copy() -> Iterator[tuple[str, bool]]:
    optimizer = distribute(sgd(net()))
    for copied in (copy, deepcopy, pickle.dumps):
        yield from equal(
            lambda copied=copied: copied(optimizer),  # type: ignore[misc]
            f"rank {ddl.rank()} of {ddl.size()}: DistributedOptimizer: no copy or pickle of it; copy its state_dict(), "
            "or copy the model and its optimizer (.optimizer) and make a DistributedOptimizer of the copy",
        )


def check_closure() -> Iterator[tuple[str, bool]]:
    model, lonely = net(), net()
    losses = []
    for trained, data, wrap in ((model, batch(0, ddl.rank()), True), (lonely, whole(0), False)):
        used = [*trained.first.parameters(), *trained.second.parameters()]
        plain = torch.optim.LBFGS(used, max_iter=6, line_search_fn="strong_wolfe")
        optimizer = distribute(plain) if wrap else plain

        def closure(trained: Net = trained, data: Any = data, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            result = loss(trained, data)
            result.backward()
            return result

        losses.append([optimizer.step(closure).item() for _ in range(3)])  # type: ignore[arg-type]
    yield "closure: the same bits on all ranks", everywhere(values(model))
    yield f"closure: losses as alone {losses}", np.allclose(losses[0], losses[1], rtol=1e-2)


def check_state() -> Iterator[tuple[str, bool]]:
    model, other = net(), net()
    optimizer = distribute(adam(model))
    train(model, optimizer)
    resumed = distribute(adam(other))
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))  # torch shares its tensors
    yield "resumed", same_bits(train(model, optimizer), train(other, resumed))
    yield "an optimizer", isinstance(optimizer, torch.optim.Optimizer) and "Adam" in repr(optimizer)
    model.frozen.requires_grad_(True)  # until now it was in no bucket
    train(model, optimizer)
    yield "thawed", everywhere(values(model)) and not torch.equal(model.frozen.weight, net().frozen.weight)


def check_ddp() -> Iterator[tuple[str, bool]]:
    results = []
    for hook in (None, (Averaging(), comm_hook), (None, comm_hook)):
        model = net()
        parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001, find_unused_parameters=True)
        if hook is not None:
            parallel.register_comm_hook(*hook)
        optimizer = sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(parallel, batch(step, ddl.rank())).backward()
            optimizer.step()
        results.append(values(model))
        yield "DDP: the same bits on all ranks", everywhere(results[-1])
    yield "DDP: the hook as DDP itself", close(results[0], results[1])
    yield "DDP: waited for or not", same_bits(results[1], results[2])


def check_metrics() -> Iterator[tuple[str, bool]]:
    mean = (ddl.size() - 1) / 2
    averages = average_metrics({"loss": float(ddl.rank()), "accuracy": torch.tensor(2.0 * ddl.rank())})  # type: ignore[dict-item]
    yield "metrics", list(averages.items()) == [("loss", mean), ("accuracy", 2 * mean)]
    yield "no metrics", average_metrics({}) == {}


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except InputError as error:
        return str(error)
    return "no error"


def check_errors() -> Iterator[tuple[str, bool]]:
    start, last = f"rank {ddl.rank()} of {ddl.size()}: ", ddl.size() - 1
    odd = ddl.rank() == last
    model = nn.Linear(4, 5 if odd else 3, dtype=torch.float64)
    shapes = ("(5, 4)", "(3, 4)") if odd else ("(3, 4)", "(5, 4)")
    other = 0 if odd else last
    remedy = "all learners build the same model"
    difference = f"float64 of shape {shapes[0]} here, but WHO: float64 of shape {shapes[1]} on rank {other}; {remedy}"
    yield from equal(
        lambda: broadcast_parameters(model),
        f"{start}broadcast_parameters: weight: {difference.replace('WHO', 'weight')}",
    )
    name = "parameter 0 of group 0"
    difference = difference.replace("WHO", name)
    yield from equal(lambda: distribute(sgd(model)), f"{start}DistributedOptimizer: {name}: {difference}")
    yield from equal(
        lambda: average_metrics({"loss": 1.0, **({"f1": 1.0} if odd else {})}),
        f"{start}average_metrics: {'f1 here, but loss' if odd else 'loss here, but f1'} on rank {other}; "
        "all learners average the same metrics",
    )
    yield from equal(lambda: average_metrics({"loss": "x"}), f"{start}average_metrics: could not convert string to "  # type: ignore[dict-item]
                     "float: 'x'; pass numbers")  # fmt: skip
    yield from equal(
        lambda: broadcast_parameters({"state": 1}),
        f"{start}broadcast_parameters: 'state' is int, no tensor; pass a module, or a mapping from names to tensors",
    )
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = distribute(torch.optim.SparseAdam(embedding.parameters()))
    yield from equal(
        lambda: (embedding(torch.tensor([1])).sum().backward(), optimizer.step()),
        f"{start}{name}, float32 of shape (4, 2): its gradient is sparse; make the layer dense",
    )
    yield from equal(
        lambda: distribute(sgd(nn.Linear(2, 2, dtype=torch.complex64))),
        f"{start}{name}, complex64 of shape (2, 2): no dtype to average; cast it to float32",
    )
    yield from equal(lambda: distribute(sgd(net()), backward_passes_per_step=0),
                     "backward_passes_per_step 0: at least 1")  # fmt: skip


def equal(call: Callable[[], Any], expected: str) -> Iterator[tuple[str, bool]]:
    message = error_of(call)
    yield f"{message!r} is not {expected!r}", message == expected


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


def main() -> None:
    torch.set_num_threads(1)
    for options in sys.argv[1:]:
        os.environ["DDL_OPTIONS"] = options
        ddl.init()
        init_process_group()
        wrong = [
            f"rank {ddl.rank()}: {options}: {name}: {case}"
            for name, check in CHECKS.items()
            for case, right in check()
            if not right
        ]
        total = int(ddl.all_reduce(len(wrong)))
        os.write(1, "".join(f"{line}\n" for line in wrong).encode())
        ddl.barrier()
        if ddl.rank() == 0:
            print(f"{total} wrong", flush=True)
        ddl.free()


if __name__ == "__main__":
    main()
