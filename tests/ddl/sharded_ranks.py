"""A rank of test_sharded.py: training with ShardedOptimizer compared with training alone.

    mpirun -n 4 python -m mpi4py sharded_ranks.py

Each rank prints its errors.
"""

import os
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from ddlrun import ddl
from ddlrun.ddl.torch import ShardedOptimizer
from ddlrun.errors import InputError
from tests.ddl.torch_ranks import batch, close, everywhere, full, loss, same_bits, train, values, whole

SMALL = 512  # bytes of a bucket: several of them in this model


def adam(model: nn.Module, **options: Any) -> ShardedOptimizer:
    return ShardedOptimizer(model.parameters(), torch.optim.Adam, lr=0.01, bucket_bytes=SMALL, **options)


def state_bytes(optimizer: Any) -> int:
    """Return the bytes of the moments."""
    tensors = [value for state in optimizer.state.values() for value in state.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor.dim())


def check_training() -> Iterator[tuple[str, bool]]:
    model, lonely = full(), full()
    sharded, alone = adam(model), torch.optim.Adam(lonely.parameters(), lr=0.01)
    together = train(model, sharded)  # type: ignore[arg-type]
    yield "the same bits on all ranks", everywhere(together)
    yield "as alone", close(together, train(lonely, alone, alone=True))
    sums = ddl.all_reduce(state_bytes(sharded))
    yield f"all states together: {sums} of {state_bytes(alone)} bytes", sums == state_bytes(alone)
    rounding = 2 * 4 * len(sharded.param_groups[0]["params"])  # two moments, an element per bucket
    least = state_bytes(alone) / ddl.size()
    yield f"{state_bytes(sharded)} bytes, not {least}", abs(state_bytes(sharded) - least) <= rounding


def check_schedulers_and_groups() -> Iterator[tuple[str, bool]]:
    model, lonely = full(), full()
    rows: list[list[dict[str, Any]]] = []
    for item in (model, lonely):
        first, _, last = item.children()
        rows.append([{"params": first.parameters(), "lr": 0.1}, {"params": last.parameters()}])
    pair = ShardedOptimizer(rows[0], torch.optim.SGD, lr=0.2), torch.optim.SGD(rows[1], lr=0.2)
    for optimizer, data, net in zip(pair, (lambda s: batch(s, ddl.rank()), whole), (model, lonely), strict=True):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(3):
            optimizer.zero_grad()
            loss(net, data(step)).backward()
            optimizer.step()
            scheduler.step()
    yield "groups with rates that fall", close(values(model), values(lonely))


def check_clipping() -> Iterator[tuple[str, bool]]:
    model, lonely = full(), full()
    sharded, alone = adam(model), torch.optim.Adam(lonely.parameters(), lr=0.01)
    loss(model, batch(0, ddl.rank())).backward()
    loss(lonely, whole(0)).backward()
    norm, exact = sharded.clip_grad_norm_(0.01), float(nn.utils.clip_grad_norm_(lonely.parameters(), 0.01))
    sharded.step()
    alone.step()
    yield f"norm {norm}, not {exact}", abs(norm - exact) < 1e-4 * exact
    yield "clipped as alone", close(values(model), values(lonely))


def check_states() -> Iterator[tuple[str, bool]]:
    first, second = full(), full()
    before, after = adam(first), adam(second)
    train(first, before)  # type: ignore[arg-type]
    second.load_state_dict(first.state_dict())
    after.load_state_dict(deepcopy(before.state_dict()))  # torch keeps the tensors that it loads
    yield "a loaded state goes on alike", same_bits(train(first, before), train(second, after))  # type: ignore[arg-type]
    state = before.state_dict() | {"learner": ddl.size()}
    try:
        after.load_state_dict(state)
    except InputError as error:
        yield str(error), f"a state of learner {ddl.size()} of {ddl.size()}" in str(error)
    else:
        yield "the state of another learner is refused", False


def main() -> None:
    torch.set_num_threads(1)
    ddl.init()
    checks = (check_training, check_schedulers_and_groups, check_clipping, check_states)
    wrong = [f"rank {ddl.rank()}: {case}" for check in checks for case, right in check() if not right]
    total = int(ddl.all_reduce(len(wrong)))
    os.write(1, "".join(f"{line}\n" for line in wrong).encode())
    ddl.barrier()
    if ddl.rank() == 0:
        print(f"{total} wrong", flush=True)
    ddl.free()


if __name__ == "__main__":
    main()
