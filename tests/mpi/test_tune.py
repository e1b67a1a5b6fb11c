"""What tune tries and how it searches; the profiles that it keeps; what a launch makes of them."""

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, MIB
from ddlrun.cli.profile_store import profile_names
from ddlrun.errors import InputError
from ddlrun.network.candidates import BUCKETS, Candidate, TuningSpace, usual
from ddlrun.network.fabric import parse_fabric
from ddlrun.plan.tuning_profile import Profile, Profiles, file_name, kept, parse_profiles, render_profiles
from ddlrun.topology import Topology, parse_topology
from tests.conftest import MPIRUNS

ROOT = Path(__file__).parents[2]
DDLRUN = [sys.executable, "-m", "ddlrun"]
LAB = "host: {bandwidth: 5 Gbit/s}\nnic: {bandwidth: 200 Mbit/s, latency: 30 us}\nuplink: {bandwidth: 100 Mbit/s}\n"
PROFILE = Profile(
    ("h1", "h2"), Topology((2, 1, 2)), 5, "c", "chunk=256K,depth=4,bucket=16M",
    {"HOROVOD_FUSION_THRESHOLD": "16777216", "HOROVOD_CYCLE_TIME": "3.5"}, 100 * MIB, 1.0, 1.5, "2026-11-22",
)  # fmt: skip


def space(topology: str, gradient: int = 16 * MIB) -> TuningSpace:
    shape = parse_topology(topology)
    return TuningSpace(shape, shape, parse_fabric(LAB, "lab"), gradient)


def test_what_differs_in_name_alone_is_tried_once() -> None:
    assert list(map(str, space("2x2x2").shapes())) == ["2x2x2", "2x4x1"]  # 2x1x4 does what 2x4x1 does
    assert list(map(str, space("2x1x4").shapes())) == ["2x1x4", "2x2x2"]  # as the job calls it
    modes = {(str(one.topology), one.mode) for one in space("2x2x2").everything()}
    # Two learners exchange halves, whatever it is called; of four, p sends directly.
    assert modes == {("2x2x2", "p"), ("2x2x2", "m"), *(("2x4x1", mode) for mode in "pbcm")}
    assert {one.bucket for one in space("2x2x2", 3 * MIB).everything()} == {1 * MIB, 4 * MIB}
    assert len(set(space("2x2x2").everything())) == len(space("2x2x2").everything())


def test_plan_says_what_comes_first() -> None:
    job = space("4x4x4")
    first = job.first()
    expected = [job.expected(one) for one in first]
    assert expected == sorted(expected)
    assert expected[0] == min(job.expected(one) for one in job.everything() if one.bucket == BUCKETS[0])
    assert str(first[0].topology) == "4x4x4"  # the shape that keeps to the racks
    near = list(job.near(first[0], "bucket"))
    assert {one.bucket for one in near} == {*BUCKETS[:3]} - {first[0].bucket}
    assert all(one._replace(bucket=first[0].bucket) == first[0] for one in near)


@pytest.mark.parametrize("topology", ["2x2x2", "4x8x2", "8x1x1", "1x6x3"])
def test_search_finds_what_an_exhaustive_one_does(topology: str) -> None:
    """Seconds as the model has them, times what it knows nothing of: each size and algorithm has a cost of its own."""
    from mpi4py import MPI  # noqa: PLC0415 - MPI starts here

    from ddlrun.measure.tuning import TuningSearch  # noqa: PLC0415

    job = space(topology)
    plain = usual(job.topology, BETWEEN_HOSTS)

    class Pretended:
        """Measures, and knows no more of who has been forgotten."""

        def __init__(self, first_of_usual: float = 1.0) -> None:
            self.noise = random.Random(topology)  # noqa: S311 - a test's
            self.factors: list[dict[object, float]] = [{} for _ in plain]
            self.forgotten: set[Candidate] = set()
            self.first_of_usual = first_of_usual

        def true(self, one: Candidate) -> float:
            pairs = zip(one, self.factors, strict=True)
            return job.expected(one) * math.prod(seen.setdefault(v, self.noise.uniform(1, 1.3)) for v, seen in pairs)

        def __call__(self, one: Candidate) -> float:
            assert one not in self.forgotten
            disturbed, self.first_of_usual = (self.first_of_usual if one == plain else 1.0), 1.0
            return self.true(one) * disturbed

        def forget(self, one: Candidate) -> None:
            self.forgotten.add(one)

    lab = Pretended()
    best = min(map(lab.true, [plain, *job.everything()]))
    found = TuningSearch(MPI.COMM_SELF, lab, 100_000, lambda *_: None).run(plain, job)
    assert found.complete
    assert lab.true(found.best) <= 1.05 * best
    assert len(found.seen) < len(job.everything()) / 2 + 20
    lab.forgotten.clear()
    everything = TuningSearch(MPI.COMM_SELF, lab, 1e-9, lambda *_: None).run_all(plain, job)
    assert lab.true(everything.best) <= 1.02 * best
    assert {plain, *job.everything()} == {*everything.seen}
    lab.forgotten.clear()
    hurried = TuningSearch(MPI.COMM_SELF, lab, 1e-9, lambda *_: None).run(plain, job)
    assert not hurried.complete
    assert hurried.best == plain
    disturbed = Pretended(first_of_usual=1.4)  # once, by chance
    found = TuningSearch(MPI.COMM_SELF, disturbed, 100_000, lambda *_: None).run(plain, job)
    assert len(found.seen[plain]) > 3
    assert disturbed.true(found.best) <= disturbed.true(plain)


