"""The test cluster behaves like several machines, and leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.namespaces import ClusterError
from tests.support.waiting import wait_until

RANKS = [sys.executable, str(Path(__file__).with_name("allreduce_ranks.py"))]
RANK_FILE = "rank 0=h1 slot=0:0\nrank 1=h2 slot=0:1\n"
TEMPORARY = Path(tempfile.gettempdir())


def mapping(major: int, mpirun: str, folder: Path) -> list[str]:
    """Write rank file and hostfile; return mpirun and the options that use them."""
    (folder / "ranks").write_text(RANK_FILE)
    (folder / "hosts").write_text("h1 slots=1\nh2 slots=1\n")
    if major == 4:
        return [mpirun, "--rankfile", f"{folder}/ranks"]
    return [mpirun, "--hostfile", f"{folder}/hosts", "--map-by", f"rankfile:file={folder}/ranks"]


def alive(pid: int) -> bool:
    """Return whether a process still runs; a dead one that init has yet to reap does not."""
    try:
        return ") Z " not in Path("/proc", str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_plain_ssh_prints_the_other_hosts_name(cluster: Cluster) -> None:
    done = cluster.run("h1", ["ssh", "h2", "hostname"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "h2\n", "")


@pytest.mark.extra
def test_command_runs_in_the_given_folder(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.run("h2", ["pwd"], cwd=tmp_path).stdout == f"{tmp_path}\n"


@pytest.mark.extra
def test_environment_can_be_replaced(cluster: Cluster) -> None:
    assert cluster.run("h2", ["/bin/sh", "-c", "echo $PATH"], env={"PATH": "/nothing"}).stdout == "/nothing\n"


@pytest.mark.extra
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core, and two ranks: a machine with two cores")
def test_mpirun_with_a_rank_file(cluster: Cluster, tmp_path: Path, major: int, mpirun: str) -> None:
    done = cluster.run("h1", [*mapping(major, mpirun, tmp_path), *RANKS])
    assert done.returncode == 0, done.stderr
    first, second = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda rank: int(rank["rank"]))
    assert (first["host"], first["sum"], second["host"], second["sum"]) == ("h1", 3, "h2", 3)
    assert set(first["cores"]).isdisjoint(second["cores"])


def test_stopped_host_refuses(cluster: Cluster) -> None:
    with cluster.stopped("h2"):
        refused = cluster.run("h1", ["ssh", "h2", "true"])
    assert "Connection refused" in refused.stderr
    assert cluster.run("h1", ["ssh", "h2", "true"]).returncode == 0


@pytest.mark.extra
def test_cut_host_times_out(cluster: Cluster) -> None:
    with cluster.cut("h2"):
        lost = cluster.run("h1", ["ssh", "-o", "ConnectTimeout=1", "h2", "true"])
    assert "Connection timed out" in lost.stderr
    assert cluster.run("h1", ["ssh", "h2", "true"]).returncode == 0


def test_a_host_that_was_cut_off_forgets_the_addresses_that_it_could_not_find(cluster: Cluster) -> None:
    neighbour = ["ip", "neigh", "show", "10.77.0.2"]
    cluster.administer("h1", ["ip", "neigh", "flush", "dev", "eth0"])
    with cluster.cut("h1"):
        cluster.run("h1", ["ssh", "-o", "ConnectTimeout=1", "h2", "true"])
        assert re.search("INCOMPLETE|FAILED", cluster.run("h1", neighbour, check=True).stdout)
    assert cluster.run("h1", neighbour, check=True).stdout == ""


@pytest.mark.extra
def test_unknown_host_key_is_refused(cluster: Cluster) -> None:
    unknown = cluster.run("h1", ["ssh", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "h2", "true"])
    assert "Host key verification failed" in unknown.stderr
    assert cluster.run("h1", ["ssh", "h2", "true"]).returncode == 0


@pytest.mark.extra
def test_uplink_counts_and_limits_what_crosses_racks() -> None:
    with Cluster(hosts_per_rack=1, racks=2, uplink="100mbit", nic="1gbit") as cluster:
        before = cluster.uplink_bytes(0)[0]
        cluster.run("h1", ["ssh", "h2", "cat >/dev/null"], stdin="x" * 4_000_000, check=True)
        assert 4_000_000 < cluster.uplink_bytes(0)[0] - before < 4_500_000
        assert cluster.uplink_delays(0) > 0


def test_down_leaves_nothing(cluster: Cluster) -> None:
    with Cluster(hosts_per_rack=2, racks=1) as other:
        other.run("h1", ["ssh", "h2", "setsid sleep 1000 >/dev/null 2>&1 &"], check=True)
        processes, folder = other.processes(), other.folder
    other.down()
    assert len(processes) >= 5  # two holders, two sshd, the one left behind, perhaps a session that ends
    wait_until(lambda: not [pid for pid in processes if alive(pid)])  # they have been killed, and are ending
    assert not folder.exists()
    assert cluster.run("h1", ["ssh", "h2", "true"]).returncode == 0


def test_failed_set_up_leaves_nothing(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ClusterError, match="nonsense"), Cluster(hosts_per_rack=2, racks=1, uplink="nonsense"):
        pass
    assert cluster.folder.exists()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_python_leaves_nothing(cluster: Cluster, tmp_path: Path, end: signal.Signals) -> None:
    program = """
        import os, signal, time
        from {module} import Cluster
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        with Cluster(hosts_per_rack=1, racks=1) as cluster:
            cluster.run("h1", ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], check=True)
            print(*cluster.processes(), flush=True)
            os.kill(os.getpid(), {end})
            time.sleep(60)
    """
    text = textwrap.dedent(program).format(module=Cluster.__module__, end=int(end))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(pids) >= 3, ended.stderr  # a holder, sshd, and sleep
    wait_until(lambda: not [pid for pid in pids if alive(pid)] and not [*tmp_path.iterdir()])
    assert cluster.folder.exists()
