"""Element types, operations and arrays of frameworks, without MPI."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun import ddl
from ddlrun.allreduce_algorithms import Tuning
from ddlrun.ddl.group.flat import FlatArray, copy_of, flatten
from ddlrun.ddl.group.host_reduction import make_buckets
from ddlrun.ddl.group.reduce_ops import OPERATIONS, WIDE, find_reduce_op, store, widen
from ddlrun.errors import InputError
from tests.support import needs

FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=40).map(lambda values: np.array(values, np.float32))


@given(FLOATS)
def test_bfloat16_is_rounded_to_the_nearest_even(values: Any) -> None:
    rounded = np.empty(len(values), np.uint16)
    store(values, rounded, "bfloat16")
    for value, bits in zip(values, rounded, strict=True):
        back = widen(np.array([bits], np.uint16), "bfloat16")[0]
        if np.isnan(value) or np.isinf(back):
            assert np.isnan(back) == np.isnan(value)
            continue
        below = np.uint32(value.view(np.uint32)) & np.uint32(0xFFFF0000)
        candidates = [np.uint32(below).view(np.float32), np.uint32(int(below) + 0x10000).view(np.float32)]
        distances = [abs(np.float64(value) - np.float64(near)) for near in candidates if np.isfinite(near)]
        assert abs(np.float64(value) - np.float64(back)) == min(distances)


@given(FLOATS)
def test_half_precision_survives_widening_and_rounding(values: Any) -> None:
    for dtype, memory in (("float16", np.float16), ("bfloat16", np.uint16)):
        rounded = np.empty(len(values), memory)
        store(values, rounded, dtype)
        again = np.empty_like(rounded)
        store(widen(rounded, dtype), again, dtype)
        assert np.array_equal(widen(again, dtype), widen(rounded, dtype), equal_nan=True)


def test_half_precision_is_summed_in_float32() -> None:
    mine, theirs = np.full(3, 60000, np.float16), np.full(3, 60000, np.float16)
    find_reduce_op("float16", "avg").combine(mine, theirs, 2)
    assert (mine == 60000).all()


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", sorted(WIDE))
def test_combining_is_numpys_own(dtype: str, op: str) -> None:
    if op == "avg" and "int" in dtype:
        with pytest.raises(InputError, match=rf"the average of {dtype} is no {dtype}; use op 'sum'"):
            find_reduce_op(dtype, op)
        return
    mine, theirs = np.array([1, 5], dtype), np.array([4, 2], dtype)
    find_reduce_op(dtype, op).combine(mine, theirs, 1)
    assert mine.tolist() == OPERATIONS[op][0]([1, 5], [4, 2]).tolist()


@pytest.mark.parametrize(
    ("dtype", "op", "message"),
    [
        ("float32", "mean", "unknown operation 'mean'; known are sum, avg"),
        ("complex64", "sum", "complex64 cannot be reduced; cast to one of"),
    ],
)
def test_an_operation_without_meaning_is_refused(dtype: str, op: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_reduce_op(dtype, op)


def test_a_flat_array_is_the_callers_memory() -> None:
    whole = np.zeros((3, 4), np.float32)
    flatten(whole).elements[:] = 7
    assert (whole == 7).all()
    turned = flatten(whole.T)
    turned.elements[:] = 8
    turned.write_back()
    assert (whole == 8).all()


def test_other_objects_are_refused() -> None:
    with pytest.raises(InputError, match="str is not an array"):
        flatten("text")
    with pytest.raises(InputError, match="read-only"):
        flatten(np.broadcast_to(np.zeros(1), (3,)))


@given(st.lists(st.tuples(st.sampled_from(["float32", "float64"]), st.integers(0, 300))), st.integers(1, 2000))
def test_every_array_is_in_one_bucket(sizes: list[tuple[str, int]], most: int) -> None:
    arrays = [FlatArray(np.zeros(size, dtype), dtype, (size,)) for dtype, size in sizes]
    buckets = make_buckets(arrays, Tuning(chunk=1000, bucket=most))
    in_buckets = [id(array.elements) for bucket in buckets for array in bucket]
    assert sorted(in_buckets) == sorted(id(array.elements) for array in arrays)
    for bucket in buckets:
        assert len({array.dtype for array in bucket}) == 1
        if len(bucket) > 1:
            assert sum(array.elements.nbytes for array in bucket) <= most


def test_a_single_learner_changes_nothing() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ddl.init(""):
        assert (ddl.rank(), ddl.size(), ddl.local_rank(), ddl.local_size(), ddl.num_hosts()) == (0, 1, 0, 1, 1)
        assert ddl.coords() == (0, 0, 0)
        for op in OPERATIONS:
            assert np.array_equal(ddl.all_reduce(values, op), values)
        assert ddl.all_reduce(2.5, "avg") == 2.5
        assert np.array_equal(ddl.reduce_scatter(values.copy()), values.reshape(-1))
        assert ddl.allgather(values).shape == (1, 2, 3)
        ddl.start([values]).wait()
        ddl.barrier()
        assert ddl.shard(list("abc")) == ["a", "b", "c"]
        with pytest.raises(InputError, match="rank 0 of 1: all_reduce: the average of int64"):
            ddl.all_reduce(np.arange(3), "avg")
        with pytest.raises(InputError, match="no communicator 'X': a single learner"):
            ddl.grid().communicator("X")
        with pytest.raises(InputError, match="grid 1x1x1: no dimension 'W'; there are X, Y, Z"):
            ddl.all_reduce(values, axes="XW")
    with pytest.raises(InputError, match=r"call ddl.init\(\) first"):
        ddl.rank()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ma.masked_array([1.0, 2.0], [False, True]), "a masked array: its mask would be ignored"),
        (np.ones(3, ">f4"), "another machine's byte order; cast to float32"),
        (np.array([None]), "ndarray of Python objects"),
        (np.float64(3), "float64 is a number, which nothing can be written to; pass an array"),
    ],
)
def test_arrays_that_would_be_reduced_wrongly_are_refused(x: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        flatten(x)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_is_modified_in_place() -> None:
    matrix = np.asmatrix(np.ones((2, 3)))
    flatten(matrix).elements[:] = 2
    assert np.asarray(matrix).tolist() == [[2] * 3] * 2


@pytest.mark.extra
def test_torch_tensors_are_modified_in_place() -> None:
    needs.package("torch", "torch==2.13.0")
    import torch  # noqa: PLC0415 - it need not be installed

    for dtype in ("float32", "float64", "float16", "bfloat16", "int64"):
        tensor = torch.arange(12, dtype=getattr(torch, dtype)).reshape(3, 4)
        array = flatten(tensor)
        assert (array.dtype, array.shape) == (dtype, (3, 4))
        find_reduce_op(dtype, "sum").combine(array.elements, flatten(tensor.clone()).elements, 1)
        assert torch.equal(tensor, 2 * torch.arange(12, dtype=getattr(torch, dtype)).reshape(3, 4))
    tensor = torch.ones(3, requires_grad=True)
    with ddl.init(""):
        result = ddl.all_reduce(tensor, "avg")
        assert torch.equal(result, tensor)
        assert isinstance(result, torch.Tensor)
        assert type(ddl.reduce_scatter(torch.ones(4, dtype=torch.bfloat16))) is torch.Tensor


def test_dlpack_arrays_are_modified_in_place() -> None:
    class Other:
        """An array of any library, which has nothing but DLPack."""

        def __init__(self, memory: Any) -> None:
            self.memory = memory

        def __dlpack__(self, **options: Any) -> Any:
            return self.memory.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.memory.__dlpack_device__()

    memory = np.zeros(3)
    flatten(Other(memory)).elements[:] = 1
    assert memory.tolist() == [1, 1, 1]
    assert copy_of([1.5, 2]).tolist() == [1.5, 2]
