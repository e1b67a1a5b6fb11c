"""Launches over two hosts with different numbers of ranks, which need neither root nor anything from apt."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.two_hosts import TwoHosts
from tests.conftest import launch_line, need_horovod
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
# Each rank checks reductions of the runtime library, and prints what it knows of its place as a line of JSON.
PLACE = """
import json, os, sys
import numpy as np
from ddlrun import ddl
names = "RANK LOCAL_RANK LOCAL_WORLD_SIZE WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE".split()
wholes = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
with ddl.init(tuning="chunk=64K,depth=4,explore=0"):
    size, me = ddl.size(), ddl.rank()
    for count in (1, 5, 6, 7, 1009, 100_003):
        for op, whole in wholes.items():
            rows = [1 + np.arange(count) % 5 + rank for rank in range(size)]
            assert np.allclose(ddl.all_reduce(rows[me].astype(np.float64), op), whole(rows, axis=0)), (count, op)
    line = {
        "host": os.uname().nodename, "torch": [int(os.environ[name]) for name in names],
        "tensorflow": json.loads(os.environ["TF_CONFIG"]), "cpus": sorted(os.sched_getaffinity(0)),
        "ddl": [me, ddl.local_rank(), ddl.local_size(), size, ddl.num_hosts()], "coords": ddl.coords(),
    }
    sys.stdout.write(json.dumps(line) + "\\n")
    sys.stdout.flush()
"""


def launch(hosts: TwoHosts, mpirun: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a launch on h1 to its end."""
    line = launch_line(mpirun, folder, "--output", "no-tag", *words)
    argv = hosts.argv("h1", line)
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE
    )  # fmt: skip


def places(output: str) -> list[dict[str, Any]]:
    """Return the lines of PLACE, by rank."""
    return sorted(map(json.loads, output.splitlines()), key=lambda place: int(place["ddl"][0]))


