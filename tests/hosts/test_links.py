"""The links of a launch: one connection per host, counted at its sshd, from the check to --fetch and over restarts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.conftest import OWN, OWN_MAJOR, launch_line, manager_id
from tests.hosts.test_faults import children, parent
from tests.support.processes import command_line

HOSTS = ("h2", "h3", "h4")
# A rank that writes its agent's process id, above keeper and guard, to a file; and what stops that agent after the job.
PARENT = "sed -n 's/^PPid:.//p' /proc/$(cat)/status"
NOTE_AGENT = f"echo $PPID | {PARENT} | {PARENT} >agent.$(hostname)"
STOP_AGENT = "sh -c '! grep -qE \"event.{1,6}end\" || kill -STOP $(cat agent.h3)'"
DYING_RANK = Path(__file__).parents[1] / "bench" / "programs" / "dying_rank.py"


def pipes(pid: int) -> set[str]:
    """Return the pipes and sockets of a process."""
    return {
        name for fd in os.scandir(f"/proc/{pid}/fd") if (name := os.readlink(fd.path)).startswith(("pipe", "socket"))
    }


def connections(cluster: Cluster) -> list[int]:
    return [cluster.connections(host) for host in HOSTS]


@pytest.mark.parametrize("major", [OWN_MAJOR, 4, 5], indirect=True, ids=manager_id)
def test_a_launch_reaches_each_host_once(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    before = connections(cluster)
    argv = [*launch_line(mpirun, tmp_path, "-H", "h1:1,h2:1,h3:1,h4:1", "--quiet", "--output", "no-tag"), "hostname"]
    done = cluster.run("h1", argv, cwd=tmp_path)
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["h1", *HOSTS], "")
    assert connections(cluster) == [count + 1 for count in before]


@pytest.mark.parametrize("major", [OWN_MAJOR, 4, 5], indirect=True, ids=manager_id)
def test_files_restarts_and_a_stray_process_need_no_other_connection(
    cluster: Cluster, mpirun: str, tmp_path: Path
) -> None:
    project, marks, cache = tmp_path / "project", tmp_path / "marks", tmp_path / "cache"
    for folder in (project, marks, cache):
        folder.mkdir()
    (project / "rank.py").write_text(DYING_RANK.read_text())
    before = connections(cluster)
    options = ["-H", "h1:1,h2:1,h3:1,h4:1", "--restarts", "2", "--ship", "code", "--ship-dir", str(cache)]
    options += ["--fetch", "result.*", "--output", "no-tag"]
    argv = [*launch_line(mpirun, tmp_path, *options), "rank.py", str(marks), "3", "keeper"]
    done = cluster.run("h1", argv, cwd=project)
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(word) for word in ("starts", "dies")] == [3, 2]
    assert "restart 2 of 2" in done.stderr
    assert len([*project.glob("result.*")]) == 4, done.stderr
    assert connections(cluster) == [count + 1 for count in before]


@pytest.mark.parametrize("command", [["check"], ["check", "--ship", "code"], ["probe"], ["clean"]], ids=" ".join)
def test_a_command_reaches_each_host_once(cluster: Cluster, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "code.py").touch()
    before = connections(cluster)
    argv = [sys.executable, "-m", "ddlrun", command[0], "h2,h3,h4", *command[1:]]
    if command[1:]:
        argv += ["--ship-dir", f"{tmp_path}/cache"]
        (tmp_path / "cache").mkdir(mode=0o700)
    done = cluster.run("h1", argv, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert connections(cluster) == [count + 1 for count in before]


def test_only_a_broken_link_is_opened_again_for_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    before = connections(cluster)
    options = ["-H", "h1:1,h2:1,h3:1,h4:1", "--restarts", "1", "--quiet", "--output", "no-tag"]
    script = "echo started; [ -e again ] || exec sleep 600"
    argv = cluster.argv("h1", [*launch_line(OWN, tmp_path, *options), "sh", "-c", script], cwd=tmp_path)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(4)] == ["started\n"] * 4
        (tmp_path / "again").touch()
        words = {pid: command_line(pid).split("\0") for pid in cluster.processes("h1")}
        (client,) = [pid for pid, line in words.items() if line[0] == "ssh" and "h3" in line]
        os.kill(client, signal.SIGKILL)
        printed, errors = process.communicate()
    assert (process.returncode, printed) == (0, "started\n" * 4), errors
    assert "host h3 was lost: the connection to its agent ended (ssh: signal 9)" in errors
    assert connections(cluster) == [count + made for count, made in zip(before, (1, 2, 1), strict=True)]


@pytest.mark.parametrize("major", [OWN_MAJOR, 4, 5], indirect=True, ids=manager_id)
def test_ranks_have_no_variable_of_agents_and_relays(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    argv = launch_line(mpirun, tmp_path, "-H", "h1:1,h2:1", "--quiet", "--output", "no-tag")
    find = "env | grep -e ^DDLRUN_AGENT -e ^DDLRUN_RELAYS -e ^[A-Z_]*plm_[a-z]*_agent= || echo none"
    done = cluster.run("h1", [*argv, "sh", "-c", find], cwd=tmp_path)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["none", "none"], "")


def test_a_link_carries_no_connection_of_others(cluster: Cluster, tmp_path: Path) -> None:
    config = cluster.known_hosts("h1").with_name("ssh_config")
    before = config.read_text()
    socket = tmp_path / "master"
    config.write_text(f"{before}  ControlMaster auto\n  ControlPath {socket}\n")
    try:
        argv = launch_line(OWN, tmp_path, "-H", "h1:1,h2:1", "--quiet", "--output", "no-tag")
        done = cluster.run("h1", [*argv, "sh", "-c", f"ls {socket} 2>/dev/null || echo none"], cwd=tmp_path)
    finally:
        config.write_text(before)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["none", "none"], "")


@pytest.mark.parametrize("major", [OWN_MAJOR], indirect=True, ids=manager_id)
def test_an_agent_that_is_stopped_after_the_job_does_not_stay(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    argv = launch_line(mpirun, tmp_path, "-H", "h1:1,h3:1", "--quiet", "--on-event", STOP_AGENT)
    done = cluster.run("h1", [*argv, "sh", "-c", NOTE_AGENT], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    agent = int((tmp_path / "agent.h3").read_text())
    assert agent not in cluster.processes("h3")


def test_a_stopped_keeper_does_not_hide_the_end_of_its_agent(cluster: Cluster, tmp_path: Path) -> None:
    options = ["-H", "h1:1,h3:1", "--quiet", "--output", "no-tag", "--grace", "1", "--heartbeat", "20"]
    script = f"{NOTE_AGENT}; echo started; exec sleep 600"
    argv = cluster.argv("h1", [*launch_line(OWN, tmp_path, *options), "sh", "-c", script], cwd=tmp_path)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["started\n"] * 2
        agent = int((tmp_path / "agent.h3").read_text())
        (keeper,) = children(agent)
        (guard,) = children(keeper)
        link = pipes(parent(agent)) & pipes(agent)
        held = {pid for pid in (keeper, guard, *children(guard)) if pipes(pid) & link}
        os.kill(keeper, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)
        _, errors = process.communicate()
    assert (process.returncode, "host h3 was lost: the connection to its agent ended" in errors) == (3, True), errors
    assert (len(link), held) == (3, set())
    assert keeper not in cluster.processes("h3")
