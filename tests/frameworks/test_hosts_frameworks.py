"""Ranks of frameworks find each other over real hosts: namespaces of this machine."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, why_not
from tests.conftest import launch_line, need_horovod
from tests.mpi.test_frameworks import TELL, TOLD

pytestmark = [pytest.mark.openmpi(5), pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(hosts_per_rack=2, racks=1) as up:
        yield up


def told(out: str) -> list[dict[str, str]]:
    ranks = [dict(zip(TOLD, json.loads(line), strict=True)) for line in out.splitlines()]
    return sorted(ranks, key=lambda rank: int(rank["RANK"]))


@pytest.mark.parametrize("order", ["host", "ddl"])
def test_the_ranks_of_two_hosts(cluster: Cluster, mpirun: str, tmp_path: Path, order: str) -> None:
    argv = [*launch_line(mpirun, tmp_path, "--output", "no-tag"), "-H", "h1,h2", "--ranks-per-host", "core"]
    done = cluster.run("h1", [*argv, "--rank-order", order, sys.executable, "-c", TELL], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = told(done.stdout)
    one, two = (host.address for host in cluster.hosts)
    port = int(ranks[0]["MASTER_PORT"])
    places = [(0, 0), (0, 1), (1, 0), (1, 1)] if order == "host" else [(0, 0), (1, 0), (0, 1), (1, 1)]
    workers = [f"{(one, two)[host]}:{port + 2 + local_rank}" for host, local_rank in places]
    for number, (rank, (host, local_rank)) in enumerate(zip(ranks, places, strict=True)):
        assert (rank["RANK"], rank["GROUP_RANK"], rank["LOCAL_RANK"]) == (str(number), str(host), str(local_rank))
        assert (rank["WORLD_SIZE"], rank["GROUP_WORLD_SIZE"], rank["LOCAL_WORLD_SIZE"]) == ("4", "2", "2")
        assert (rank["MASTER_ADDR"], rank["JAX_COORDINATOR_ADDRESS"]) == (one, f"{one}:{port + 1}")
        assert json.loads(rank["TF_CONFIG"]) == {
            "cluster": {"worker": workers}, "task": {"type": "worker", "index": number},
        }  # fmt: skip


def test_rank_0s_host_is_not_where_ddlrun_runs(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    argv = [*launch_line(mpirun, tmp_path, "--output", "no-tag"), "-H", "h2:1", sys.executable, "-c", TELL]
    done = cluster.run("h1", argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert told(done.stdout)[0]["MASTER_ADDR"] in ("h2", cluster.hosts[1].address)


def test_torch_meets_over_two_hosts(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    script = tmp_path / "all_reduce.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "sum = torch.ones(3) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(sum)\n"
        "os.write(1, f'{os.uname().nodename} {dist.get_rank()} {sum.tolist()}\\n'.encode())\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    argv = [*launch_line(mpirun, tmp_path, "--output", "no-tag"), "-H", "h1:1,h2:1", str(script)]
    done = cluster.run("h1", argv, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["h1 0 [3.0, 3.0, 3.0]", "h2 1 [3.0, 3.0, 3.0]"]


def test_hierarchical_allreduce_of_cpu_tensors_is_mpis_own(
    cluster: Cluster, mpirun: str, tmp_path: Path, major: int
) -> None:
    need_horovod()
    (tmp_path / "train.py").write_text(
        "import os, torch\nimport horovod.torch as hvd\n"
        "hvd.init()\n"
        "for size in (1000, 1 << 18, 1 << 20):\n"
        "    values = torch.full((size,), hvd.rank() + 1.0)\n"
        "    assert (hvd.allreduce_(values, op=hvd.Sum) == 10).all()\n"
        "os.write(1, f'{hvd.rank()} {hvd.local_rank()} {hvd.cross_rank()} {os.uname().nodename}\\n'.encode())\n"
        "hvd.shutdown()\n"
    )
    argv = [
        *launch_line(mpirun, tmp_path, "--output", "no-tag", "--ranks-per-host", "core", "--hierarchical-allreduce")
    ]
    argv += ["--mpi-args", "--mca mpi_yield_when_idle 1 --mca coll_base_verbose 10"]
    argv += ["-np", "4", "-H", "h1:2,h2:2", "python", "train.py"]  # horovodrun's own words
    # As in an environment that is activated: ssh to h2 finds no such python by itself.
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = cluster.run("h1", argv, cwd=tmp_path, env=environ, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 0 0 h1", "1 1 0 h1", "2 0 1 h2", "3 1 1 h2"]
    own = "Horovod's own has no effect (horovod.torch is built without NCCL); Open MPI's coll/han "
    on = "is switched on instead" if major == 4 else "is on by itself"
    assert f"ddlrun: note: --hierarchical-allreduce: {own}{on}\n" in done.stderr
    assert "selecting" in done.stderr
    assert "han, priority" in done.stderr.replace("         ", " ")
