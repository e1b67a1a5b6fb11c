"""Options from config files and environment variables, and ddlrun config."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ddlrun.application.config_files import ConfigFile, find_files
from ddlrun.cli import group
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.launch import command as launch
from ddlrun.cli.options.configuration import variable_of
from ddlrun.errors import InputError
from ddlrun.plan.precedence import COMMAND_LINE, NAMED_FILE, OPTION_SOURCES, PROJECT_FILE, USER_FILE, VARIABLE
from ddlrun.plan.tuning_profile import Profile, render_profiles
from ddlrun.topology import Topology
from tests.conftest import MPIRUNS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder home/project/below as the current one; home is the home directory."""
    below = tmp_path / "home" / "project" / "below"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME")
    return below


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(group, words, env=environ, catch_exceptions=True)


def options(*words: str, **environ: str) -> dict[str, Any]:
    """Return the record of each option of `config show`, by its name."""
    done = run("config", "show", "--json", *words, **environ)
    assert done.exception is None, done.output
    shown = json.loads(done.stdout)
    return {record["option"]: record for record in shown["options"]}


def write_files(folder: Path) -> tuple[Path, Path]:
    """Write the user's file, the project's, and another one in the current folder."""
    user, project = folder.parents[1] / ".config/ddlrun/config.yaml", folder.parent / "ddlrun.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("ssh:\n  port: 2222\nplacement: {bind: core, membind: gpu}\nenv: {A: 1, B: 1}\n")
    project.write_text("placement: {bind: numa, reserve_cores: 1}\nenv: {B: 2, MY_TOKEN: geheim}\n")
    (folder / "named.yaml").write_text("placement: {reserve_cores: 2}\n")
    return user, project


def test_each_source_overrides_those_before_it(folder: Path) -> None:
    user, project = write_files(folder)
    found = options(
        "--config-file", "named.yaml", "--packing", "pack", DDLRUN_CORE_KINDS="fast", DDLRUN_PACKING="spread"
    )
    assert {name: (record["value"], record["source"], record["place"]) for name, record in found.items()} == {
        "--ssh-port": (2222, USER_FILE, f"config file {user}, line 2: ssh.port"),
        "--membind": ("gpu", USER_FILE, f"config file {user}, line 3: placement.membind"),
        "--bind": ("numa", PROJECT_FILE, f"config file {project}, line 1: placement.bind"),
        "--reserve-cores": (2, NAMED_FILE, "config file named.yaml, line 1: placement.reserve_cores"),
        "--core-kinds": ("fast", VARIABLE, "DDLRUN_CORE_KINDS"),
        "--packing": ("pack", COMMAND_LINE, None),
    }
    assert options("--config-file", "none") == {}
    assert options("--all", "--config-file", "none")["--bind"]["source"] == OPTION_SOURCES[0]


def test_a_merged_key_has_no_line(folder: Path) -> None:
    (folder / "ddlrun.yaml").write_text("placement: {<<: {bind: numa}}\n")
    assert options()["--bind"]["place"] == f"config file {folder}/ddlrun.yaml"


def test_the_text_of_config_show(folder: Path) -> None:
    user, project = write_files(folder)
    lines = run("config", "show", "--timeout", "5m", DDLRUN_TCP="yes", DDLRUN_ENV="C='x y'").stdout.splitlines()
    assert lines[:2] == [f"config file {user}", f"config file {project}"]
    rows = [line.split(maxsplit=2) for line in lines[2:]]
    assert ["--tcp", "on", "DDLRUN_TCP"] in rows
    assert ["--timeout", "300", "the command line"] in rows
    assert [row[1] for row in rows if row[0] == "--env"] == ["A=1", "B=1", "B=2", "MY_TOKEN=<redacted>", "C=x"]
    assert run("config", "show", "--config-file", "none").stdout == "every option has ddlrun's default: see --all\n"


