"""Averages over all learners of a job, for training scripts: `from ddlrun import ddl`.

Learners form a grid X x Y x Z: X inside a host, Y between the hosts of a rack, Z between racks. Sums go dimension by
dimension, so slow links carry only the piece they must. See docs/reference/ddl.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.dimensions import Grid
    from ddlrun.ddl.handle import Handle
    from ddlrun.ddl.learner import Learner

# The one learner that this process is; scripts call functions, as they did with IBM's DDL.
_started: list[Learner] = []


class Session:
    """What `init` returns: `with ddl.init():` frees at its end what init made."""

    def __enter__(self) -> Session:  # noqa: PYI034 - typing.Self came with 3.11
        """Do nothing more: init has run."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Free the communicators, unless an error is on its way: the others may not come along then."""
        if _kind is None:
            free()


def init(options: str | None = None, *, comm: Intracomm | None = None, tuning: str | None = None) -> Session:
    """Join the other learners; all ranks call it together. Without an MPI launch there is one learner.

    `options` is a DDL string ("-mode r:4x2x3"), else DDL_OPTIONS, else what ddlrun launch told. `comm` instead of MPI's
    world stays the caller's. `tuning` is text like "chunk=64K,depth=8", else DDLRUN_DDL_TUNING. A second call begins
    anew. Raises InputError if options are wrong, or the product of the dimensions is not the number of ranks.
    """
    from ddlrun.ddl.bootstrap import begin  # noqa: PLC0415 - numpy, and MPI where this is a rank

    free()
    _started.append(begin(options, comm, tuning, os.environ))
    return Session()


def free() -> None:
    """Free what init made; all ranks call it together. Nothing happens without init."""
    while _started:
        _started.pop().free()


def rank() -> int:
    """Return this learner's number, from 0."""
    return _learner().grid.rank


def size() -> int:
    """Return the number of learners."""
    return _learner().grid.size


def local_rank() -> int:
    """Return this learner's number among those of its host."""
    return _learner().host.local_rank


def local_size() -> int:
    """Return the number of learners on this host."""
    return _learner().host.local_size


def num_hosts() -> int:
    """Return the number of hosts."""
    return _learner().host.hosts


def coords() -> tuple[int, ...]:
    """Return this learner's place (x, y, z[, a])."""
    return _learner().grid.coords


def grid() -> Grid:
    """Return the grid; `grid().communicator("X")` has the learners of this one's row."""
    return _learner().grid


def all_reduce(
    x: Any,  # noqa: ANN401
    op: str = "sum",
    *,
    axes: str = "",
    in_place: bool = False,
    wire: str | None = None,
) -> Any:  # noqa: ANN401
    """Reduce x (any shape, the same on all learners) over all, or over those that differ in `axes` alone ("YZ").

    Returns an array like x, the same bits on all learners; a number for a number. `op`: sum, avg, max, min, prod.
    `wire` "bfloat16" or "float16" lets float32 travel in 16 bits between hosts, "bfloat16:YZ" in those dimensions;
    "float32" not, None as the tuning says. Sums stay in float32. Raises InputError, naming rank, dtype and shape.
    """
    return (_started[0] if _started else _learner()).all_reduce(x, op, axes, in_place, wire)


def all_reduce_n(
    arrays: Iterable[Any], op: str = "avg", *, axes: str = "", in_place: bool = False, wire: str | None = None
) -> list[Any]:
    """Reduce several arrays as `all_reduce` does, small ones fused into buckets."""
    return _learner().all_reduce_n(list(arrays), op, axes=axes, in_place=in_place, wire=wire)


def start(arrays: Iterable[Any], op: str = "avg", *, axes: str = "", wire: str | None = None) -> Handle:
    """Begin `all_reduce_n` in place and return a handle with `wait` and `test`; all learners start in the same order.

    Messages move in calls to `start`, `test` and `wait` alone. In mode m all is done when this returns.
    """
    return _learner().start(list(arrays), op, axes=axes, wire=wire)


def reduce_scatter(x: Any, op: str = "sum") -> Any:  # noqa: ANN401
    """Reduce x, which is overwritten, and return this learner's block of the result: flat, a part of x's memory.

    The block is x.reshape(-1)[slice(*piece(count))]; blocks are cut as MPI_Reduce_scatter's counts usually are and
    numbered (x*Y + y)*Z + z, which in ddl order is the rank. x must be contiguous.
    """
    return _learner().reduce_scatter(x, op)


def allgather_pieces(x: Any) -> Any:  # noqa: ANN401
    """Fill x from each learner's own block of it, in place: what undoes `reduce_scatter`."""
    return _learner().allgather_pieces(x)


def piece(count: int) -> tuple[int, int]:
    """Return (low, high), this learner's block of a flat array of `count` elements."""
    return _learner().piece(count)


def allgather(x: Any) -> Any:  # noqa: ANN401
    """Return every learner's x (same shape and dtype on all) as a numpy array (size, *shape), in the order of ranks."""
    return _learner().allgather(x)


def bcast(x: Any, root: int = 0, *, in_place: bool = False) -> Any:  # noqa: ANN401
    """Return rank root's x; the others pass an array of the same shape and dtype."""
    return _learner().bcast(x, root, in_place=in_place)


def barrier() -> None:
    """Wait until all learners are here."""
    _learner().barrier()


def shard(items: Any, *, drop_last: bool = False) -> Any:  # noqa: ANN401
    """Return this learner's part: every size-th item, as many for all, the first ones again at the end.

    A list of a list, tuple or range; an array of an array (a copy); a view of a dataset with __len__ and __getitem__.
    A torch sampler's indices are dealt out in rank 0's order. A tf.data.Dataset must know its cardinality, or be
    endless. Of an iterable, or a torch IterableDataset, each learner reads all and takes its own: as many for all where
    all read the same. `drop_last` leaves the last items out instead. Raises InputError on what has no items, or none
    for some learner with `drop_last`.

    >>> _ = init()
    >>> shard([1, 2, 3])
    [1, 2, 3]
    """
    from ddlrun.ddl.shards import part  # noqa: PLC0415 - it needs numpy

    return part(items, rank(), size(), drop_last=drop_last)


def scale_lr(lr: float, *, step: float | None = None, warm_up: float = 0) -> float:
    """Return the learning rate of one learner times their number: Goyal and others, arXiv 1706.02677, section 2.1.

    With `warm_up` it grows by the same amount in each step from lr at step 0 to that at step `warm_up`, and stays there
    (section 2.2). Steps are batches or epochs. Raises InputError on a negative `step` or `warm_up`, and on a `warm_up`
    without `step`.
    """
    if warm_up < 0 or (step or 0) < 0 or (warm_up and step is None):
        raise InputError(
            f"scale_lr: step {step}, warm_up {warm_up}; both count steps from 0, and a warm-up needs its step"
        )
    done = 1 if step is None or step >= warm_up else step / warm_up
    return lr * (1 + (size() - 1) * done)


def bucket_bytes() -> int:
    """Return the bytes up to which small arrays travel together."""
    return _learner().tuning.bucket


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Find the callbacks under the names that scripts for IBM's DDL use; only then Keras is loaded."""
    if name not in {"DDLCallback", "DDLGlobalVariablesCallback"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ddlrun.ddl import keras  # noqa: PLC0415 - it takes seconds, and not everybody has it

    return getattr(keras, name)


def _learner() -> Learner:
    if not _started:
        raise InputError("ddlrun.ddl is not started; call ddl.init() first")
    return _started[0]