def test_profiles_are_read_as_they_were_written() -> None:
    other = PROFILE._replace(major=4, horovod={})
    assert parse_profiles(render_profiles([PROFILE, other]), "x") == (PROFILE, other)
    again = PROFILE._replace(topology=Topology((2, 2)), mode="r")
    assert kept((PROFILE, other), again) == (again, other)  # the same ranks, hosts and MPI
    assert file_name(["h1", "h2"]) != file_name(["h2", "h1"])


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"profiles": [{}]}', '{"profiles": 3}', "{" * 5000,
     render_profiles([PROFILE]).replace('"c"', '"q"'), render_profiles([PROFILE]).replace("2x1x2", "2xy"),
     render_profiles([PROFILE]).replace("HOROVOD_CYCLE_TIME", "LD_PRELOAD"), render_profiles([PROFILE])[:-20]],
)  # fmt: skip
def test_what_is_no_profile_is_said_in_a_line(text: str) -> None:
    with pytest.raises(InputError, match="where") as error:
        parse_profiles(text, "where")
    assert len(error.value.problems) == 1


def test_a_profile_fits_as_many_ranks_and_hosts_and_one_mpi() -> None:
    known = Profiles((PROFILE,))
    fits = Topology((2, 2))  # as many ranks a host and hosts; tune chose Y and Z
    assert known.fitting(fits, 5) == PROFILE
    assert known.fitting(fits, 4) is None
    assert known.fitting(fits, None) == PROFILE
    assert known.fitting(Topology((4, 2)), 5) is None
    named = known._replace(named="lab.json")
    assert named.fitting(fits, 4) == PROFILE
    with pytest.raises(InputError, match=r"--profile lab.json: it is for 2x1x2, the job is 4x2x1; tune anew"):
        named.fitting(Topology((4, 2)), 5)


Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Plan a job on h1 and h2; profiles are kept below tmp_path."""
    folder = tmp_path / "ddlrun/profiles"
    folder.mkdir(parents=True)
    (folder / file_name(PROFILE.hosts)).write_text(render_profiles([PROFILE]))

    def ask(*words: str, hosts: str = "h1,h2", **variables: str) -> dict[str, Any]:
        argv = [*DDLRUN, "launch", "-H", hosts, "--accelerators", "2", "--machine", "dgx1", "--dry-run", "--json"]
        argv += ["--mpirun", MPIRUNS[5], *words, "true"]
        environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), **variables}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    return ask


def settings_of(found: dict[str, Any]) -> dict[str, str]:
    names = ("DDL_OPTIONS", "DDLRUN_DDL_TUNING", *PROFILE.horovod)
    return {name: found["variables"][name] for name in names if name in found["variables"]}


ALL = {"DDL_OPTIONS": "-mode c:2x1x2", "DDLRUN_DDL_TUNING": PROFILE.tuning, **PROFILE.horovod}
NONE = {"DDL_OPTIONS": "-mode p:2x2x1"}


def test_launch_takes_the_profile_of_its_hosts_and_says_so(plan: Plan) -> None:
    found = plan()
    assert settings_of(found) == ALL
    assert found["topology"] == "2x1x2"
    said = [note for note in found["notes"] if "profile" in note]
    assert said == [
        (
            "the profile of 2026-11-22 for gradients of 105 MB gives 2x1x2, mode c, HOROVOD_FUSION_THRESHOLD=16777216, "
            "HOROVOD_CYCLE_TIME=3.5, chunk=256K,depth=4,bucket=16M; --profile none to do without"
        )
    ]
    assert found["reasons"]["topology"].endswith(", instead of 2x2x1")
    assert settings_of(plan("--profile", "none")) == NONE
    assert settings_of(plan(hosts="h1,h3")) == NONE
    assert settings_of(plan(hosts="h2,h1")) == NONE


def test_what_the_user_says_comes_before_the_profile(plan: Plan) -> None:
    found = plan("--racks", "1")
    assert settings_of(found) == NONE
    words = "the profile of 2026-11-22 for gradients of 105 MB is left out: it is for 2x1x2, the job is 2x2x1"
    assert words in found["notes"]
    assert settings_of(plan("--topology", "2x1x2")) == ALL
    assert settings_of(plan("--mode", "r")) == {"DDL_OPTIONS": "-mode r:2x1x2", **PROFILE.horovod}
    assert settings_of(plan("--mode", "c")) == ALL
    own = plan("--cycle-time-ms", "7", "--env", "DDLRUN_DDL_TUNING=chunk=1M")
    assert settings_of(own) == ALL | {"HOROVOD_CYCLE_TIME": "7.0", "DDLRUN_DDL_TUNING": "chunk=1M"}
    autotuned = plan("--autotune")
    assert settings_of(autotuned).keys() == {"DDL_OPTIONS", "DDLRUN_DDL_TUNING"}
    assert not any("CYCLE_TIME" in note for note in autotuned["notes"])
    assert settings_of(plan("--no-autotune")) == ALL
    assert settings_of(plan(DDL_OPTIONS="-mode b:2x2x1")) == {}  # no shape but this one
    assert settings_of(plan("--topology", "2x1x2", DDL_OPTIONS="-mode b:2x1x2")) == PROFILE.horovod


def test_localhost_is_this_machine_whatever_it_is_called() -> None:
    own = os.uname().nodename
    assert profile_names(["localhost", "h1"]) == profile_names([own, "h1"]) == (own, "h1")


def test_a_named_profile_and_one_that_is_damaged(plan: Plan, tmp_path: Path) -> None:
    named = tmp_path / "lab.json"
    named.write_text(render_profiles([PROFILE]))
    assert settings_of(plan("--profile", str(named), hosts="a,b")) == ALL
    (tmp_path / "ddlrun/profiles" / file_name(PROFILE.hosts)).write_text("{")
    found = plan()
    assert settings_of(found) == NONE
    assert any("it is no profile" in note and note.endswith("going on without it") for note in found["notes"])


def tune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "XDG_STATE_HOME": str(folder), "OMPI_MCA_mpi_yield_when_idle": "1"}
    argv = [*DDLRUN, "tune", "--allow-run-as-root", *words]
    return subprocess.run(argv, cwd=ROOT, env=environ, timeout=150, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_tune_of_this_host_is_taken_up_by_launch(mpirun: str, major: int, tmp_path: Path) -> None:
    words = ["--topology", "2", "--gradient", "1MiB", "--budget", "6s", "--no-horovod", "--mpirun", mpirun]
    done = tune(tmp_path, "localhost", *words, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {row["topology"] for row in found["measured"]} == {"2x1x1"}
    assert found["measured"][0]["seconds"] <= found["usual"]
    (profile,) = parse_profiles(Path(found["profile"]).read_text(), "profile")
    assert (profile.hosts, profile.major, profile.mode) == ((os.uname().nodename,), major, found["best"]["mode"])
    program = ["printenv", "DDL_OPTIONS", "DDLRUN_DDL_TUNING"]
    argv = [*DDLRUN, "launch", "--allow-run-as-root", "-H", "localhost", "--topology", "2", "--mpirun", mpirun]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    ran = subprocess.run([*argv, "--ranks", "0", "--no-tag-output", *program], env=environ, timeout=60,
                         capture_output=True, text=True, check=False)  # fmt: skip
    assert ran.stdout.split("\n")[:2] == [f"-mode {profile.mode}:2x1x1", profile.tuning]
    assert f"gives 2x1x1, mode {profile.mode}, {profile.tuning}; --profile none" in ran.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--gradient", "1MiB", "--model", "bert-base"], "leave one of them out"),
        (["--compute", "1s"], "--compute and --overlap go together"),
        (["--budget", "soon"], "--budget: 'soon' is no time"),
        (["--budget", "5s"], "--budget 5s: too little can be measured in that; give 6s or more"),
        (["--save", "nowhere/x"], "--save nowhere/x: there is no folder nowhere"),
        (["--topology", "2", "--gradient", "9000TB"], "of gradients on a host of"),
        (["--links", "nowhere.yaml"], "links nowhere.yaml: No such file or directory"),
        (["--topology", "1"], "one rank has nobody to talk to; name hosts, or say --accelerators core"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_a_line(words: list[str], problem: str, tmp_path: Path) -> None:
    done = tune(tmp_path, "localhost", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