def test_config_show_names_the_profiles_of_tune(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    profile = Profile(
        hosts=("h1", "h2"), topology=Topology((2, 1, 2)), major=5, mode="c", tuning="bucket=16M", horovod={},
        gradient=1000,
        seconds=1.0, default_seconds=2.0, date="2026-11-22",
    )  # fmt: skip
    path = folder / "ddlrun/profiles/a.json"
    path.parent.mkdir(parents=True)
    path.write_text(render_profiles([profile]))
    line = f"--profile auto: profile of 2026-11-22 for gradients of 1 kB on h[1-2], 2x1x2: {path}\n"
    assert line in run("config", "show").stdout
    assert "profile of" not in run("config", "show", "--profile", "none").stdout
    (folder / "ddlrun/profiles/b.json").write_text("{")
    assert line in run("config", "show").stdout


def test_variables_of_all_files_reach_the_ranks(folder: Path) -> None:
    (folder.parent / "ddlrun.yaml").write_text("env: {A: 1, B: 1}\n")
    (folder / "named.yaml").write_text("env: {B: 2}\n")
    words = ("show", "env", "--json", "--mpirun", MPIRUNS[5], "-np", "1", "--config-file", "named.yaml", "--env", "A=3")
    shown = json.loads(run(*words, DDLRUN_ENV="C=4", DDLRUN_TIMEOUT="5m").stdout)
    assert {name: shown["set"][name] for name in "ABC"} == {"A": "3", "B": "2", "C": "4"}
    assert {"DDLRUN_ENV", "DDLRUN_TIMEOUT"} & {*shown["set"], *shown["passed_on"]} == set()


def test_duties_of_the_start_up_hook(folder: Path) -> None:
    words = ("show", "env", "--json", "--mpirun", MPIRUNS[5], "-np", "1")
    assert "DDLRUN_HOOK" not in json.loads(run(*words).stdout)["set"]
    (folder.parent / "ddlrun.yaml").write_text("hook: [stacks, exit]\n")
    assert json.loads(run(*words).stdout)["set"]["DDLRUN_HOOK"] == "exit,stacks"
    assert json.loads(run(*words, DDLRUN_HOOK="none").stdout)["set"]["DDLRUN_HOOK"] == "none"


def test_one_of_a_group_from_a_higher_source_hides_the_others(folder: Path) -> None:
    (folder / "ddlrun.yaml").write_text("topology: 4x2\nhosts: [a, b]\n")
    words = ("show", "topology", "--machine", "s822lc")
    assert run(*words).stdout.startswith("4x2x1")
    assert run(*words, DDLRUN_HOSTS="c", DDLRUN_RANKS_PER_HOST="1").stdout.startswith("1x1x1")


@pytest.mark.parametrize(
    ("text", "environ", "problem"),
    [
        ("placement: {bind: x}", {}, "ddlrun.yaml, line 1: placement.bind: 'x' is none of core"),
        ("", {"DDLRUN_BIND": "x"}, "error: DDLRUN_BIND: 'x' is none of core"),
        ("", {"DDLRUN_SHARE_GPUS": "x"}, "error: DDLRUN_SHARE_GPUS: 'x'; write on or off"),
        ("", {"DDLRUN_WRAP": "'x"}, "error: DDLRUN_WRAP: No closing quotation"),
    ],
)
def test_a_wrong_value_is_reported_with_its_place(
    folder: Path, text: str, environ: dict[str, str], problem: str
) -> None:
    (folder / "ddlrun.yaml").write_text(text)
    argv = [sys.executable, "-m", "ddlrun", "show", "topology"]
    done = subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert problem in done.stderr


def test_an_error_about_a_value_from_elsewhere_names_its_place(folder: Path) -> None:
    (folder / "ddlrun.yaml").write_text("topology: 9x9\n")
    done = run("show", "topology", "--machine", "s822lc")
    assert isinstance(done.exception, InputError)
    place = f"config file {folder}/ddlrun.yaml, line 1: topology"
    assert done.stderr == f"ddlrun: note: set elsewhere: --topology 9x9 ({place})\n"


def test_other_commands_take_how_hosts_are_reached(folder: Path) -> None:
    (folder / "ddlrun.yaml").write_text("ssh: {port: 70000}\n")
    assert "'70000' is not a whole number from 1 to 65535" in run("probe", "h1").output
    assert "--ssh-port" in run("probe", "--help").stdout
    assert (
        run("gen-rankfile", "1", "h1", DDLRUN_SSH_PORT="22", DDLRUN_BIND="x", DDLRUN_CONFIG_FILE="none").exit_code == 0
    )


def test_commands_that_reach_no_hosts_work_beside_a_damaged_file(folder: Path) -> None:
    (folder / "ddlrun.yaml").write_text("a: [")
    assert "ddlrun.yaml" not in str(run("logs", "nope", XDG_STATE_HOME=str(folder)).exception)
    assert "ddlrun.yaml" in str(run("probe", "h1").exception)


@pytest.mark.parametrize("text", ["a: [", "nosuch: 1", "- a"])
def test_runs_are_listed_and_ended_beside_a_damaged_file(text: str, folder: Path) -> None:
    (folder / "ddlrun.yaml").write_text(text)
    listed = run("runs", XDG_STATE_HOME=str(folder))
    assert listed.exit_code == 0
    assert listed.stderr.startswith(f"ddlrun: note: config file {folder}/ddlrun.yaml")
    assert listed.stderr.endswith("; the values of config files and variables are left out\n")
    assert str(run("kill", "nope", XDG_STATE_HOME=str(folder)).exception).startswith("run 'nope': ")


def test_a_file_with_another_suffix_has_a_note(folder: Path) -> None:
    (folder / "ddlrun.yml").write_text("topology: 2x1x1")
    note = f"ddlrun: note: {folder}/ddlrun.yml has no effect; name it ddlrun.yaml\n"
    assert run("config", "show").stderr.startswith(note)


def test_a_file_of_another_user_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "ddlrun.yaml"
    path.write_text("")
    assert list(find_files(os.environ, str(folder), ConsoleReporter())) == [ConfigFile(PROJECT_FILE, str(path))]
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    os.chown(path, 1234, 1234)
    assert list(find_files(os.environ, str(folder), ConsoleReporter())) == []
    assert "belongs to another user" in capsys.readouterr().err


def test_files_above_the_home_directory_are_not_read(folder: Path) -> None:
    (folder.parents[2] / "ddlrun.yaml").write_text("")
    assert list(find_files(os.environ, str(folder), ConsoleReporter())) == []


def test_a_rank_ignores_the_variables_of_its_job(folder: Path) -> None:
    assert options(DDLRUN_RUN="1", DDLRUN_TOPOLOGY="4x2", DDLRUN_BIND="numa") == {}
    assert folder.is_dir()


def test_options_that_are_not_in_the_help_of_launch_are_shown(folder: Path) -> None:
    assert folder.is_dir()
    shown = options("--cycle-time-ms", "3", "--accelerators", "2", DDLRUN_NODES="2")
    assert {name: record["source"] for name, record in shown.items()} == {
        "--nodes": VARIABLE, "--env": COMMAND_LINE, "--ranks-per-host": COMMAND_LINE,
    }  # fmt: skip


def test_variables_of_options_are_distinct() -> None:
    named = {param.name: variable_of(param) for param in launch.params if isinstance(param, click.Option)}
    variables = [variable for variable in named.values() if variable]
    assert len(variables) == len({*variables})
    assert "DDLRUN_RUN" not in variables
