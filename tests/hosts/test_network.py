"""Measurement of networks: racks behind shaped uplinks, links and collectives; hosts are network namespaces."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddlrun.hosts import parse_hostfile
from ddlrun.network.fabric import parse_fabric
from tests.cluster import slurm
from tests.cluster.cluster import Cluster
from tests.conftest import MPIRUNS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.busy, pytest.mark.extra]

ROOT = Path(__file__).parents[2]
DDLRUN = [sys.executable, "-m", "ddlrun"]


def racks_of(cluster: Cluster) -> set[frozenset[str]]:
    return {frozenset(other.name for other in cluster.hosts if other.rack == host.rack) for host in cluster.hosts}


def certain_racks(cluster: Cluster, argv: list[str], hostfile: Path) -> dict[str, Any]:
    """Measure the racks; return nothing where they are reported as not certain, as they may be with busy cores."""
    done = cluster.run("h1", [*argv, "--json", "-o", str(hostfile)], cwd=ROOT, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert (result["certain"], result["racks"] is not None, hostfile.exists()) == (done.returncode == 0,) * 3
    return result if result["certain"] else {}


# Uplinks as fast as a NIC: a pair alone is as fast across racks as inside one. The links are slow, so that busy cores
# do not slow the pairs down, and their buckets small: to empty a large one takes a busy core longer than to measure.
# Slurm's hosts below are 2x2.
@pytest.mark.parametrize(("per_rack", "racks", "major"), [(2, 3, 5), (3, 2, 4), (4, 1, 5)], ids=["2x3", "3x2", "flat"])
def test_racks_are_found_in_any_order_of_hosts(per_rack: int, racks: int, major: int, tmp_path: Path) -> None:
    uplink = "20mbit" if racks > 1 else None
    with Cluster(per_rack, racks, nic="20mbit", uplink=uplink, bucket="32kb") as cluster:
        names = [host.name for host in cluster.hosts]
        random.Random(per_rack * racks).shuffle(names)  # noqa: S311 - a test's
        argv = [*DDLRUN, "network", "racks", ",".join(names), "--mpirun", MPIRUNS[major], "--checks", "none"]
        result = wait_until(lambda: certain_racks(cluster, argv, tmp_path / "hosts"))
        assert set(map(frozenset, result["racks"])) == racks_of(cluster)
        assert result["topology"] == f"Xx{per_rack}x{racks}"
        assert len(result["levels"]) == (1 if racks > 1 else 0)
    hosts = parse_hostfile((tmp_path / "hosts").read_text(), "hosts")
    assert [(host.name, host.rack) for host in hosts] == [
        (name, f"r{number}") for number, rack in enumerate(result["racks"], 1) for name in rack
    ]


@pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
def test_racks_are_those_of_slurm(tmp_path: Path) -> None:
    with slurm.SlurmCluster(2, 2, link="20mbit") as cluster:
        racks = shlex.join([*DDLRUN, "network", "racks", "--checks", "none", "--mpirun", MPIRUNS[4]])
        script = f"until {racks}; do test $? = 1 || exit; done"
        job = cluster.submit(script, "-N4", f"--output={tmp_path}/out", cwd=ROOT)
        cluster.wait_for(job, "COMPLETED", timeout=300)
        cluster.wait_until_idle()
    output = (tmp_path / "out").read_text()
    assert f"racks of Slurm job {job} (SLURM_JOB_NODELIST): the same\n" in output
    assert "4 hosts in 2 racks" in output


def bench(cluster: Cluster | None, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [*DDLRUN, "network", "bench", "--checks", "none", *options]
    environ = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1"}
    if cluster is not None:
        return cluster.run("h1", argv, cwd=ROOT, env=environ, timeout=300)
    return subprocess.run(argv, cwd=ROOT, env=environ, timeout=300, capture_output=True, text=True, check=False)


def check_complete(result: dict[str, Any], cells: int) -> None:
    """Assert that every cell is measured with a correct result, or listed as left out."""
    assert len(result["measured"]) + len(result["skipped"]) == cells
    assert all(row["correct"] and row["seconds"] > 0 for row in result["measured"])
    assert {row["collective"] for row in result["measured"]} == {
        "allreduce", "reduce_scatter", "allgather", "broadcast",
    }  # fmt: skip


def test_bench_of_one_host_and_its_plot(tmp_path: Path) -> None:
    words = ["--ranks-per-host", "2", "--budget", "6s", "--sizes", "8B,64KiB", "--mpirun", MPIRUNS[5]]
    done = bench(None, *words, "--json", "--plot", f"{tmp_path}/bus.svg")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["links"]) == ["host"]
    check_complete(result, 2 * (3 * 7 + 2))
    assert "<svg" in (tmp_path / "bus.svg").read_text()


def test_wrong_or_unknown_racks_give_a_note() -> None:
    with Cluster(2, 2, nic="40mbit", uplink="5mbit") as cluster:  # busy cores do not change which is faster
        words = ["h1,h3,h2,h4", "--mpirun", MPIRUNS[5], "--modes", "m", "--sizes", "8B", "--budget", "5s"]
        unknown = bench(cluster, *words, "--ranks-per-host", "1")
        wrong = bench(cluster, *words, "--topology", "1x2x2")
    assert unknown.stderr.count("hosts are unknown, so they count as one rack; ddlrun network racks") == 1
    assert wrong.stderr.count("times as fast as a pair inside a rack: the declared racks are probably wrong") == 1


def test_bench_measures_the_links_that_plan_reads(tmp_path: Path) -> None:
    with Cluster(2, 2, nic="100mbit", uplink="100mbit") as cluster:
        words = [
            "h1,h2,h3,h4",
            "--topology",
            "1x2x2",
            "--mpirun",
            MPIRUNS[4],
            "--modes",
            "r",
            "--sizes",
            "8B,64KiB,4GiB",
        ]
        done = bench(cluster, *words, "--budget", "20s", "--save-links", f"{tmp_path}/links.yaml", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    check_complete(result, 3 * (3 * 2 + 2))
    assert {size for *_, size in result["skipped"]} >= {4 * 2**30}
    fabric = parse_fabric((tmp_path / "links.yaml").read_text(), "links")
    _, nic, uplink, _ = (8 * link.bandwidth / 1e6 for link in fabric.links)
    assert 20 < nic < 120  # Mbit/s; shapers let a burst pass at line rate, and busy cores slow the hosts down
    assert 20 < uplink < 120
    assert fabric.hosts_per_rack == 2
    plan = subprocess.run(
        [*DDLRUN, "network", "plan", "--topology", "1x2x2", "--links", f"{tmp_path}/links.yaml"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "measured, ddlrun network bench" in plan.stdout


def test_launch_uses_the_profile_that_tune_found(tmp_path: Path) -> None:
    with Cluster(2, 2, nic="100mbit", uplink="50mbit") as cluster:
        environ = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1", "XDG_STATE_HOME": str(tmp_path)}
        words = ["--allow-run-as-root", "--checks", "none", "--mpirun", MPIRUNS[5], "--ranks-per-host", "1"]

        def run(*argv: str) -> subprocess.CompletedProcess[str]:
            return cluster.run("h1", [*DDLRUN, *argv], cwd=ROOT, env=environ, timeout=300)

        names = [host.name for host in cluster.hosts]
        more = ["--gradient", "512KiB", "--budget", "15s", "--no-horovod"]
        done = run("network", "tune", ",".join(names), *words, *more, "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        best = result["best"]
        assert {row["topology"] for row in result["measured"]} == {"1x4x1", "1x2x2"}  # both decompositions of 4 hosts
        assert {"nic"} <= result["links"].keys()
        assert best["seconds"] <= result["default_seconds"]
        program = ["--ranks", "0", "--output", "no-tag", "printenv", "DDL_OPTIONS", "DDLRUN_DDL_TUNING"]
        launched = run("launch", "-H", ",".join(names), *words, *program)
        best_options = f"-mode {best['mode']}:{best['topology']}"
        assert launched.stdout.splitlines() == [best_options, best["tuning"]]
        assert f"gives {best['topology']}, mode {best['mode']}, {best['tuning']};" in launched.stderr
        without = run("launch", "-H", ",".join(names), *words, "--profile", "none", *program)
        assert without.stdout.splitlines() == ["-mode p:1x4x1"]
        assert "the profile of" not in without.stderr
        others = run("launch", "-H", ",".join(names[:2]), *words, *program)
        assert others.stdout.splitlines() == ["-mode p:1x2x1"]


def test_an_interrupt_ends_everything(tmp_path: Path) -> None:
    begin = ["env", "--default-signal=INT", *DDLRUN]  # shells start background processes that ignore it
    words = [*begin, "network", "bench", "--ranks-per-host", "2", "--budget", "60s", "--json"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    job = subprocess.Popen(words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    mine = f"ddlrun.measure bench {json.dumps({'budget': 60.0})[:-1]}"
    until = time.monotonic() + 60
    while not running(mine) and time.monotonic() < until:
        time.sleep(0.2)
    assert running(mine)
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=300)
    assert (job.returncode, errors.strip()) == (130, "ddlrun: interrupted; no results are saved")
    assert not running(mine)
    assert not [*(tmp_path / "ddlrun" / "runs").iterdir()]


def test_a_failed_job_prints_the_reason_and_keeps_its_folder(tmp_path: Path) -> None:
    words = [*DDLRUN, "network", "bench", "--ranks-per-host", "2", "--mpirun", MPIRUNS[5], "--checks", "none"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMPI_MCA_pml": "nosuch"}
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=300)
    (folder,) = (tmp_path / "ddlrun" / "runs").iterdir()
    assert done.returncode not in (0, 130)
    assert f"logs: {folder}" in done.stderr
    # A rank may end before Open MPI has passed its explanation on to mpirun, but what mpirun writes is printed.
    assert "An error occurred in MPI_Init" in done.stderr
    assert ("Component: nosuch" in done.stderr) == ("Component: nosuch" in (folder / "mpirun.log").read_text())


def running(words: str) -> list[str]:
    """Return the processes whose command line contains `words`."""
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if words in line]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["network", "racks", "h1,h2"], "hosts: 2 of at least 4 hosts; fewer cannot load an uplink"),
        (["network", "bench", "--modes", "x"], "--modes 'x': write some of rbnmcp"),
        (["network", "bench", "--plot", "a.pdf"], "--plot a.pdf: name a file that ends in .svg or .png"),
        (
            ["network", "bench", "--save-links", "a.yaml"],
            "--save-links: this machine has one host, and no link",
        ),
        (["network", "bench", "--budget", "9x"], "--budget: '9x' is not a time"),
    ],
)
def test_an_error_of_measuring_is_one_line(words: list[str], problem: str) -> None:
    done = subprocess.run([*DDLRUN, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
