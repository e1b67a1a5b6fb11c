"""Mode p: what it finds, what that costs, what it remembers."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.allreduce_algorithms import (
    BETWEEN_HOSTS,
    AlgorithmSpace,
    AllreduceAlgorithm,
    MessageClass,
    default_algorithm,
    first_candidates,
    neighbours,
)
from ddlrun.ddl.autotune import BETTER, PATIENCE, AutotuneCache, cache_path, read_file, search, size_class
from tests.ddl.test_mpi import started

KEY = {"hosts": ["a", "b"], "topology": "2x2x1", "order": "ddl", "mpi": "Open MPI v4.1.4"}


def space(size: int, learners: tuple[int, ...] = (4, 2, 3), *, blocking: bool = True) -> AlgorithmSpace:
    usual, chunks = (
        default_algorithm("p", BETWEEN_HOSTS, learners, MessageClass(size, "float32", whole=True, blocking=waits))
        for waits in (blocking, False)
    )
    return AlgorithmSpace(usual, chunks, learners, size, blocking)


sizes = st.integers(1, 2**26)
seconds = st.floats(1e-6, 1e-2)


@given(size=sizes, blocking=st.booleans(), most=st.integers(1, 60), data=st.data())
def test_it_spends_no_more_than_it_may_and_finds_the_best_that_it_saw(
    *, size: int, blocking: bool, most: int, data: st.DataObject
) -> None:
    there, costs, runs = space(size, blocking=blocking), dict[AllreduceAlgorithm, float](), list[AllreduceAlgorithm]()

    def measure(way: AllreduceAlgorithm) -> float:
        runs.append(way)
        return costs.setdefault(way, data.draw(seconds))

    found = search(there, measure, most)
    assert len(runs) == found.runs <= 3 * most
    assert found.algorithm == there.default or BETTER * costs[there.default] >= costs[found.algorithm]
    assert BETTER * costs.get(found.algorithm, 1) <= min((costs[way] for way in runs[1:]), default=1)
    assert blocking or {way.method for way in runs} == {"chunks"}


@given(size=sizes, blocking=st.booleans())
def test_each_way_is_tried_and_stands_once(*, size: int, blocking: bool) -> None:
    there = space(size, blocking=blocking)
    ways = list(first_candidates(there))
    assert len({*ways}) >= len(ways) - 1  # the usual one comes first, and again among its like
    for way in ways:
        others = list(neighbours(way, there))
        assert len({*others, way}) == len(others) + 1
        assert not others or way.method == "chunks"


def test_one_disturbed_run_does_not_drop_a_short_way() -> None:
    """The best way meets somebody else's process in its first run, and takes a hundred times as long."""
    there, runs = space(2**20), list[AllreduceAlgorithm]()

    def measure(way: AllreduceAlgorithm) -> float:
        runs.append(way)
        return (100 if way.method == "flat" and runs.count(way) == 1 else 1) * (4e-5 if way.method == "flat" else 8e-5)

    assert search(there, measure, 40).algorithm.method == "flat"


def test_a_slow_network_is_not_kept_busy() -> None:
    runs = list[AllreduceAlgorithm]()

    def measure(way: AllreduceAlgorithm) -> float:
        runs.append(way)
        return 4.0

    found = search(space(2**26), measure, 40)
    assert len(runs) <= PATIENCE / 4 + 1
    assert found.algorithm == space(2**26).default


def test_noise_does_not_change_the_way() -> None:
    """What is 1 % faster in a few runs is not worth a change."""
    there = space(2**24)
    assert search(there, lambda way: 0.1 if way == there.default else 0.099, 40).algorithm == there.default


@given(sizes)
def test_size_classes_are_powers_of_two(size: int) -> None:
    found = size_class(size)
    assert found & (found - 1) == 0
    assert found >= min(size, 2**26)
    assert found < 2 * size or found == 8192


