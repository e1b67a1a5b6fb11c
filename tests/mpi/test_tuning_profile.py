"""Tuning profiles: their store, and what a launch does with them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlrun.allreduce_algorithms import MIB
from ddlrun.application.profile_store import profile_names
from ddlrun.errors import InputError
from ddlrun.plan.tuning_profile import Profile, Profiles, file_name, parse_profiles, render_profiles, replace_profile
from ddlrun.topology import Topology
from tests.conftest import MPIRUNS

DDLRUN = [sys.executable, "-m", "ddlrun"]
PROFILE = Profile(
    hosts=("h1", "h2"),
    topology=Topology((2, 1, 2)),
    major=5,
    mode="c",
    tuning="chunk=256K,depth=4,bucket=16M",
    horovod={"HOROVOD_FUSION_THRESHOLD": "16777216", "HOROVOD_CYCLE_TIME": "3.5"},
    gradient=100 * MIB,
    seconds=1.0,
    default_seconds=1.5,
    date="2026-11-22",
)


def test_rendered_profiles_parse_to_themselves() -> None:
    other = PROFILE._replace(major=4, horovod={})
    assert parse_profiles(render_profiles([PROFILE, other]), "x") == (PROFILE, other)
    again = PROFILE._replace(topology=Topology((2, 2)), mode="r")
    assert replace_profile((PROFILE, other), again) == (again, other)  # the same ranks, hosts and MPI
    assert file_name(["h1", "h2"]) != file_name(["h2", "h1"])


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"profiles": [{}]}', '{"profiles": 3}', "{" * 5000,
     render_profiles([PROFILE]).replace('"c"', '"q"'), render_profiles([PROFILE]).replace("2x1x2", "2xy"),
     render_profiles([PROFILE]).replace("HOROVOD_CYCLE_TIME", "LD_PRELOAD"), render_profiles([PROFILE])[:-20]],
)  # fmt: skip
def test_a_malformed_profile_is_one_error(text: str) -> None:
    with pytest.raises(InputError, match="where") as error:
        parse_profiles(text, "where")
    assert len(error.value.problems) == 1


def test_a_profile_fits_as_many_ranks_and_hosts_and_one_mpi() -> None:
    profiles = Profiles((PROFILE,))
    fits = Topology((2, 2))  # the same ranks per host and hosts; Y and Z are those of tune
    assert profiles.fitting(fits, 5) == PROFILE
    assert profiles.fitting(fits, 4) is None
    assert profiles.fitting(fits, None) == PROFILE
    assert profiles.fitting(Topology((4, 2)), 5) is None
    named = profiles._replace(file="lab.json")
    assert named.fitting(fits, 4) == PROFILE
    with pytest.raises(InputError, match=r"--profile lab.json: it is for 2x1x2, the job is 4x2x1; tune anew"):
        named.fitting(Topology((4, 2)), 5)


Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Plan a job on h1 and h2; the store of profiles is below tmp_path."""
    folder = tmp_path / "ddlrun/profiles"
    folder.mkdir(parents=True)
    (folder / file_name(PROFILE.hosts)).write_text(render_profiles([PROFILE]))

    def dry_run(*words: str, hosts: str = "h1,h2", **variables: str) -> dict[str, Any]:
        argv = [*DDLRUN, "launch", "-H", hosts, "--ranks-per-host", "2", "--machine", "dgx1", "--dry-run", "--json"]
        argv += ["--mpirun", MPIRUNS[5], *words, "true"]
        environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), **variables}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    return dry_run


def settings_of(planned: dict[str, Any]) -> dict[str, str]:
    names = ("DDL_OPTIONS", "DDLRUN_DDL_TUNING", *PROFILE.horovod)
    return {name: planned["variables"][name] for name in names if name in planned["variables"]}


ALL = {"DDL_OPTIONS": "-mode c:2x1x2", "DDLRUN_DDL_TUNING": PROFILE.tuning, **PROFILE.horovod}
NONE = {"DDL_OPTIONS": "-mode p:2x2x1"}


def test_launch_uses_the_profile_of_its_hosts_with_a_note(plan: Plan) -> None:
    planned = plan()
    assert settings_of(planned) == ALL
    assert planned["topology"] == "2x1x2"
    assert [note for note in planned["notes"] if "profile" in note] == [
        (
            "the profile of 2026-11-22 for gradients of 105 MB gives 2x1x2, mode c, HOROVOD_FUSION_THRESHOLD=16777216, "
            "HOROVOD_CYCLE_TIME=3.5, chunk=256K,depth=4,bucket=16M; disable it with --profile none"
        )
    ]
    assert planned["reasons"]["topology"].endswith(", instead of 2x2x1")
    assert settings_of(plan("--profile", "none")) == NONE
    assert settings_of(plan(hosts="h1,h3")) == NONE
    assert settings_of(plan(hosts="h2,h1")) == NONE


def test_options_come_before_the_profile(plan: Plan) -> None:
    planned = plan("--racks", "1")
    assert settings_of(planned) == NONE
    words = "the profile of 2026-11-22 for gradients of 105 MB is left out: it is for 2x1x2, the job is 2x2x1"
    assert words in planned["notes"]
    assert settings_of(plan("--topology", "2x1x2")) == ALL
    assert settings_of(plan("--mode", "r")) == {"DDL_OPTIONS": "-mode r:2x1x2", **PROFILE.horovod}
    assert settings_of(plan("--mode", "c")) == ALL
    own = plan("--cycle-time-ms", "7", "--env", "DDLRUN_DDL_TUNING=chunk=1M")
    assert settings_of(own) == ALL | {"HOROVOD_CYCLE_TIME": "7.0", "DDLRUN_DDL_TUNING": "chunk=1M"}
    autotuned = plan("--autotune")
    assert settings_of(autotuned).keys() == {"DDL_OPTIONS", "DDLRUN_DDL_TUNING"}
    assert not any("CYCLE_TIME" in note for note in autotuned["notes"])
    assert settings_of(plan("--no-autotune")) == ALL
    assert settings_of(plan(DDL_OPTIONS="-mode b:2x2x1")) == {}  # the shape is fixed by DDL_OPTIONS
    assert settings_of(plan("--topology", "2x1x2", DDL_OPTIONS="-mode b:2x1x2")) == PROFILE.horovod


def test_localhost_stands_for_the_name_of_this_machine() -> None:
    own = os.uname().nodename
    assert profile_names(["localhost", "h1"]) == profile_names([own, "h1"]) == (own, "h1")


def test_a_named_profile_and_one_that_is_damaged(plan: Plan, tmp_path: Path) -> None:
    named = tmp_path / "lab.json"
    named.write_text(render_profiles([PROFILE]))
    assert settings_of(plan("--profile", str(named), hosts="a,b")) == ALL
    (tmp_path / "ddlrun/profiles" / file_name(PROFILE.hosts)).write_text("{")
    planned = plan()
    assert settings_of(planned) == NONE
    assert any(re.search("it is not a profile.*; going on without it$", note) for note in planned["notes"])
