"""Daemons and agents that neither ssh nor srun starts: stand-ins of kubectl and blaunch enter the cluster's hosts."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddlrun.errors import EXIT_UNREACHABLE
from tests.cluster.cluster import Cluster
from tests.conftest import OWN, launch_line
from tests.support.agent_ranks import TELL as TELL_WITHOUT_MPI
from tests.support.processes import command_line
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.extra

TELL = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
print(world.rank, os.uname().nodename, *sorted(os.sched_getaffinity(0)), world.allreduce(1), flush=True)
"""
RANKS = ["0 h2 0 4", "1 h2 1 4", "2 h3 0 4", "3 h3 1 4"]
PODS = {"train-worker-0": "h2", "train-worker-1": "h3"}
# As kubectl and blaunch do, it copies the input and the output of a process that others have started.
REMOTE_SHELL = """#!{python}
import os, subprocess, sys, threading
hosts, words, no_input = {hosts}, sys.argv[1:], False
if words[:1] == ["exec"]:
    no_input = "--stdin" not in words
    words = [word for word in words[1:] if word not in ("--stdin", "--")]
process = subprocess.Popen([*hosts[words[0]], {shell}], start_new_session=True, stdout=subprocess.PIPE,
                           stdin=subprocess.DEVNULL if no_input else subprocess.PIPE)
def copy(source, target):
    try:
        while data := os.read(source, 65536):
            os.write(target, data)
    except BrokenPipeError:
        pass
    os.close(target)
if process.stdin:
    threading.Thread(target=copy, args=(0, os.dup(process.stdin.fileno())), daemon=True).start()
    process.stdin.close()
copy(process.stdout.fileno(), 1)
os._exit(process.wait())
"""


def launch_argv(
    cluster: Cluster, mpirun: str, folder: Path, environ: dict[str, str], *options: str, root: bool = True
) -> list[str]:
    """Return the command line of a launch on h1, the launcher's pod; root may use the programs of `write_shell`."""
    (folder / "script.py").write_text(TELL_WITHOUT_MPI if mpirun == OWN else TELL)
    (folder / "ranks").mkdir(exist_ok=True)
    line = launch_line(
        mpirun, folder, "--output", "no-tag", "--quiet", *options, f"{folder}/script.py", f"{folder}/ranks"
    )
    variables = [f"{name}={value}" for name, value in environ.items()]
    return (cluster.root_argv if root else cluster.argv)("h1", ["env", *variables, *line], cwd=folder)


def launch(
    cluster: Cluster, mpirun: str, folder: Path, environ: dict[str, str], *options: str, root: bool = True
) -> subprocess.CompletedProcess[str]:
    """Launch on h1."""
    argv = launch_argv(cluster, mpirun, folder, environ, *options, root=root)
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE)


def write_shell(cluster: Cluster, file: Path, names: dict[str, str], shell: str) -> None:
    """Write a program that runs a command on another host.

    Args:
        cluster: The cluster.
        file: The program.
        names: The names by which it knows hosts.
        shell: The Python expression of the command's words.
    """
    hosts = {name: cluster.login_argv(host, [], cwd=Path("/")) for name, host in names.items()}
    file.write_text(REMOTE_SHELL.format(python=sys.executable, hosts=hosts, shell=shell))
    file.chmod(0o755)


def write_kubectl(cluster: Cluster, folder: Path) -> None:
    """Write a kubectl, and the operator's program that calls it."""
    write_shell(cluster, folder / "kubectl", PODS, "*words[1:]")
    kubexec = folder / "kubexec.sh"
    kubexec.write_text(f'#!/bin/sh\nset -x\nPOD=$1\nshift\n{folder}/kubectl exec $POD -- /bin/sh -c "$*"\n')
    kubexec.chmod(0o755)
    (folder / "hostfile").write_text("".join(f"{pod} slots=2\n" for pod in PODS))


@pytest.fixture
def no_ssh(cluster: Cluster) -> Iterator[None]:
    with cluster.stopped("h2", "h3"):
        yield