def test_two_jobs_keep_each_others_finds(tmp_path: Path) -> None:
    path = str(tmp_path / "explored" / "k.json")
    first, second = AutotuneCache(path, KEY, ""), AutotuneCache(path, KEY, "")
    assert first.put("a", AllreduceAlgorithm("flat"), write=True)
    assert second.put("b", AllreduceAlgorithm("native"), write=True)
    assert not AutotuneCache(None, KEY, "").put("a", AllreduceAlgorithm("flat"), write=True)
    assert not AutotuneCache("/proc/nowhere/k.json", KEY, "").put("a", AllreduceAlgorithm("flat"), write=True)
    again = AutotuneCache(path, KEY, read_file(path))
    assert (again.get("a"), again.get("b")) == (AllreduceAlgorithm("flat"), AllreduceAlgorithm("native"))


def test_memory_is_of_one_cluster(tmp_path: Path) -> None:
    path = cache_path({"XDG_STATE_HOME": str(tmp_path)}, KEY)
    assert path is not None
    ways = {
        "float32 65536 all_reduce": AllreduceAlgorithm("flat"),
        "float16 131072 start": AllreduceAlgorithm("chunks", ("ring",) * 3, 4096, 8),
    }
    memory = AutotuneCache(path, KEY, "")
    for case, way in ways.items():
        memory.put(case, way, write=True)
    again = AutotuneCache(path, KEY, read_file(path))
    assert {case: again.get(case) for case in ways} == ways
    assert AutotuneCache(path, {**KEY, "topology": "4x1x1"}, read_file(path)).get("float32 65536 all_reduce") is None
    assert cache_path({"XDG_STATE_HOME": str(tmp_path)}, {**KEY, "topology": "4x1x1"}) != path
    assert cache_path({}, KEY) is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "7", json.dumps({**KEY, "ways": {"c": 3}}), json.dumps({**KEY, "ways": {"c": ["chunks", ["x"], 1, 1]}}),
     json.dumps({**KEY, "ways": {"c": ["chunks", ["ring"] * 3, 0, 8]}}),
     json.dumps({**KEY, "ways": {"c": ["chunks", ["ring"], 1, 8]}}), "[" * 100_000,
     json.dumps({**KEY, "ways": {"c": ["chunks", ["ring"] * 3, float("inf"), 8]}})],
)  # fmt: skip
def test_what_cannot_be_read_is_explored_anew(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert AutotuneCache(None, KEY, text).get("c") is None
    assert "exploring anew" in capsys.readouterr().err


PROGRAM = """
import numpy as np
from ddlrun import ddl
ddl.init("-mode p:3x1x1 -dbg_level 1")
for count in (10, 2000, 100_000, 100_000):
    x = np.arange(count, dtype=np.float32) * (ddl.rank() + 1)
    for _ in range(2):
        assert (ddl.all_reduce(x) == 6 * np.arange(count)).all()
    ddl.start([x], "sum").wait()
    assert (x == 6 * np.arange(count)).all()
"""


def test_the_second_job_knows(mpirun: str, tmp_path: Path) -> None:
    first, second = (started(mpirun, 3, "-c", PROGRAM, XDG_STATE_HOME=str(tmp_path)) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stderr.count("ddlrun.ddl: explored float32 524288 all_reduce: ") == 1
    assert first.stderr.count("ddlrun.ddl: explored float32 524288 start: ") == 1
    assert "explored" not in second.stderr
    [path] = tmp_path.glob("ddlrun/explored/*.json")
    kept = json.loads(path.read_text())
    assert (kept["topology"], kept["hosts"]) == ("3x1x1", [os.uname().nodename])
    assert sorted(kept["ways"]) == ["float32 524288 all_reduce", "float32 524288 start"]


def test_a_home_that_cannot_be_written_costs_only_the_memory(mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = started(mpirun, 3, "-c", PROGRAM, XDG_STATE_HOME=str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr
