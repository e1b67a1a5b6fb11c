"""The part of the data that a learner takes: every size-th item, as many for each learner."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ddlrun import ddl
from ddlrun.errors import InputError


def part(items: Any, rank: int, size: int, *, drop_last: bool = False) -> Any:  # noqa: ANN401
    """Return every size-th item from `rank` on, in what suits the kind of items; see `ddl.shard`."""
    data = sys.modules.get("torch.utils.data")  # what is not loaded has made no items
    if isinstance(items, getattr(data, "Sampler", ())):
        return SamplerShard(items, rank, size, drop_last=drop_last)
    if isinstance(items, getattr(getattr(sys.modules.get("tensorflow"), "data", None), "Dataset", ())):
        return _tensorflow_part(items, rank, size, drop_last=drop_last)
    _refuse(items)
    streams: Any = getattr(data, "IterableDataset", None)
    if streams and isinstance(items, streams):
        streams.register(StreamShard)  # torch's DataLoader asks isinstance
    elif hasattr(items, "__len__"):
        return _indexed(items, _places(len(items), rank, size, drop_last=drop_last))
    return StreamShard(items, rank, size, drop_last=drop_last)


def _indexed(items: Any, places: range) -> Any:  # noqa: ANN401
    if isinstance(items, (list, tuple, range)):
        return [items[place % len(items)] for place in places]
    if hasattr(items, "__array_interface__") or hasattr(items, "__dlpack__"):
        return items[np.array(places, dtype=np.int64) % max(len(items), 1)]
    return DatasetShard(items, places)


class DatasetShard(Sequence[Any]):
    """The items of a dataset at some places, each read when it is asked for; places beyond the end begin anew."""

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

    def __getitems__(self, wanted: Iterable[int]) -> Any:  # noqa: ANN401
        """Return a batch at once where the dataset can: torch's DataLoader asks for it."""
        several = getattr(self.dataset, "__getitems__", None)
        places = [self._places[at] % self._count for at in wanted]
        return several(places) if several else [self.dataset[place] for place in places]


class StreamShard:
    """Every size-th item of what can only be read from its beginning; each learner reads all of it."""

    def __init__(self, source: Iterable[Any], rank: int, size: int, *, drop_last: bool = False) -> None:
        self.source = source
        self._rank, self._size, self._drop_last = rank, size, drop_last

    def __len__(self) -> int:
        """Return how many items there are; raises TypeError where the source does not say."""
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
    """A torch sampler's indices dealt out to the learners, in rank 0's order; all begin to iterate together."""

    def __init__(self, sampler: Any, rank: int, size: int, *, drop_last: bool = False) -> None:  # noqa: ANN401
        if getattr(sampler, "num_replicas", 1) > 1:
            raise InputError(
                f"shard: {type(sampler).__name__} deals out to {sampler.num_replicas} ranks by itself; use it as it is"
            )
        self.sampler = sampler
        self._rank, self._size, self._drop_last = rank, size, drop_last

    def __len__(self) -> int:
        return len(_places(len(self.sampler), self._rank, self._size, drop_last=self._drop_last))

    def __iter__(self) -> Iterator[int]:
        drawn = list(self.sampler)
        if wrong := [index for index in drawn if not hasattr(index, "__index__")]:
            raise InputError(
                f"shard: {type(self.sampler).__name__} gives {type(wrong[0]).__name__}, no index; shard the sampler "
                "that it is made of"
            )
        count = int(ddl.bcast(np.array(len(drawn))))
        order = ddl.bcast(np.array(drawn if ddl.rank() == 0 else [0] * count, dtype=np.int64))
        yield from part(order, self._rank, self._size, drop_last=self._drop_last).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler the epoch, if it asks."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)


def _places(count: int, rank: int, size: int, *, drop_last: bool) -> range:
    if drop_last and 0 < count < size:
        raise InputError(f"shard: {count} items for {size} learners, and drop_last leaves none")
    return range(rank, (count if drop_last else count + size - 1) // size * size, size)


def _tensorflow_part(dataset: Any, rank: int, size: int, *, drop_last: bool) -> Any:  # noqa: ANN401
    count = int(dataset.cardinality())
    if count == -1:  # tf.data.INFINITE_CARDINALITY
        return dataset.shard(size, rank)
    if count < 0:
        raise InputError(
            "shard: nobody knows how many elements this tf.data.Dataset has, so learners could do unequal numbers of "
            "steps; shard the file names instead of what is read from them, call repeat() before, or apply "
            "tf.data.experimental.assert_cardinality(n)"
        )
    total = len(_places(count, rank, size, drop_last=drop_last)) * size
    return dataset.repeat().take(total).shard(size, rank)


def _refuse(items: Any) -> None:  # noqa: ANN401
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
