"""Daemons that neither ssh nor srun starts: stand-ins of kubexec.sh and blaunch enter the test cluster's hosts."""

import json
import os
import shlex
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.conftest import launch_line
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.extra

TELL = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
print(world.rank, os.uname().nodename, *sorted(os.sched_getaffinity(0)), world.allreduce(1), flush=True)
"""
RANKS = ["0 h2 0 4", "1 h2 1 4", "2 h3 0 4", "3 h3 1 4"]


def launch(
    cluster: Cluster, mpirun: str, folder: Path, environ: dict[str, str], *options: str, root: bool = True
) -> subprocess.CompletedProcess[str]:
    """Launch on h1, the launcher's pod; root may use the programs of `agent`."""
    (folder / "script.py").write_text(TELL)
    line = launch_line(mpirun, folder, "--no-tag-output", "--quiet", *options, f"{folder}/script.py")
    variables = [f"{name}={value}" for name, value in environ.items()]
    argv = (cluster.root_argv if root else cluster.argv)("h1", ["env", *variables, *line], cwd=folder)
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE)


def agent(cluster: Cluster, file: Path, begin: str, end: str) -> None:
    """Write a program that takes a host and words, and has a shell there join and run them."""
    cases = "".join(
        f'{host}) exec {shlex.join(cluster.login_argv(host, ["/bin/sh", "-c"], cwd=Path("/")))} "$*" {end} ;;\n'
        for host in ("h2", "h3")
    )
    file.write_text(f"#!/bin/sh\n{begin}\nhost=$1\nshift\ncase $host in\n{cases}esac\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def no_ssh(cluster: Cluster) -> Iterator[None]:
    with cluster.stopped("h2", "h3"):
        yield


@pytest.mark.usefixtures("no_ssh")
def test_the_first_version_of_the_operator(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    """Its kubexec.sh is `kubectl exec POD -- /bin/sh -c "$*"`: no standard input goes there."""
    agent(cluster, tmp_path / "kubexec.sh", "set -x", "</dev/null")
    (tmp_path / "hostfile").write_text("h2 slots=2\nh3 slots=2\n")
    done = launch(cluster, mpirun, tmp_path, {
        "OMPI_MCA_orte_default_hostfile": f"{tmp_path}/hostfile",
        "OMPI_MCA_plm_rsh_agent": f"{tmp_path}/kubexec.sh",
    })  # fmt: skip
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, RANKS), done.stderr


@pytest.mark.usefixtures("no_ssh")
def test_lsf_by_blaunch(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    agent(cluster, tmp_path / "blaunch", "", "")
    (tmp_path / "hosts").write_text("batch01\nh2\nh2\nh3\nh3\n")
    (tmp_path / "affinity").write_text("h2 1 0 1\nh2 0 0 1\nh3 1 0 1\nh3 0 0 1\n")
    done = launch(cluster, mpirun, tmp_path, {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "LSB_JOBID": "12", "LSB_DJOB_HOSTFILE": f"{tmp_path}/hosts",
        "LSB_AFFINITY_HOSTFILE": f"{tmp_path}/affinity",
    })  # fmt: skip
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, RANKS), done.stderr
    assert done.stderr == ""
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["reasons"]["launcher"] == "blaunch: LSF job 12"
    assert "batch01 only launches: it gets no rank" in plan["notes"]


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
