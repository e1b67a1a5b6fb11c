"""float32 sent in 16 bits: conversions, settings, and jobs under both versions of Open MPI."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS
from ddlrun.ddl.bootstrap import start_learner
from ddlrun.ddl.group.flat import FlatArray
from ddlrun.ddl.group.settings import parse_tuning
from ddlrun.ddl.selection.int8_compression import MOST_ARRAYS, ErrorFeedback, Int8Converter
from ddlrun.ddl.selection.wire_compression import BLOCK, FORMATS, GROUP, Converter, WireFormat, parse_wire
from ddlrun.errors import InputError
from tests.ddl.test_mpi import started
from tests.support import needs

pytestmark = pytest.mark.openmpi(5)

RANKS = Path(__file__).with_name("wire_ranks.py")
# All bit patterns: NaN with any payload, values between two neighbours, the largest and the smallest.
BITS = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 2**17 - 1).map(lambda high: high << 15), max_size=70)
TIES = [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F7F8000, 0x7F800001, 0xFFFFFFFF, 0x80000001, 0x00008000]


def of(bits: list[int]) -> Any:
    return np.array(bits, np.uint32).view(np.float32)


def packed(values: Any, dtype: str, *, settled: bool = False) -> Any:
    target = np.empty(len(values), Converter(dtype).memory)
    Converter(dtype).pack(values, target, settled=settled)
    return target


def unpacked(part: Any, dtype: str) -> Any:
    target = np.empty(len(part), np.float32)
    Converter(dtype).unpack(part, target)
    return target


@pytest.fixture(scope="module")
def torch() -> Any:
    needs.package("torch", "torch==2.13.0")
    return importlib.import_module("torch")


@pytest.mark.extra
@pytest.mark.parametrize("dtype", FORMATS)
@given(bits=BITS)
@example(bits=TIES)
@example(bits=[0x3F800000 + step for step in range(0, 1 << 18, 127)])
def test_rounding_is_torchs_own(torch: Any, dtype: str, bits: list[int]) -> None:
    values = of(bits)
    theirs = torch.from_numpy(values.copy()).to(getattr(torch, dtype)).float().numpy()
    result = unpacked(packed(values, dtype), dtype)
    assert np.array_equal(result, theirs, equal_nan=True)
    numbers = ~np.isnan(values)
    assert np.array_equal(np.signbit(result[numbers]), np.signbit(theirs[numbers]))


@pytest.mark.parametrize("dtype", FORMATS)
@given(bits=BITS)
@example(bits=TIES)
def test_settled_values_are_sent_unchanged(dtype: str, bits: list[int]) -> None:
    values = of(bits)
    Converter(dtype).settle(values)
    for settled in (True, False):
        again = unpacked(packed(values, dtype, settled=settled), dtype)
        assert again.tobytes() == values.tobytes()


@pytest.mark.parametrize("count", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_result_does_not_depend_on_blocks(dtype: str, count: int) -> None:
    values = np.random.default_rng(count).normal(size=count).astype(np.float32)
    values[[0, BLOCK - 2, -1]] = np.nan, np.inf, -np.nan
    small = np.concatenate([packed(part, dtype) for part in np.array_split(values, 101)])
    assert np.array_equal(small, packed(values, dtype), equal_nan=dtype == "float16")
    sums = np.ones(count, np.float32)
    Converter(dtype).combine(small, sums, _add, 2)
    assert np.array_equal(sums, (1 + unpacked(small, dtype)) / np.float32(2), equal_nan=True)


@pytest.mark.parametrize("count", [1, 255, 256, 257, BLOCK - 1, BLOCK + 3])
def test_int8_keeps_what_it_has_rounded(count: int) -> None:
    random = np.random.default_rng(count)
    values = (random.normal(size=count) * 10.0 ** random.integers(-44, 38, count)).astype(np.float32)
    once = values.copy()
    Int8Converter().settle(once)
    again = once.copy()
    Int8Converter().settle(again)
    assert again.tobytes() == once.tobytes()
    largest = [np.abs(values[low : low + GROUP]).max() for low in range(0, count, GROUP)]
    assert (np.abs(once - values) <= np.repeat(largest, GROUP)[:count] / 64 + 2.0**-126).all()


def test_losses_are_kept_per_array(capsys: pytest.CaptureFixture[str]) -> None:
    feedback, first, second = ErrorFeedback(), np.zeros(5, np.float32), np.zeros(5, np.float32)
    for array, loss in ((first, 1), (second, 2)):
        feedback.add_to(array, [FlatArray(array, "float32", (5,))], "")[:] = loss
    for array in (first, second, first):
        losses = feedback.add_to(array, [FlatArray(array, "float32", (5,))], "")
        assert not losses.any()
    assert (first == 1).all()
    assert (second == 2).all()
    assert not capsys.readouterr().err
    for _ in range(MOST_ARRAYS):
        array = np.zeros(5, np.float32)
        feedback.add_to(array, [FlatArray(array, "float32", (5,))], "")
    assert capsys.readouterr().err.count("reduce the same arrays in each step") == 1


def _add(mine: Any, theirs: Any, divisor: int) -> None:
    mine += theirs
    mine /= divisor


def test_settings_are_parsed() -> None:
    assert parse_wire("bfloat16") == WireFormat("bfloat16")
    assert parse_wire("float16:XY") == WireFormat("float16", "XY")
    assert parse_wire("") == parse_wire("float32") == WireFormat()
    assert parse_tuning("chunk=1K, wire=bfloat16:Z", BETWEEN_HOSTS).wire == "bfloat16:Z"
    with pytest.raises(
        InputError, match="DDLRUN_DDL_TUNING: wire 'int4': float32 travels as float16, bfloat16, int8 or"
    ):
        parse_tuning("wire=int4", BETWEEN_HOSTS)


@pytest.mark.parametrize(
    ("options", "tuning", "message"),
    [
        ("-mode m:1x1x1", "wire=bfloat16", "wire 'bfloat16': not supported by mode m, MPI's own collectives"),
        ("-mode r:1x1x1", "wire=bfloat16:A", "wire 'bfloat16:A': no dimension 'A'; there are X, Y, Z"),
    ],
)
def test_an_impossible_wire_is_an_error_at_the_start(options: str, tuning: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        start_learner(options, None, tuning, {})


@pytest.mark.parametrize("shapes", ["1x2x3", pytest.param("1x2x3 3x2x2", marks=pytest.mark.extra)])
def test_every_mode_operation_size_and_shape(mpirun: str, shapes: str) -> None:
    """Some shapes, under one version of Open MPI: only the transport differs under the other."""
    done = started(mpirun, 6 if shapes == "1x2x3" else 12, str(RANKS), *shapes.split())
    assert (done.returncode, done.stdout.strip()[-7:]) == (0, "0 wrong"), done.stdout + done.stderr


TORCH = """
import torch
from ddlrun import ddl
from ddlrun.ddl.torch import Averaging, DistributedOptimizer
ddl.init("-mode r", tuning="flat=0,wire=bfloat16:X")
third = torch.full((100,), 1 / 3)
rounded, right = third.bfloat16().float(), []
for wire, expected in {None: rounded, "bfloat16:X": rounded, "float32": third}.items():
    p = torch.nn.Parameter(torch.zeros(100))
    optimizer = DistributedOptimizer(torch.optim.SGD([p], lr=1.0), wire=wire)
    (p * third).sum().backward()
    optimizer.step()
    sent, averaging = third.clone(), Averaging(wire=wire)
    averaging.add(sent)
    averaging.finish()
    right += [torch.equal(-p.detach(), expected), torch.equal(sent, expected)]
total = ddl.allgather(torch.tensor(right))
ddl.rank() or print(total.tolist())
"""


@pytest.mark.extra
@pytest.mark.parametrize("major", [4], indirect=True)
def test_the_wire_of_torchs_optimizer_and_hook(mpirun: str) -> None:
    needs.package("torch", "torch==2.13.0")
    done = started(mpirun, 2, "-c", TORCH)
    assert (done.returncode, done.stdout) == (0, f"{[[True] * 6] * 2}\n"), done.stdout + done.stderr
