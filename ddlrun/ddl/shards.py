"""The part of the data that a learner takes: every size-th item, the same number for each learner."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ddlrun.ddl import session
from ddlrun.errors import InputError


def take_shard(items: Any, rank: int, size: int, *, drop_last: bool = False) -> Any:  # noqa: ANN401
    """Return every size-th item from item `rank` on, in a type that suits the items; see `ddl.shard`."""
    data = sys.modules.get("torch.utils.data")  # if it is not loaded, the items are not its own
    if isinstance(items, getattr(data, "Sampler", ())):
        return SamplerShard(items, rank, size, drop_last=drop_last)
    if isinstance(items, getattr(getattr(sys.modules.get("tensorflow"), "data", None), "Dataset", ())):
        return _shard_tensorflow_dataset(items, rank, size, drop_last=drop_last)
    _check_items(items)
    iterable_dataset: Any = getattr(data, "IterableDataset", None)
    if iterable_dataset and isinstance(items, iterable_dataset):
        iterable_dataset.register(StreamShard)  # torch's DataLoader checks the type
    elif hasattr(items, "__len__"):
        return _index(items, _places(len(items), rank, size, drop_last=drop_last))
    return StreamShard(items, rank, size, drop_last=drop_last)


def _index(items: Any, places: range) -> Any:  # noqa: ANN401
    if isinstance(items, (list, tuple, range)):
        return [items[place % len(items)] for place in places]
    if hasattr(items, "__array_interface__") or hasattr(items, "__dlpack__"):
        return items[np.array(places, dtype=np.int64) % max(len(items), 1)]
    return DatasetShard(items, places)


class DatasetShard(Sequence[Any]):
    """A view of a dataset: its items at some places, each read when it is used. Places beyond the end wrap around."""

    def __init__(self, dataset: Any, places: range) -> None:  # noqa: ANN401
        self.dataset = dataset
        self._places = places
        self._count = len(dataset)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, at: Any) -> Any:  # noqa: ANN401
        if isinstance(at, slice):
            return DatasetShard(self.dataset, self._places[at])
        return self.dataset[self._places[at] % self._count]

    def __getitems__(self, indices: Iterable[int]) -> Any:  # noqa: ANN401
        """Return a batch, in one call if the dataset has __getitems__. torch's DataLoader calls it."""
        read_batch = getattr(self.dataset, "__getitems__", None)
        places = [self._places[at] % self._count for at in indices]
        return read_batch(places) if read_batch else [self.dataset[place] for place in places]


class StreamShard:
    """Every size-th item of an iterable that can only be read from its beginning; each learner reads all of it."""

    def __init__(self, source: Iterable[Any], rank: int, size: int, *, drop_last: bool = False) -> None:
        self.source = source
        self._rank, self._size, self._drop_last = rank, size, drop_last

    def __len__(self) -> int:
        """Return the number of items. Raises TypeError if the source has no length."""
        return len(_places(len(self.source), self._rank, self._size, drop_last=self._drop_last))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        source, first = iter(self.source), None
        while group := list(itertools.islice(source, self._size)):
            first = first or group
            if self._rank < len(group) and (len(group) == self._size or not self._drop_last):
                yield group[self._rank]
            elif not self._drop_last:
                yield first[(self._rank - len(group)) % len(first)]


class SamplerShard:
    """The indices of a torch sampler, in rank 0's order, divided among the learners. All iterate over it together."""

    def __init__(self, sampler: Any, rank: int, size: int, *, drop_last: bool = False) -> None:  # noqa: ANN401
        if getattr(sampler, "num_replicas", 1) > 1:
            raise InputError(
                f"shard: {type(sampler).__name__} already shards over {sampler.num_replicas} ranks; use it as it is"
            )
        self.sampler = sampler
        self._rank, self._size, self._drop_last = rank, size, drop_last

    def __len__(self) -> int:
        return len(_places(len(self.sampler), self._rank, self._size, drop_last=self._drop_last))

    def __iter__(self) -> Iterator[int]:
        indices = list(self.sampler)
        if wrong := [index for index in indices if not hasattr(index, "__index__")]:
            raise InputError(
                f"shard: {type(self.sampler).__name__} yields {type(wrong[0]).__name__}, not an index; shard the "
                "sampler that it wraps"
            )
        count = int(session.bcast(np.array(len(indices))))
        order = session.bcast(np.array(indices if session.rank() == 0 else [0] * count, dtype=np.int64))
        yield from take_shard(order, self._rank, self._size, drop_last=self._drop_last).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the sampler, if it has `set_epoch`."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)


def _places(count: int, rank: int, size: int, *, drop_last: bool) -> range:
    """Return the places of a learner's items; those from `count` on stand for items from the beginning."""
    if drop_last and 0 < count < size:
        raise InputError(f"shard: {count} items for {size} learners, and drop_last leaves none")
    return range(rank, (count if drop_last else count + size - 1) // size * size, size)


def _shard_tensorflow_dataset(dataset: Any, rank: int, size: int, *, drop_last: bool) -> Any:  # noqa: ANN401
    count = int(dataset.cardinality())
    if count == -1:  # tf.data.INFINITE_CARDINALITY
        return dataset.shard(size, rank)
    if count < 0:
        raise InputError(
            "shard: the number of elements of this tf.data.Dataset is unknown, so learners could do unequal numbers of "
            "steps; shard the file names instead of what is read from them, call repeat() before, or apply "
            "tf.data.experimental.assert_cardinality(n)"
        )
    total = len(_places(count, rank, size, drop_last=drop_last)) * size
    return dataset.repeat().take(total).shard(size, rank)


def _check_items(items: Any) -> None:  # noqa: ANN401
    """Raise InputError if the items cannot be divided."""
    kind = type(items).__name__
    if isinstance(items, (str, bytes)):
        raise InputError(f"shard: {kind} {items[:40]!r}; pass a list of names, or what is read from it")
    if hasattr(items, "iloc"):
        raise InputError(f"shard: {kind}; write frame.iloc[ddl.shard(range(len(frame)))]")
    if isinstance(items, Mapping):
        raise InputError(f"shard: {kind} is a mapping; pass a list of its keys, or shard each value")
    if hasattr(items, "__len__") and not hasattr(items, "__getitem__"):
        raise InputError(f"shard: {kind} has no items by number; pass a list, or shard the dataset that it reads")
    if getattr(items, "shape", None) == () or not (hasattr(items, "__iter__") or hasattr(items, "__len__")):
        raise InputError(
            f"shard: {kind} has no items; pass a list, an array, a dataset with __len__ and __getitem__, a torch "
            "sampler, a tf.data.Dataset, or an iterable"
        )
