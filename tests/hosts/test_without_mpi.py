"""Distributed data parallel training over three hosts on which there is no MPI: neither programs nor libraries."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.support import needs
from tests.support.waiting import PATIENCE
from tests.support.without_mpi import make_environment

pytestmark = [pytest.mark.extra, pytest.mark.busy]
HOSTS = ("h1", "h2", "h3")
MPI_PROGRAMS = ("mpirun", "mpiexec", "orted", "prted", "mpirun.openmpi", "mpiexec.openmpi")
MPI_LIBRARIES = ("libmpi.so.40", "libmpi.so.12", "libmpi.so")
TRAIN = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
before = model.module.weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model(torch.full((1, 2), rank + 1.0)).sum().backward()
optimizer.step()
step = (before - model.module.weight.detach()).flatten().tolist()
libraries = [line for line in open("/proc/self/maps") if "libmpi.so" in line]
os.write(1, f"{rank} {os.uname().nodename} {dist.get_world_size()} {step} {len(libraries)}\\n".encode())
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the Python of an environment with ddlrun and PyTorch, and without an MPI."""
    needs.package("torch", "torch==2.13.0")
    made = make_environment(Path(sys.executable), tmp_path_factory.mktemp("venv"))
    # Three ranks at once would each compile what none of them has found.
    subprocess.run([made, "-c", "import torch.nn.parallel, torch._dynamo"], check=True)
    return made


@pytest.fixture
def hosts(cluster: Cluster) -> Iterator[Cluster]:
    """Provide hosts whose MPI programs and libraries are hidden."""
    programs = [shutil.which(name, path="/usr/bin:/usr/local/bin") for name in MPI_PROGRAMS]
    libraries = [path for name in MPI_LIBRARIES for path in Path("/usr/lib").glob(f"*/{name}")]
    hidden = {Path(path).resolve() for path in (*programs, *libraries) if path is not None}
    with ExitStack() as stack:
        for host in HOSTS:
            for path in hidden:
                cluster.administer(host, ["mount", "--bind", "/dev/null", str(path)])
                stack.callback(cluster.administer, host, ["umount", str(path)])
        yield cluster


def test_ddp_over_three_hosts_without_an_mpi(hosts: Cluster, python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    launch = [
        "-m",
        "ddlrun",
        "launch",
        "--verbose",
        "--output",
        "no-tag",
        "--heartbeat",
        "300",
        "--start-timeout",
        "300",
    ]
    job = ["-H", "h1:1,h2:1,h3:1", "--run-dir", f"{tmp_path}/run", "train.py"]
    line = ["env", f"PATH={python.parent}:/usr/bin:/bin", str(python), *launch, *job]
    done = hosts.run("h1", line, cwd=tmp_path, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    lines = [f"{rank} {host} 3 [2.0, 2.0] 0" for rank, host in enumerate(HOSTS)]  # the mean of 1, 2 and 3
    assert sorted(done.stdout.splitlines()) == lines
    assert "mpirun:     none, ddlrun starts the ranks itself: no mpirun is installed" in done.stderr.splitlines()