@pytest.mark.parametrize(
    ("sizes", "words", "dims"),
    [
        ((2, 1), ["-H", "h1:2,h2:1"], (1, 3)),
        ((4, 2), ["-H", "h1:4,h2:2", "-np", "6"], (2, 3)),
        pytest.param((1, 4), ["-H", "h1:1,h2:4"], (1, 5), marks=pytest.mark.extra),
    ],
)
def test_ranks_know_their_places(
    hosts: TwoHosts, mpirun: str, tmp_path: Path, sizes: tuple[int, int], words: list[str], dims: tuple[int, int]
) -> None:
    (tmp_path / "place.py").write_text(PLACE)
    patient = ["--env", "OMPI_MCA_mpi_yield_when_idle=1"]
    frameworks = ["--framework", "torch,tensorflow,ddl"]
    done = launch(hosts, mpirun, tmp_path, *frameworks, *patient, *words, str(tmp_path / "place.py"))
    assert done.returncode == 0, done.stderr
    assert f"{sizes[0]}+{sizes[1]}: {sum(sizes)} ranks on h[1-2] (" in done.stderr
    found = places(done.stdout)
    expected = [(host, local_rank) for host, ranks in enumerate(sizes) for local_rank in range(ranks)]
    assert [place["host"] for place in found] == [f"h{host + 1}" for host, _ in expected]
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    for rank, (place, (host, local_rank)) in enumerate(zip(found, expected, strict=True)):
        assert place["torch"] == [rank, local_rank, sizes[host], sum(sizes), host, 2]
        assert place["ddl"] == [rank, local_rank, sizes[host], sum(sizes), 2]
        assert place["coords"] == [rank % dims[0], rank // dims[0], 0]
        assert place["tensorflow"]["task"] == {"type": "worker", "index": rank}
        workers = place["tensorflow"]["cluster"]["worker"]
        # By name where the interfaces were not up yet when ddlrun looked for the network of the hosts.
        for worker, (at, _) in zip(workers, expected, strict=True):
            assert worker.partition(":")[0] in (f"10.77.0.{at + 1}", f"h{at + 1}"), workers
        assert len(set(workers)) == sum(sizes)
        assert (plan["ranks"][rank]["host"], plan["ranks"][rank]["local_rank"]) == (f"h{host + 1}", local_rank)
    binding = json.loads((tmp_path / "run" / "binding.json").read_text())
    assert (binding["reported"], binding["different"]) == (sum(sizes), [])


def test_ddl_knows_racks_that_the_topology_does_not_have(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "place.py").write_text(PLACE)
    (tmp_path / "hosts").write_text("h1 slots=2 rack=a\nh2 slots=1 rack=b\n")
    words = ["--env", "OMPI_MCA_mpi_yield_when_idle=1", "--env", "DDL_OPTIONS=-dbg_level 1"]
    done = launch(hosts, mpirun, tmp_path, *words, "--hostfile", str(tmp_path / "hosts"), str(tmp_path / "place.py"))
    assert done.returncode == 0, done.stderr
    assert "blocks are sized by the links; hosts by rack: 1+1\n" in done.stderr
    assert len(places(done.stdout)) == 3


def test_a_rank_file_of_unequal_hosts_and_a_failed_rank(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("rank 0=h1 slot=0:0\nrank 1=h2 slot=0:0\nrank 2=h2 slot=0:1\n")
    words = ["--rankfile", str(tmp_path / "mine"), "sh", "-c", "exit $((OMPI_COMM_WORLD_RANK == 2 ? 7 : 0))"]
    done = launch(hosts, mpirun, tmp_path, *words)
    assert done.returncode == 7, done.stderr
    assert "1+2: 3 ranks on h[1-2] (--rankfile " in done.stderr
    assert "failed: rank 2 on h2 (local rank 1): exit code 7" in done.stderr


@pytest.mark.parametrize("words", ["-np 3 --host h1:2,h2:2", "-np 3 --host h1:2,h2:1", "-np 1 --host h1:2,h2:1"])
@pytest.mark.extra
def test_np_fills_hosts_as_mpirun_does(hosts: TwoHosts, mpirun: str, tmp_path: Path, words: str) -> None:
    where = ["sh", "-c", "echo $OMPI_COMM_WORLD_RANK $(uname -n)"]
    argv = hosts.argv("h1", [mpirun, "--map-by", "slot", *words.split(), *where])
    theirs = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout
    ours = launch(hosts, mpirun, tmp_path, *words.split(), *where)
    assert (ours.returncode, sorted(ours.stdout.splitlines())) == (0, sorted(theirs.splitlines())), ours.stderr


def test_measurements_want_equal_hosts(hosts: TwoHosts, tmp_path: Path) -> None:
    argv = hosts.argv("h1", [sys.executable, "-m", "ddlrun", "network", "bench", "h1:2,h2:1", "--allow-run-as-root"])
    done = subprocess.run(
        argv, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 2
    assert "the hosts have different numbers of ranks (2+1); give them all the same: --ranks-per-host N" in done.stderr


@pytest.mark.extra
def test_every_collective_on_unequal_hosts(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    ranks = ROOT / "tests" / "ddl" / "allreduce_ranks.py"
    patient = ["--env", "OMPI_MCA_mpi_yield_when_idle=1", "--env", f"PYTHONPATH={ROOT}"]
    done = launch(hosts, mpirun, tmp_path, "-H", "h1:4,h2:2", *patient, str(ranks), "--quick", "2x3x1")
    assert (done.returncode, done.stdout.strip()[-7:]) == (0, "0 wrong"), done.stdout + done.stderr


TORCH = """
import sys
import torch
from torch import distributed
distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
torch.nn.init.ones_(model.module.weight)
model(torch.full((1, 3), float(rank))).sum().backward()
gradient = model.module.weight.grad
assert torch.allclose(gradient, torch.full_like(gradient, (size - 1) / 2)), gradient
sys.stdout.write(f"{rank} of {size}\\n")
distributed.destroy_process_group()
"""


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_torch_trains_on_unequal_hosts(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TORCH)
    done = launch(hosts, mpirun, tmp_path, "-H", "h1:2,h2:1", str(tmp_path / "train.py"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 of 3", "1 of 3", "2 of 3"]


BACKEND = """
import sys
import torch
import torch.distributed as dist
import ddlrun.ddl.torch
dist.init_process_group("ddl")
rank, size = dist.get_rank(), dist.get_world_size()
for count in (1, 2, 5, 1009, 100_003):
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
        rows = torch.stack([torch.arange(count, dtype=torch.float64) % 7 + other for other in range(size)])
        reduced = rows[rank].clone()
        dist.all_reduce(reduced, op)
        assert torch.equal(reduced, rows.sum(0) if op == dist.ReduceOp.SUM else rows.max(0).values), (count, op)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
model(torch.full((1, 3), float(rank))).sum().backward()
assert torch.allclose(model.module.weight.grad, torch.full((1, 3), (size - 1) / 2))
dist.destroy_process_group()
sys.stdout.write(f"{rank} of {size}\\n")
"""


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_the_backend_ddl_reduces_on_unequal_hosts(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(BACKEND)
    (tmp_path / "hosts").write_text("h1 slots=3 rack=a\nh2 slots=1 rack=b\n")
    words = ["--framework", "torch", "--hostfile", str(tmp_path / "hosts"), str(tmp_path / "train.py")]
    done = launch(hosts, mpirun, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 4" for rank in range(4)]


HOROVOD = """
import sys
import horovod.torch as hvd
import torch
hvd.init()
total = hvd.allreduce(torch.full((3,), float(hvd.rank())), op=hvd.Sum)
assert total.tolist() == [3.0] * 3, total
sys.stdout.write(f"{hvd.rank()} {hvd.local_rank()}/{hvd.local_size()} {hvd.cross_rank()}/{hvd.cross_size()}\\n")
hvd.shutdown()
"""


@pytest.mark.extra
@pytest.mark.openmpi(4)
def test_horovod_finds_unequal_hosts_by_itself(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    """A local rank that only some hosts have counts those hosts alone, as Horovod documents cross_size."""
    need_horovod()
    (tmp_path / "train.py").write_text(HOROVOD)
    words = ["-H", "h1:2,h2:1", "-np", "3", "--hierarchical-allreduce", str(tmp_path / "train.py")]
    done = launch(hosts, mpirun, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 0/2 0/2", "1 1/2 0/1", "2 0/1 1/2"]
    assert "--hierarchical-allreduce has no effect: " in done.stderr
    assert "the hosts have different numbers of ranks" in done.stderr
