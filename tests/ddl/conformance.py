"""The conformance of the backend "ddl": every operation, dtype, shape and group size, beside gloo.

    python -m tests.ddl.conformance [RANKS]

prints a table: `=` the results of gloo, `+` a result where gloo refuses, `.` refused by both, `-` refused by ddl alone,
`!` other results. Tensors for gloo are contiguous, as it reduces the wrong elements of strided ones.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import torch
from torch import distributed

from ddlrun.ddl.torch.backend import register
from tests.ddl.test_tcp import started_alone

dist: Any = distributed  # its stubs lack the operations
Tensor = torch.Tensor
DTYPES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn"
).split()
SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda whole: whole[:11],
    "0-dim": lambda whole: whole[3],
    "empty": lambda whole: whole[:0],
    "one strided": lambda whole: whole[:12].reshape(1, 12)[:, 5],
    "strided": lambda whole: whole[::3],
    "turned": lambda whole: whole[:12].reshape(3, 4).T,
    "channels last": lambda whole: whole[:24].reshape(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "long": lambda whole: whole,
}
# Those of groups that lack ranks: whatever the group, the same code packs a tensor.
SOME_SHAPES = ("flat", "strided", "long")
LENGTH = 3000
OPERATIONS = {name: getattr(dist.ReduceOp, name) for name in "SUM AVG PRODUCT MIN MAX BAND BOR BXOR".split()}


def allreduce(op: Any, mine: Tensor, group: Any, _size: int) -> list[Tensor]:
    dist.all_reduce(mine, op, group=group)
    return [mine]


def reduce(op: Any, mine: Tensor, group: Any, size: int) -> list[Tensor]:
    dist.reduce(mine, size - 1, op, group=group)
    return [mine] if dist.get_rank(group) == size - 1 else []


def reduce_scatter(op: Any, mine: Tensor, group: Any, size: int) -> list[Tensor]:
    result = torch.zeros_like(mine)
    dist.reduce_scatter(result, [mine, *[result.clone() for _ in range(size - 1)]], op, group)
    return [result]


def broadcast(mine: Tensor, group: Any, size: int) -> list[Tensor]:
    dist.broadcast(mine, size - 1, group=group)
    return [mine]


def all_gather(mine: Tensor, group: Any, size: int) -> list[Tensor]:
    rows = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(rows, mine, group=group)
    return rows


def gather(mine: Tensor, group: Any, size: int) -> list[Tensor]:
    rows = [torch.zeros_like(mine) for _ in range(size)] if dist.get_rank(group) == 0 else []
    dist.gather(mine, rows or None, 0, group=group)
    return rows


def scatter(mine: Tensor, group: Any, size: int) -> list[Tensor]:
    result = torch.zeros_like(mine)
    dist.scatter(result, [mine] * size if dist.get_rank(group) == 0 else None, 0, group=group)
    return [result]


def all_to_all(mine: Tensor, group: Any, size: int) -> list[Tensor]:
    rows = torch.stack([mine] * size)
    result = torch.zeros_like(rows)
    dist.all_to_all_single(result, rows, group=group)
    return [result]


def messages(mine: Tensor, group: Any, size: int) -> list[Tensor]:
    result, me = torch.zeros_like(mine), dist.get_rank(group)
    if size > 1:
        sends = dist.isend(mine, (me + 1) % size, group=group)
        dist.recv(result, (me - 1) % size, group=group)
        sends.wait()
    return [result]


COPIES = (broadcast, all_gather, gather, scatter, all_to_all, messages)
REDUCTIONS = (allreduce, reduce, reduce_scatter)
CALLS: dict[str, Callable[[Tensor, Any, int], list[Tensor]]] = {call.__name__: call for call in COPIES}
for _call, (_name, _op) in product(REDUCTIONS, OPERATIONS.items()):
    CALLS[f"{_call.__name__} {_name}"] = lambda mine, group, size, call=_call, op=_op: call(op, mine, group, size)  # type: ignore[misc]


def values(rank: int, dtype: str, shape: str, *, contiguous: bool) -> Tensor:
    """Return a tensor of small numbers, whose sums and products are exact."""
    numbers = torch.arange(LENGTH) % 3 + rank % 2
    tensor = SHAPES[shape](numbers.to(getattr(torch, dtype)))
    return tensor.contiguous().clone() if contiguous else tensor


def attempt(call: Callable[[], list[Tensor]]) -> list[Tensor] | None:
    """Return the results of a call, None if it is refused."""
    try:
        return call()
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return None


def judge(theirs: list[Tensor] | None, mine: list[Tensor] | None) -> str:
    """Return the sign of two results."""
    if theirs is None or mine is None:
        return "." if theirs is mine else "+" if theirs is None else "-"
    same = all(a.shape == b.shape and torch.equal(a.to(b.dtype), b) for a, b in zip(mine, theirs, strict=True))
    return "=" if same else "!"


def cases(rank: int, world: int) -> Iterator[tuple[str, str, str]]:
    """Yield an operation, a dtype and the sign for each shape and group size."""
    for size in range(1, world + 1):
        gloo, ddl = (dist.new_group(list(range(size)), backend=backend) for backend in ("gloo", "ddl"))
        if rank < size:
            for (name, call), dtype, shape in product(CALLS.items(), DTYPES, SHAPES if size == world else SOME_SHAPES):
                results = [
                    attempt(lambda: call(values(rank, dtype, shape, contiguous=group is gloo), group, size))  # noqa: B023 - called at once
                    for group in (gloo, ddl)
                ]
                yield name, dtype, judge(*results)


def render(signs: dict[tuple[str, str], str]) -> str:
    """Return the table: the worst sign of each operation and dtype."""
    width = max(map(len, CALLS))
    lines = [f"{'':{width}} {' '.join(DTYPES)}"]
    for name in CALLS:
        marks = (min(signs[name, dtype], key="!-+=.".index).center(len(dtype)) for dtype in DTYPES)
        lines.append(f"{name:{width}} {' '.join(marks)}")
    return "\n".join(lines)


def main_of_rank() -> None:
    """Print the signs of a rank, one line per operation and dtype."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    register()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    signs: dict[tuple[str, str], str] = {}
    for name, dtype, sign in cases(dist.get_rank(), dist.get_world_size()):
        signs[name, dtype] = signs.get((name, dtype), "") + sign
    dist.barrier()
    for (name, dtype), line in signs.items():
        print(f"{name},{dtype},{line}")
    dist.destroy_process_group()


def run(ranks: int) -> dict[tuple[str, str], str]:
    """Run the cases on some ranks; return the signs of all of them by operation and dtype."""
    signs: dict[tuple[str, str], str] = {}
    for end in started_alone(ranks, "-m", "tests.ddl.conformance", "--rank"):
        assert end.returncode == 0, end.stderr
        for line in end.stdout.splitlines():
            name, dtype, found = line.split(",")
            signs[name, dtype] = signs.get((name, dtype), "") + found
    return signs


if __name__ == "__main__":
    if sys.argv[1:] == ["--rank"]:
        main_of_rank()
    else:
        print(render(run(int(sys.argv[1]) if sys.argv[1:] else 4)))
