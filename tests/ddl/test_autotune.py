"""Mode p: the search, its cost, and the cache of results."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.allreduce_algorithms import (
    BETWEEN_HOSTS,
    CONNECTIONS,
    AlgorithmSpace,
    AllreduceAlgorithm,
    MessageClass,
    default_algorithm,
    first_candidates,
    neighbours,
)
from ddlrun.ddl.selection.autotune import BETTER, PATIENCE, AutotuneCache, cache_path, read_file, search, size_class
from tests.ddl.test_mpi import started

KEY = {"hosts": ["a", "b"], "topology": "2x2x1", "order": "ddl", "mpi": "Open MPI v4.1.4"}


def space(size: int, learners: tuple[int, ...] = (4, 2, 3), *, blocking: bool = True) -> AlgorithmSpace:
    default, chunked = (
        default_algorithm("p", BETWEEN_HOSTS, learners, MessageClass(size, "float32", whole=True, blocking=waits))
        for waits in (blocking, False)
    )
    return AlgorithmSpace(default=default, chunked=chunked, learners=learners, size=size, blocking=blocking)


sizes = st.integers(1, 2**26)
seconds = st.floats(1e-6, 1e-2)


@given(size=sizes, blocking=st.booleans(), budget=st.integers(1, 60), data=st.data())
def test_the_search_keeps_its_budget_and_finds_the_fastest(
    *, size: int, blocking: bool, budget: int, data: st.DataObject
) -> None:
    candidates, costs = space(size, blocking=blocking), dict[AllreduceAlgorithm, float]()
    runs = list[AllreduceAlgorithm]()

    def measure(algorithm: AllreduceAlgorithm) -> float:
        runs.append(algorithm)
        return costs.setdefault(algorithm, data.draw(seconds))

    result = search(candidates, measure, budget)
    assert len(runs) == result.runs <= 3 * budget
    if result.algorithm != candidates.default:
        assert BETTER * costs[candidates.default] >= costs[result.algorithm]
    assert BETTER * costs.get(result.algorithm, 1) <= min((costs[algorithm] for algorithm in runs[1:]), default=1)
    if not blocking:
        assert {algorithm.method for algorithm in runs} == {"chunks"}


@given(size=sizes, blocking=st.booleans())
def test_each_candidate_appears_once(*, size: int, blocking: bool) -> None:
    candidates = space(size, blocking=blocking)
    algorithms = list(first_candidates(candidates))
    assert len({*algorithms}) >= len(algorithms) - 1  # the default comes first, and again among the chunk sizes
    for algorithm in algorithms:
        others = list(neighbours(algorithm, candidates))
        assert len({*others, algorithm}) == len(others) + 1
        if algorithm.method != "chunks":
            assert others == []


def test_several_connections_are_used_where_they_are_faster() -> None:
    candidates = space(2**24, blocking=False)._replace(connections=CONNECTIONS)
    for several, expected in ((0.3, 4), (0.7, 1), (1.0, 1)):
        seconds_by_number = {1: 0.7, 4: several}

        def measure(algorithm: AllreduceAlgorithm, seconds: dict[int, float] = seconds_by_number) -> float:
            return seconds[algorithm.connections]

        assert search(candidates, measure, 40).algorithm.connections == expected


def test_one_disturbed_run_does_not_drop_a_short_algorithm() -> None:
    """The first run of the fastest algorithm takes a hundred times as long, as beside another process."""
    candidates, runs = space(2**20), list[AllreduceAlgorithm]()

    def measure(algorithm: AllreduceAlgorithm) -> float:
        runs.append(algorithm)
        if algorithm.method != "flat":
            return 8e-5
        return 4e-3 if runs.count(algorithm) == 1 else 4e-5

    assert search(candidates, measure, 40).algorithm.method == "flat"


def test_the_search_ends_early_on_a_slow_network() -> None:
    runs = list[AllreduceAlgorithm]()

    def measure(algorithm: AllreduceAlgorithm) -> float:
        runs.append(algorithm)
        return 4.0

    result = search(space(2**26), measure, 40)
    assert len(runs) <= PATIENCE / 4 + 1
    assert result.algorithm == space(2**26).default


def test_noise_does_not_replace_the_default() -> None:
    """An algorithm that is 1 % faster in a few runs does not replace the default."""
    candidates = space(2**24)
    result = search(candidates, lambda algorithm: 0.1 if algorithm == candidates.default else 0.099, 40)
    assert result.algorithm == candidates.default


@given(sizes)
def test_size_classes_are_powers_of_two(size: int) -> None:
    upper = size_class(size)
    assert upper & (upper - 1) == 0
    assert upper >= min(size, 2**26)
    if upper > 8192:
        assert upper < 2 * size


def test_two_jobs_keep_each_others_results(tmp_path: Path) -> None:
    path = str(tmp_path / "explored" / "k.json")
    first, second = AutotuneCache(path, KEY, ""), AutotuneCache(path, KEY, "")
    assert first.put("a", AllreduceAlgorithm("flat"), write=True)
    assert second.put("b", AllreduceAlgorithm("native"), write=True)
    assert not AutotuneCache(None, KEY, "").put("a", AllreduceAlgorithm("flat"), write=True)
    assert not AutotuneCache("/proc/nowhere/k.json", KEY, "").put("a", AllreduceAlgorithm("flat"), write=True)
    again = AutotuneCache(path, KEY, read_file(path))
    assert (again.get("a"), again.get("b")) == (AllreduceAlgorithm("flat"), AllreduceAlgorithm("native"))


def test_a_cache_is_of_one_cluster(tmp_path: Path) -> None:
    path = cache_path({"XDG_STATE_HOME": str(tmp_path)}, KEY)
    assert path is not None
    algorithms = {
        "float32 65536 all_reduce": AllreduceAlgorithm("flat"),
        "float16 131072 start": AllreduceAlgorithm("chunks", ("ring",) * 3, 4096, 8),
    }
    cache = AutotuneCache(path, KEY, "")
    for case, algorithm in algorithms.items():
        cache.put(case, algorithm, write=True)
    again = AutotuneCache(path, KEY, read_file(path))
    assert {case: again.get(case) for case in algorithms} == algorithms
    assert AutotuneCache(path, {**KEY, "topology": "4x1x1"}, read_file(path)).get("float32 65536 all_reduce") is None
    assert cache_path({"XDG_STATE_HOME": str(tmp_path)}, {**KEY, "topology": "4x1x1"}) != path
    assert cache_path({}, KEY) is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "7", json.dumps({**KEY, "algorithms": {"c": 3}}),
     json.dumps({**KEY, "algorithms": {"c": ["chunks", ["x"], 1, 1]}}),
     json.dumps({**KEY, "algorithms": {"c": ["chunks", ["ring"] * 3, 0, 8]}}),
     json.dumps({**KEY, "algorithms": {"c": ["chunks", ["ring"], 1, 8]}}), "[" * 100_000,
     json.dumps({**KEY, "algorithms": {"c": ["chunks", ["ring"] * 3, float("inf"), 8]}})],
)  # fmt: skip
def test_a_damaged_file_is_explored_anew(text: str, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.openmpi(5)
def test_the_second_job_does_not_explore(mpirun: str, tmp_path: Path) -> None:
    first, second = (started(mpirun, 3, "-c", PROGRAM, XDG_STATE_HOME=str(tmp_path)) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stderr.count("ddlrun.ddl: explored float32 524288 all_reduce: ") == 1
    assert first.stderr.count("ddlrun.ddl: explored float32 524288 start: ") == 1
    assert "explored" not in second.stderr
    [path] = tmp_path.glob("ddlrun/explored/*.json")
    content = json.loads(path.read_text())
    assert (content["topology"], content["hosts"]) == ("3x1x1", [os.uname().nodename])
    assert sorted(content["algorithms"]) == ["float32 524288 all_reduce", "float32 524288 start"]


@pytest.mark.openmpi(4)
def test_a_home_that_cannot_be_written_loses_only_the_cache(mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = started(mpirun, 3, "-c", PROGRAM, XDG_STATE_HOME=str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr
