"""The parts of data that learners get, and the learning rate that goes with their number."""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun import ddl
from ddlrun.ddl.shards import take_shard
from ddlrun.errors import InputError
from tests.ddl.test_mpi import started
from tests.docs.pages import script
from tests.support import needs

SIZES = st.integers(1, 40)


class Dataset:
    """Any library's map-style dataset."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> int:
        assert 0 <= place < self.count
        self.read += 1
        return place


@given(st.integers(0, 300), SIZES)
def test_all_parts_have_the_same_length_and_cover_all_items(count: int, size: int) -> None:
    shards = [take_shard(range(count), rank, size) for rank in range(size)]
    assert {len(shard) for shard in shards} == {-(-count // size)}
    assert {item for shard in shards for item in shard} == set(range(count))
    assert [place for step in zip(*shards, strict=True) for place in step][:count] == list(range(count))
    for rank, expected in enumerate(shards):
        assert take_shard(np.arange(count), rank, size).tolist() == expected
        assert list(take_shard(Dataset(count), rank, size)) == expected
        assert list(take_shard(iter(range(count)), rank, size)) == expected


@given(st.integers(0, 300), SIZES)
def test_drop_last_leaves_out_the_last_items(count: int, size: int) -> None:
    if 0 < count < size:
        with pytest.raises(InputError, match=f"{count} items for {size} learners, and drop_last leaves none"):
            take_shard(range(count), 0, size, drop_last=True)
        return
    shards = [take_shard(range(count), rank, size, drop_last=True) for rank in range(size)]
    assert {len(shard) for shard in shards} == {count // size}
    assert sorted(item for shard in shards for item in shard) == list(range(count // size * size))
    for rank, expected in enumerate(shards):
        assert list(take_shard(Dataset(count), rank, size, drop_last=True)) == expected
        assert list(take_shard(iter(range(count)), rank, size, drop_last=True)) == expected


def test_a_dataset_is_read_when_its_items_are_used() -> None:
    dataset = Dataset(7)
    mine = take_shard(dataset, 1, 3)
    assert (len(mine), mine[-1], mine[0], list(mine[1:]), dataset.read) == (3, 0, 1, [4, 0], 4)
    with pytest.raises(IndexError):
        mine[3]


@pytest.mark.extra
def test_torchs_data_loader_reads_a_shard() -> None:
    needs.package("torch", "torch==2.13.0")
    data: Any = importlib.import_module("torch.utils.data")

    class Numbers(data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    def loaded(dataset: Any) -> list[int]:
        return [number for batch in data.DataLoader(dataset, batch_size=2) for number in batch.tolist()]

    assert loaded(take_shard(Dataset(5), 1, 2)) == loaded(take_shard(Numbers(), 1, 2)) == [1, 3, 0]
    with pytest.raises(InputError, match="DistributedSampler already shards over 2 ranks"):
        take_shard(data.DistributedSampler(Dataset(5), 2, 0), 0, 2)


RANKS = """
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from ddlrun import ddl
from ddlrun.errors import InputError

ddl.init()
torch.manual_seed(ddl.rank())  # without shard, each rank would draw another order
mine = ddl.shard(RandomSampler(range(100)))
seen = [index.item() for index in DataLoader(torch.arange(100), sampler=mine, batch_size=None)]
assert len(seen) == len(mine) == 34, len(seen)
every = ddl.allgather(torch.tensor(seen)).tolist()
assert {index for indices in every for index in indices} == set(range(100)) and sum(every, []) != sorted(sum(every, []))
assert [ddl.scale_lr(0.5, step=step, warm_up=4) for step in range(6)] == [0.5, 0.75, 1, 1.25, 1.5, 1.5]
assert ddl.scale_lr(0.5) == 1.5
try:
    list(ddl.shard(BatchSampler(range(100), 5, False)))
except InputError as error:
    print(error, flush=True)
"""


@pytest.mark.extra
@pytest.mark.parametrize("major", [4], indirect=True)
def test_samplers_are_divided_in_rank_0s_order_and_the_rate_grows(mpirun: str) -> None:
    needs.package("torch", "torch==2.13.0")
    done = started(mpirun, 3, "-c", RANKS)
    message = "shard: BatchSampler yields list, not an index; shard the sampler that it wraps"
    # mpirun may put the newlines of ranks that print at the same time anywhere.
    rest = done.stdout.replace(message, "").strip()
    assert (done.returncode, done.stdout.count(message), rest) == (0, 3, ""), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("train.csv", "str 'train.csv'; pass a list of names"),
        ({"x": [1], "y": [2]}, "dict is a mapping; pass a list of its keys"),
        ({1, 2}, "set has no items by number; pass a list"),
        (7, "int has no items; pass a list, an array"),
        (np.float64(7), "float64 has no items"),
    ],
)
def test_items_that_cannot_be_divided_are_refused(items: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        take_shard(items, 0, 2)


@pytest.fixture
def tf() -> Any:
    """Return the module of TensorFlow, which has an environment of its own."""
    if importlib.util.find_spec("tensorflow") is None:
        needs.skip(
            "TensorFlow has its own environment",
            ".venv/frameworks/bin/python -m pytest tests/ddl/test_shards.py -k tf_data",
        )
    return importlib.import_module("tensorflow")


@pytest.mark.parametrize(("count", "drop_last"), [(0, False), (2, False), (6, False), (7, False), (7, True)])
@pytest.mark.extra
def test_elements_of_tf_data(tf: Any, count: int, *, drop_last: bool) -> None:
    for rank in range(3):
        elements = take_shard(tf.data.Dataset.range(count), rank, 3, drop_last=drop_last)
        assert int(elements.cardinality()) == len(expected := take_shard(range(count), rank, 3, drop_last=drop_last))
        assert [int(element) for element in elements] == expected


@pytest.mark.extra
def test_tf_data_of_unknown_length_is_refused(tf: Any) -> None:
    unknown = tf.data.Dataset.range(10).filter(lambda x: x < 5)
    with pytest.raises(InputError, match=r"the number of elements of this .* shard the file names"):
        take_shard(unknown, 0, 2)
    assert [int(item) for item in take_shard(unknown.repeat(), 1, 2).take(4)] == [1, 3, 0, 2]


@pytest.mark.extra
def test_the_pages_tf_data_reads_each_record_once(tf: Any, tmp_path: Path) -> None:
    for number in range(4):
        with tf.io.TFRecordWriter(f"{tmp_path}/train-{number}.tfrecord") as file:
            for record in range(8):
                file.write(tf.io.serialize_tensor(float(8 * number + record)).numpy())
    page = script("data-and-learning-rate", "TensorFlow", kind="python")
    names: dict[str, Any] = {"folder": tmp_path, "parse": lambda text: tf.io.parse_tensor(text, tf.float32)}
    with ddl.init(""):
        exec(page, names)  # noqa: S102 - the code of the page
    (batch,) = names["dataset"].take(1)
    assert sorted(batch.numpy().tolist()) == list(range(32))


def test_the_learning_rate_warms_up() -> None:
    with ddl.init(""):
        assert ddl.scale_lr(0.1) == ddl.scale_lr(0.1, step=3, warm_up=5) == 0.1
        for wrong in ({"warm_up": 5}, {"step": 1, "warm_up": -5}, {"step": -1}):
            with pytest.raises(InputError, match="scale_lr: step"):
                ddl.scale_lr(0.1, **wrong)
