"""torch.distributed's process groups of the grid, and tensors on devices, under both versions of Open MPI."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

import torch

from ddlrun.ddl.group.flat import flatten, stage
from ddlrun.ddl.transports.nccl.process_groups import GpuSupport, explain_no_nccl
from ddlrun.ddl.transports.tcp.own_host import find_rendezvous_address
from ddlrun.keeper.program import HOOK
from tests.ddl.test_mpi import started

RANKS = Path(__file__).parent / "groups_ranks.py"
pytestmark = pytest.mark.extra
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize(
    ("major", "subject", "ranks"),
    [
        (5, "groups", 8),
        (4, "simulated", 3),
        pytest.param(5, "gpus", 2, marks=NO_GPU),
        pytest.param(5, "nccl", 8, marks=NO_GPU),
    ],
    indirect=["major"],
)
def test_sums_over_groups_and_of_tensors_on_devices(mpirun: str, subject: str, ranks: int) -> None:
    """The start-up hook of ranks waits at the end for gloo's threads, of which one may abort the process otherwise."""
    done = started(mpirun, ranks, str(RANKS), subject, PYTHONPATH=f"{HOOK}:{os.environ.get('PYTHONPATH', '')}")
    assert (done.returncode, done.stdout.strip()[-7:]) == (0, "0 wrong"), done.stdout + done.stderr


def test_a_single_learner_has_groups_too() -> None:
    code = (
        "from ddlrun import ddl\nfrom ddlrun.ddl import torch as t\n"
        "with ddl.init(''): print(t.process_group('YZ').size(), t.device_mesh().shape)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI"))}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "1 (1, 1, 1)\n", done.stderr


def test_rank_0s_address_is_in_the_jobs_network() -> None:
    assert find_rendezvous_address({"MASTER_ADDR": "there", "GLOO_SOCKET_IFNAME": "lo"}, one_host=False) == "there"
    assert find_rendezvous_address({"GLOO_SOCKET_IFNAME": "nothing,lo"}, one_host=False) == "127.0.0.1"
    assert find_rendezvous_address({"NCCL_SOCKET_IFNAME": "=lo:1"}, one_host=False) == "127.0.0.1"
    elsewhere = find_rendezvous_address({"NCCL_SOCKET_IFNAME": "^lo"}, one_host=True)
    assert socket.getaddrinfo(elsewhere, None)


def test_nccl_needs_a_gpu_for_each_rank() -> None:
    first, second = GpuSupport(nccl=True, gpu="first"), GpuSupport(nccl=True, gpu="second")
    assert explain_no_nccl([first, second]) == ""
    assert explain_no_nccl([first, GpuSupport(nccl=True, gpu="")]) == "rank 1 has no GPU"
    assert explain_no_nccl([first, GpuSupport(nccl=False, gpu="second")]) == "torch has no NCCL on rank 1"
    assert explain_no_nccl([second, first, first]).startswith(
        "ranks 1 and 2 are on one GPU; call torch.cuda.set_device("
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_staged_tensors_are_written_back(dtype: torch.dtype) -> None:
    tensors = [torch.arange(12).to(dtype).reshape(3, 4).T, torch.tensor(5).to(dtype), torch.empty(0, dtype=dtype)]
    before = [tensor.clone() for tensor in tensors]
    for staged, tensor in zip(stage(tensors), tensors, strict=True):
        assert (staged.dtype, staged.shape) == (str(dtype).removeprefix("torch."), tensor.shape)
        tensor.zero_()
        staged.write_back()
    assert all(torch.equal(tensor, old) for tensor, old in zip(tensors, before, strict=True))


@NO_GPU
def test_staged_tensors_are_written_back_to_a_gpu() -> None:
    tensor = torch.arange(10**6, device="cuda")
    staged = flatten(tensor)
    staged.elements[:] += 1
    staged.write_back()
    assert torch.equal(tensor.cpu(), torch.arange(10**6) + 1)
