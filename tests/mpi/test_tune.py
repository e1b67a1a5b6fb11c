"""ddlrun network tune: its candidates, its search, and its profile in a launch."""

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, MIB
from ddlrun.network.candidates import BUCKETS, Candidate, TuningSpace, default_candidate
from ddlrun.network.fabric import parse_fabric
from ddlrun.network.fusion_search import FusionSetting, search_fusion
from ddlrun.plan.tuning_profile import parse_profiles
from ddlrun.topology import parse_topology

if TYPE_CHECKING:
    from ddlrun.measure.tuning import TuningSearch

ROOT = Path(__file__).parents[2]
DDLRUN = [sys.executable, "-m", "ddlrun"]
LAB = "host: {bandwidth: 5 Gbit/s}\nnic: {bandwidth: 200 Mbit/s, latency: 30 us}\nuplink: {bandwidth: 100 Mbit/s}\n"


def space(topology: str, gradient: int = 16 * MIB) -> TuningSpace:
    shape = parse_topology(topology)
    return TuningSpace(shape, shape, parse_fabric(LAB, "lab"), gradient)


def test_equal_candidates_are_tried_once() -> None:
    assert list(map(str, space("2x2x2").shapes())) == ["2x2x2", "2x4x1"]  # 2x1x4 equals 2x4x1
    assert list(map(str, space("2x1x4").shapes())) == ["2x1x4", "2x2x2"]  # under the job's own name
    modes = {(str(candidate.topology), candidate.mode) for candidate in space("2x2x2").all_candidates()}
    # Two learners exchange halves in every mode; with four, p sends directly.
    assert modes == {("2x2x2", "p"), ("2x2x2", "m"), *(("2x4x1", mode) for mode in "pbcm")}
    buckets = {candidate.bucket for candidate in space("2x2x2", 3 * MIB).all_candidates()}
    assert buckets == {1 * MIB, 4 * MIB}
    assert len(set(space("2x2x2").all_candidates())) == len(space("2x2x2").all_candidates())


def test_candidates_are_tried_in_the_order_of_the_model() -> None:
    job = space("4x4x4")
    first = job.first()
    expected = [job.predict(candidate) for candidate in first]
    assert expected == sorted(expected)
    largest = [candidate for candidate in job.all_candidates() if candidate.bucket == BUCKETS[0]]
    assert expected[0] == min(map(job.predict, largest))
    assert str(first[0].topology) == "4x4x4"  # the shape of the racks
    near = list(job.near(first[0], "bucket"))
    assert {candidate.bucket for candidate in near} == {*BUCKETS[:3]} - {first[0].bucket}
    assert all(replace(candidate, bucket=first[0].bucket) == first[0] for candidate in near)


class SimulatedTimer:
    """Returns the model's seconds times factors that the model does not know: one per value of each setting.

    The first measurement of the default takes `disturbance` times as long.
    """

    def __init__(self, job: TuningSpace, default: Candidate, disturbance: float = 1.0) -> None:
        self.job, self.default, self.disturbance = job, default, disturbance
        self.noise = random.Random(str(job.topology))  # noqa: S311 - a test's
        self.factors: list[dict[object, float]] = [{} for _ in fields(default)]
        self.forgotten: set[Candidate] = set()

    def undisturbed(self, candidate: Candidate) -> float:
        factors = (
            by_value.setdefault(value, self.noise.uniform(1, 1.3))
            for value, by_value in zip(astuple(candidate), self.factors, strict=True)
        )
        return self.job.predict(candidate) * math.prod(factors)

    def __call__(self, candidate: Candidate) -> float:
        assert candidate not in self.forgotten
        disturbance = 1.0
        if candidate == self.default:
            disturbance, self.disturbance = self.disturbance, 1.0
        return self.undisturbed(candidate) * disturbance

    def forget(self, candidate: Candidate) -> None:
        self.forgotten.add(candidate)


def search(timer: SimulatedTimer, budget: float) -> "TuningSearch":
    from mpi4py import MPI  # noqa: PLC0415 - MPI starts here

    from ddlrun.measure.tuning import TuningSearch  # noqa: PLC0415

    return TuningSearch(MPI.COMM_SELF, timer, budget, lambda *_: None)


SHAPES = pytest.mark.parametrize("topology", ["2x2x2", "4x8x2", "8x1x1", "1x6x3"])


@SHAPES
def test_search_comes_close_to_the_best_with_few_measurements(topology: str) -> None:
    job = space(topology)
    default = default_candidate(job.topology, BETWEEN_HOSTS)
    timer = SimulatedTimer(job, default)
    best = min(map(timer.undisturbed, [default, *job.all_candidates()]))
    result = search(timer, 100_000).run(default, job)
    assert result.complete
    assert timer.undisturbed(result.best) <= 1.05 * best
    assert len(result.samples) < len(job.all_candidates()) / 2 + 20