def kubexec(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Return the variables of the operator's first version, whose kubexec.sh calls kubectl without standard input."""
    write_kubectl(cluster, folder)
    return {
        "OMPI_MCA_orte_default_hostfile": f"{folder}/hostfile", "OMPI_MCA_plm_rsh_agent": f"{folder}/kubexec.sh",
    }  # fmt: skip


def lsf(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Return the variables of a job of LSF."""
    write_shell(cluster, folder / "blaunch", {"h2": "h2", "h3": "h3"}, '"/bin/sh", "-c", " ".join(words[1:])')
    (folder / "hosts").write_text("batch01\nh2\nh2\nh3\nh3\n")
    (folder / "affinity").write_text("h2 1 0 1\nh2 0 0 1\nh3 1 0 1\nh3 0 0 1\n")
    return {
        "PATH": f"{folder}:{os.environ['PATH']}", "LSB_JOBID": "12", "LSB_DJOB_HOSTFILE": f"{folder}/hosts",
        "LSB_AFFINITY_HOSTFILE": f"{folder}/affinity",
    }  # fmt: skip


def check(done: subprocess.CompletedProcess[str], mpirun: str) -> None:
    """Check the host and the CPUs of each rank, and the exit code: that of the last rank."""
    code = 7 if mpirun == OWN else 0
    assert (done.returncode, sorted(done.stdout.splitlines())) == (code, RANKS), done.stderr


@pytest.mark.own
@pytest.mark.usefixtures("no_ssh")
def test_the_first_version_of_the_operator(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    check(launch(cluster, mpirun, tmp_path, kubexec(cluster, tmp_path)), mpirun)


@pytest.mark.own
@pytest.mark.openmpi(5)
@pytest.mark.usefixtures("no_ssh")
def test_pods_by_kubectl(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    write_kubectl(cluster, tmp_path)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    options = ("--launcher", "kubectl", "--hostfile", f"{tmp_path}/hostfile")
    check(launch(cluster, mpirun, tmp_path, environ, *options), mpirun)


@pytest.mark.own
@pytest.mark.usefixtures("no_ssh")
def test_lsf_by_blaunch(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    done = launch(cluster, mpirun, tmp_path, lsf(cluster, tmp_path))
    check(done, mpirun)
    assert mpirun == OWN or done.stderr == ""
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["reasons"]["launcher"] == "blaunch: LSF job 12"
    assert "batch01 only launches: it gets no rank" in plan["notes"]


@pytest.mark.usefixtures("no_ssh")
@pytest.mark.parametrize(("job", "program"), [(kubexec, "kubectl"), (kubexec, "ddlrun"), (lsf, "ddlrun")])
def test_a_kill_leaves_nothing_behind(
    cluster: Cluster, job: Callable[[Cluster, Path], dict[str, str]], program: str, tmp_path: Path
) -> None:
    before = cluster.processes("h1", "h2", "h3")
    argv = [*launch_argv(cluster, OWN, tmp_path, job(cluster, tmp_path)), "stay"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline().strip() for _ in RANKS) == RANKS
        pids = [process.pid] if program == "ddlrun" else find_processes(cluster, f"{tmp_path}/{program}")
        assert len(pids) == (1 if program == "ddlrun" else len(PODS))
        os.kill(pids[0], signal.SIGKILL)
        errors = process.communicate()[1]
    code = -signal.SIGKILL if program == "ddlrun" else EXIT_UNREACHABLE
    assert process.returncode == code, errors
    wait_until(lambda: cluster.processes("h1", "h2", "h3") <= before)


def find_processes(cluster: Cluster, program: str) -> list[int]:
    """Return the processes of a program on h1."""
    return [pid for pid in cluster.processes("h1") if program in command_line(pid).split("\0")]


def test_the_second_version_of_the_operator_waits_for_names(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    names = {host: f"job-worker-{host}.job.some-name-space.svc" for host in ("h2", "h3")}
    (tmp_path / "hostfile").write_text("".join(f"{name} slots=2\n" for name in names.values()))
    environ = {"OMPI_MCA_orte_default_hostfile": f"{tmp_path}/hostfile"}
    late = launch(cluster, mpirun, tmp_path, environ, "--start-timeout", "1", root=False)
    assert late.returncode == 3
    assert "no such name after 1 s; see whether their pods run: kubectl get pods" in late.stderr
    files = [cluster.folder / host.name / "hosts" for host in cluster.hosts]
    before = files[0].read_text()
    known = cluster.known_hosts("h1")
    keys = [line.split(" ", 1)[1] for line in known.read_text().splitlines() if line.startswith(("h2,", "h3,"))]
    known.write_text(
        known.read_text() + "".join(f"{name} {key}\n" for name, key in zip(names.values(), keys, strict=True))
    )
    addresses = {host.name: host.address for host in cluster.hosts}
    entries = "".join(f"{addresses[host]} {name}\n" for host, name in names.items())

    def appear() -> None:
        time.sleep(2)
        for file in files:
            file.write_text(before + entries)

    dns = threading.Thread(target=appear)
    dns.start()
    try:
        done = launch(cluster, mpirun, tmp_path, environ, root=False)
    finally:
        dns.join()
        for file in files:
            file.write_text(before)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, RANKS), done.stderr
