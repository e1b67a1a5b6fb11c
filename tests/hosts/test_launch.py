"""Real launches over real ssh, on hosts that are namespaces of this machine."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.cluster import Cluster
from tests.conftest import launch_line
from tests.support.json_schemas import validate_run_folder

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "digits.py"
TELL = (
    "import json, os, sys; e = os.environ; os.write(1, (json.dumps(dict(rank=int(e['OMPI_COMM_WORLD_RANK']),"
    "host=os.uname().nodename, cpus=sorted(os.sched_getaffinity(0)), threads=e['OMP_NUM_THREADS'],"
    "mine=e['MINE'], path=e['PATH'], argv=sys.argv[1:], stdin=sys.stdin.read())) + '\\n').encode())"
)


def ddlrun(mpirun: str, folder: Path) -> list[str]:
    return launch_line(mpirun, folder, "--output", "no-tag")


@pytest.mark.parametrize("order", ["host", pytest.param("ddl", marks=pytest.mark.extra)])
def test_every_rank_is_where_the_plan_says(cluster: Cluster, mpirun: str, tmp_path: Path, order: str) -> None:
    words = ["a  b", "", "$X *", "\n'\""]
    argv = [*ddlrun(mpirun, tmp_path), "-H", "h1,h2", "--ranks-per-host", "core", "--rank-order", order]
    argv += ["--env", "MINE=$x 'y'\nz", sys.executable, "-c", TELL, *words]
    done = cluster.run("h1", argv, cwd=tmp_path, stdin="hello")
    assert done.returncode == 0, done.stderr
    ranks = sorted(map(json.loads, done.stdout.splitlines()), key=lambda rank: int(rank["rank"]))
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert validate_run_folder(tmp_path / "run") >= {"plan.json", "check.json", "outcome.json"}
    planned = sorted(plan["ranks"], key=lambda rank: int(rank["rank"]))
    assert [(rank["rank"], rank["host"]) for rank in ranks] == [(rank["rank"], rank["host"]) for rank in planned]
    seats = plan["variables"]["DDLRUN_SEATS"].partition("*")[2].split(";")
    for rank, told in zip(planned, ranks, strict=True):
        assert ",".join(map(str, told["cpus"])) == seats[rank["local_rank"]].split("@")[1]
        assert (told["mine"], told["argv"], told["threads"]) == ("$x 'y'\nz", words, str(rank["threads"]))
    assert [rank["stdin"] for rank in ranks] == ["hello", *[""] * (len(ranks) - 1)]
    assert len({rank["path"] for rank in ranks}) == 1


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_the_example_trains_over_two_hosts(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    done = cluster.run("h1", [*ddlrun(mpirun, tmp_path), "-H", "h1:1,h2:1", str(EXAMPLE)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("rank 0 of 2 on h1")
    assert done.stdout.splitlines()[1].startswith("rank 1 of 2 on h2")
    assert done.stdout.splitlines()[-1].startswith("done: accuracy 9")


@pytest.mark.extra
def test_a_launch_from_a_host_that_takes_no_part(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    for text in ("", "".join(f"{number}\n" for number in range(50_000))):
        argv = [*ddlrun(mpirun, tmp_path / str(len(text))), "-H", "h2:1", "--quiet", "sh", "-c", "hostname; cat"]
        done = cluster.run("h1", argv, cwd=tmp_path, stdin=text)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"h2\n{text}", "")


@pytest.mark.extra
def test_the_port_of_ssh_is_used_by_probe_and_mpirun(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    ask = [*ddlrun(mpirun, tmp_path), "--quiet", "-H", "h1:1,h2:1"]
    done = cluster.run("h1", [*ask, "-p", "22", "hostname"], cwd=tmp_path)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["h1", "h2"])
    done = cluster.run("h1", [*ask, "-p", "2222", "hostname"], cwd=tmp_path)
    assert done.returncode == 3
    assert "port 2222: Connection refused; try: ssh -p 2222 h2 true" in done.stderr


@pytest.mark.extra
def test_gen_rankfile_asks_the_hosts(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("h1", [sys.executable, "-m", "ddlrun", "gen-rankfile", "--probe", "1x2", "h1,h2"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rank 1=h2 slot=0:0-" in done.stdout


def test_hosts_that_cannot_be_asked_are_named_each_with_its_reason(cluster: Cluster, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ddlrun", "launch", "-H", "h1,h2,nowhere", "true"]
    with cluster.stopped("h2"):
        done = cluster.run("h1", argv, cwd=tmp_path)
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("ddlrun: error: host h2: ssh: connect to host h2 port 22: Connection refused")
    assert lines[1].startswith("ddlrun: error: host nowhere: ssh: Could not resolve")


WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8), max_size=3)


@pytest.mark.extra
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS, st.text("$x '\"\n\\*;&`|<>(){}[]!~#%=ü", max_size=12))
def test_any_word_and_any_value_arrive_over_ssh(cluster: Cluster, mpirun: str, words: list[str], value: str) -> None:
    with tempfile.TemporaryDirectory(dir=cluster.folder) as folder:
        argv = [*ddlrun(mpirun, Path(folder)), "--checks", "none", "-H", "h1:1,h2:1", "--env", f"MINE={value}"]
        done = cluster.run("h1", [*argv, sys.executable, "-c", TELL, *words], cwd=Path(folder))
    assert done.returncode == 0, done.stderr
    assert [(told["argv"], told["mine"]) for told in map(json.loads, done.stdout.splitlines())] == [(words, value)] * 2


@pytest.mark.extra
def test_no_value_stands_on_a_command_line_nor_a_secret_in_a_file(
    cluster: Cluster, mpirun: str, tmp_path: Path
) -> None:
    """Processes of all hosts are seen from each, so the ranks look themselves."""
    value = f"unlikely{os.getpid()}{time.monotonic_ns()}"
    look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' >seen.$OMPI_COMM_WORLD_RANK; echo ${#MY_TOKEN}"
    argv = [*ddlrun(mpirun, tmp_path), "-H", "h1:1,h2:1", "-x", "MY_TOKEN", "--verbose", "sh", "-c", look]
    done = cluster.run("h1", argv, cwd=tmp_path, env={**os.environ, "MY_TOKEN": value})
    assert (done.returncode, done.stdout) == (0, f"{len(value)}\n" * 2), done.stderr
    seen = "".join((tmp_path / f"seen.{rank}").read_text() for rank in (0, 1))
    assert "start.py" in seen
    written = "".join(
        path.read_bytes().decode(errors="replace") for path in (tmp_path / "run").rglob("*") if path.is_file()
    )
    assert value not in seen + written + done.stderr