@SHAPES
def test_exhaustive_search_measures_every_candidate(topology: str) -> None:
    job = space(topology)
    default = default_candidate(job.topology, BETWEEN_HOSTS)
    timer = SimulatedTimer(job, default)
    best = min(map(timer.undisturbed, [default, *job.all_candidates()]))
    result = search(timer, 1e-9).run_all(default, job)
    assert timer.undisturbed(result.best) <= 1.02 * best
    assert {default, *job.all_candidates()} == {*result.samples}


@SHAPES
def test_search_without_time_keeps_the_default(topology: str) -> None:
    job = space(topology)
    default = default_candidate(job.topology, BETWEEN_HOSTS)
    result = search(SimulatedTimer(job, default), 1e-9).run(default, job)
    assert not result.complete
    assert result.best == default


@SHAPES
def test_one_disturbed_measurement_does_not_decide(topology: str) -> None:
    job = space(topology)
    default = default_candidate(job.topology, BETWEEN_HOSTS)
    timer = SimulatedTimer(job, default, disturbance=1.4)
    result = search(timer, 100_000).run(default, job)
    assert len(result.samples[default]) > 3
    assert timer.undisturbed(result.best) <= timer.undisturbed(default)


def test_search_for_horovod_finds_the_best_setting_and_keeps_to_its_time() -> None:
    milliseconds = {None: 9.0, 16 * MIB: 6.0, 4 * MIB: 5.0, 1 * MIB: 7.0}
    asked: list[FusionSetting] = []

    def measure(setting: FusionSetting) -> float:
        asked.append(setting)
        return milliseconds[setting.fusion] * (2 if setting.cycle == 10 else 1) - (setting.cycle == 3.5)

    result = search_fusion(measure, 10 * MIB, lambda: True)
    variables = {"HOROVOD_FUSION_THRESHOLD": str(4 * MIB), "HOROVOD_CYCLE_TIME": "3.5"}
    assert result["best"] == {"variables": variables, "seconds": 4.0}
    assert (result["default_seconds"], result["complete"], len(result["measured"])) == (9.0, True, 7)
    assert asked[-2:] == [FusionSetting(), FusionSetting(4 * MIB, 3.5)]
    asked.clear()
    result = search_fusion(measure, 10 * MIB, lambda: len(asked) < 2)
    assert [row["seconds"] for row in result["measured"]] == [6.0, 9.0]
    assert not result["complete"]


def tune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "XDG_STATE_HOME": str(folder), "OMPI_MCA_mpi_yield_when_idle": "1"}
    argv = [*DDLRUN, "network", "tune", "--allow-run-as-root", *words]
    return subprocess.run(argv, cwd=ROOT, env=environ, timeout=300, capture_output=True, text=True, check=False)


@pytest.mark.openmpi(4)
def test_launch_uses_the_profile_that_tune_saved(mpirun: str, major: int, tmp_path: Path) -> None:
    words = ["--topology", "2", "--gradient", "1MiB", "--budget", "6s", "--no-horovod", "--mpirun", mpirun]
    done = tune(tmp_path, "localhost", *words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rows, best, usual = result["measured"], result["best"], result["default_seconds"]
    assert {row["topology"] for row in rows} == {"2x1x1"}
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    seconds = {(row["mode"], row["tuning"]): row["seconds"] for row in rows}
    assert seconds["p", "bucket=4M"] == usual  # a launch without a profile
    assert seconds[best["mode"], best["tuning"]] == best["seconds"]
    if (best["mode"], best["tuning"]) != ("p", "bucket=4M"):
        assert best["seconds"] < 0.98 * usual
    (profile,) = parse_profiles(Path(result["profile"]).read_text(), "profile")
    assert (profile.hosts, profile.major, profile.mode) == ((os.uname().nodename,), major, best["mode"])
    program = ["printenv", "DDL_OPTIONS", "DDLRUN_DDL_TUNING"]
    argv = [*DDLRUN, "launch", "--allow-run-as-root", "-H", "localhost", "--topology", "2", "--mpirun", mpirun]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    ran = subprocess.run([*argv, "--ranks", "0", "--output", "no-tag", *program], env=environ, timeout=300,
                         capture_output=True, text=True, check=False)  # fmt: skip
    assert ran.stdout.split("\n")[:2] == [f"-mode {profile.mode}:2x1x1", profile.tuning]
    assert f"gives 2x1x1, mode {profile.mode}, {profile.tuning}; disable it with --profile none" in ran.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--gradient", "1MiB", "--model", "bert-base"], "leave one of them out"),
        (["--compute", "1s"], "--compute and --overlap go together"),
        (["--budget", "soon"], "--budget: 'soon' is not a time"),
        (["--budget", "5s"], "--budget 5s: too short to measure anything; give 6s or more"),
        (["--save", "nowhere/x"], "--save nowhere/x: there is no folder nowhere"),
        (["--topology", "2", "--gradient", "9000TB"], "of gradients on a host of"),
        (["--links", "nowhere.yaml"], "links nowhere.yaml: No such file or directory"),
        (["--topology", "1"], "a single rank has no partner; name hosts, or give --ranks-per-host core"),
    ],
)
def test_an_error_of_tune_is_one_line(words: list[str], problem: str, tmp_path: Path) -> None:
    done = tune(tmp_path, "localhost", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
