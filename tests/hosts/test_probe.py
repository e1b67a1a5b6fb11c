"""Probing real hosts over real ssh: namespaces of this machine."""

import re
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

PROBE = [sys.executable, "-m", "ddlrun", "probe"]


def test_hosts_that_look_the_same_are_one_line_and_are_kept(cluster: Cluster, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    first, again = (
        cluster.run("h1", ["env", *(f"{k}={v}" for k, v in env.items()), *PROBE, "h[1-4]"]) for _ in range(2)
    )
    assert (first.returncode, first.stderr) == (0, "")
    assert [line[:6] for line in first.stdout.splitlines() if line[0] != " "] == ["h[1-4]"]
    assert again.stdout == first.stdout
    assert {path.name for path in (tmp_path / "ddlrun" / "hosts").iterdir()} == {"h1", "h2", "h3", "h4"}


def test_a_host_that_does_not_answer_does_not_hide_the_others(cluster: Cluster, tmp_path: Path) -> None:
    argv = [*PROBE, "h[1-4]", "--start-timeout", "10", "--save", str(tmp_path / "saved")]
    with cluster.cut("h4"), cluster.stopped("h3"):
        done = cluster.run("h1", argv, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout.startswith("h[1-2]: ")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("ddlrun: error: host h3: ssh: connect to host h3 port 22: Connection refused")
    # Either ssh or ddlrun notices it first.
    assert re.match(r"ddlrun: error: host h4: (no answer in time|ssh: .* timed out); try: ssh h4 true", lines[1])
    assert (tmp_path / "saved" / "hosts").read_text() == "h1\nh2\n"


@pytest.mark.extra
def test_lint_asks_the_hosts_of_a_rank_file(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text("rank 0=h1 slot=0:0\nrank 1=h2 slot=7:0\n")
    done = cluster.run("h1", [sys.executable, "-m", "ddlrun", "lint", "ranks", "--probe"], cwd=tmp_path)
    assert done.returncode == 2
    assert "ranks:2:16: error: slot=7:0 on h2" in done.stdout
