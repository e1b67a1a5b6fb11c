"""ddlrun show: every stage of a launch, for hosts that do not exist."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.machine.preset import parse_machine
from ddlrun.report.picture import ASCII, Canvas, render_placement
from ddlrun.report.svg import render_svg
from tests.machines.facts import parse_facts
from tests.machines.render_hwloc import render_hwloc
from tests.support.shapes import machine, placement

JOB = ["--machine", "s822lc", "--topology", "4x2x3", "-H", "n[1-6]"]


def show(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ddlrun", "show", *words]
    return subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("stage", ["placement", "rankfile", "command", "env", "hosts"])
def test_each_stage_as_text_and_as_json(stage: str) -> None:
    text, as_json = show(stage, *JOB, "true"), show(stage, "--json", *JOB, "true")
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout
    assert json.loads(as_json.stdout)


def test_the_machine_of_this_host_stands_for_all_hosts() -> None:
    done = show("hosts", "-H", "no-such-host-1.invalid:1,no-such-host-2.invalid:1", "--machine", "local")
    assert (done.returncode, done.stdout.count("  rack 0  ")) == (0, 2), done.stderr


def test_the_variables_of_chosen_ranks() -> None:
    text = show("env", *JOB, "--ranks", "5,7", "-x", "NOT_SET", MYVAR="1", SSH_TTY="here")
    assert text.stderr == "ddlrun: note: -x NOT_SET: the variable is not set\n"
    assert [line for line in text.stdout.splitlines() if not line.startswith(" ")] == [
        "all ranks:", "rank 5 on n2:", "rank 7 on n2:", "passed on to all ranks:",
    ]  # fmt: skip
    lines = text.stdout.splitlines()
    assert {"  RANK=5", "  LOCAL_RANK=1", "  OMP_NUM_THREADS=5", "  RANK=7", "  MYVAR=1"} <= {*lines}
    assert not [line for line in lines if "SEATS" in line or "SSH_TTY" in line]


def test_the_contents_of_stages() -> None:
    assert "rank 23=n6 slot=1:5-9\n" in show("rankfile", *JOB).stdout
    assert show("hosts", *JOB).stdout.splitlines()[2] == "n3  rack 1  host 0  ranks 8,9,10,11"
    assert "-np 24" in show("command", *JOB, "train").stdout
    assert show("command", *JOB, "train").stdout.rstrip().endswith(" train")
    env = show("env", *JOB, "--env", "MY_TOKEN=geheim").stdout
    assert "MY_TOKEN=<redacted>" in env
    assert "DDLRUN_TOPOLOGY=4x2x3" in env
    placed = json.loads(show("placement", "--json", *JOB, "--rank-order", "ddl").stdout)
    assert placed["ranks"][1]["rank"] == 6
    assert placed["machines"][0]["packages"][1][0] == {
        "core": 10, "numa_node": 1, "pus": list(range(80, 88)), "usable": True, "l3": None, "kind": 0,
    }  # fmt: skip


def test_a_package_without_cores_is_drawn() -> None:
    """A cpuset hides its cores, but not its memory. NUMA nodes are named on the second machine."""
    for nodes in ("{0-1: 0-3/2}", "{8-9: 0-3/2}"):
        text = f"about: a\npackages: 0-3/2\ncores: 0-3/1\nnodes: {nodes}\nforbidden: 0-1\n"
        placed = placement("2x1x1", ["a"], parse_hwloc(render_hwloc(parse_facts(text, "a")), "a"))
        assert "| no cores" in render_placement(placed, Canvas(80, ASCII))
        assert ET.fromstring(render_svg(placed)).tag.endswith("svg")


def test_missing_scripts_and_unknown_words_are_errors() -> None:
    assert "script 'nowhere.py' does not exist" in show("command", *JOB, "nowhere.py").stderr
    assert "'ranks' is none of placement, rankfile" in show("ranks").stderr
    assert "(did you mean ddlrun probe?)" in show("machines").stderr
    assert show().returncode == 2
    assert "--svg draws a placement" in show("hosts", "--svg", "x").stderr
    text = show("--help").stdout
    assert "Usage: ddlrun show WHAT [OPTIONS] [SCRIPT] [ARGS]..." in text
    assert "\n  rankfile   the rank file\n" in text


def test_a_terminal_without_utf8_gets_ascii() -> None:
    done = show("placement", *JOB, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "  + package 0 --+ + package 1 --+\n" in done.stdout
    assert "  | GPU 0 -> 0  | | GPU 2 -> 2  |\n" in done.stdout


def test_the_picture_wraps() -> None:
    many = parse_machine("{packages: 8, cores_per_package: 40, gpus: 3}", "test")
    lines = render_placement(placement("80", ["a"], many), Canvas(60, ASCII)).splitlines()
    assert max(map(len, lines[:-1])) <= 60
    assert any("| YYYY ZZZZ ++++" in line for line in lines)  # more ranks than signs
    assert "GPUs whose package is not known: GPU 0, GPU 1, GPU 2" in lines[-2]


def test_svg(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    assert show("placement", *JOB, "--svg", str(path)).returncode == 0
    root = ET.fromstring(path.read_text())
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "core 0, CPUs 0,1,2,3,4,5,6,7, local rank 0"
    assert len(titles) == 20
    strange = machine("minsky")._replace(source="<&>")
    assert "&lt;&amp;&gt;" in render_svg(placement("1", ["a"], strange))
