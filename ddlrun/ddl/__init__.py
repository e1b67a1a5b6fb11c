"""Collectives for training scripts: `from ddlrun import ddl`.

The learners form a grid X x Y x Z: X inside a host, Y between the hosts of a rack, Z between racks. Reductions run one
dimension at a time, so slow links carry the least data. See docs/reference/ddl.md.
"""

from __future__ import annotations

from typing import Any

from ddlrun.ddl.session import (
    Session,
    all_reduce,
    all_reduce_n,
    allgather,
    allgather_pieces,
    barrier,
    bcast,
    bucket_bytes,
    coords,
    free,
    grid,
    init,
    local_rank,
    local_size,
    num_hosts,
    piece,
    rank,
    reduce_scatter,
    scale_lr,
    size,
    start,
)

__all__ = [
    "Session", "all_reduce", "all_reduce_n", "allgather", "allgather_pieces", "barrier", "bcast", "bucket_bytes",
    "coords", "free", "grid", "init", "local_rank", "local_size", "num_hosts", "piece", "rank", "reduce_scatter",
    "scale_lr", "shard", "size", "start",
]  # fmt: skip


def shard(items: Any, *, drop_last: bool = False) -> Any:  # noqa: ANN401
    """Return this learner's part of the data: every size-th item, the same number for all learners.

    The last learners get items from the beginning again where the number does not divide.

    Args:
        items: A list, array, dataset, torch sampler, tf.data.Dataset or iterable.
        drop_last: Leave out the items beyond the last multiple of the number of learners instead.

    Returns:
        For a list, tuple or range, a list. For an array, an array (a copy). For a dataset with `__len__`
        and `__getitem__`, a view that reads items when they are used. For a torch sampler, a sampler over its indices
        in rank 0's order. For a tf.data.Dataset, which must know its cardinality or be infinite, a tf.data.Dataset. For
        an iterable or a torch IterableDataset, an iterable: each learner reads all items, and the parts have the same
        length if all learners read the same items.

    Raises:
        InputError: `items` has no items, or with `drop_last` fewer items than learners.

    Examples:
        >>> _ = init()
        >>> shard([1, 2, 3])
        [1, 2, 3]
    """
    from ddlrun.ddl.shards import take_shard  # noqa: PLC0415 - 120 ms: numpy

    return take_shard(items, rank(), size(), drop_last=drop_last)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Return a Keras callback by the name that scripts for IBM's DDL use. Keras is loaded only then."""
    if name not in {"DDLCallback", "DDLGlobalVariablesCallback"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ddlrun.ddl import keras  # noqa: PLC0415 - seconds, and it need not be installed

    return getattr(keras, name)
