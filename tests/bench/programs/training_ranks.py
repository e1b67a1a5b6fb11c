"""A rank of tests.bench.training: times steps of PyTorch over two backends in turn.

    training_ranks.py PLAN

PLAN is JSON: {"layers": N, "width": N, "rounds": N}. Rank 0 prints a JSON line per program.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["GLOO_SOCKET_IFNAME"] = "eth0"

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import ddlrun.ddl.torch  # noqa: F401 - it registers the backend

BATCH, RATE = 4, 0.01
PROGRAMS = ("ddp", "fsdp", "zero-1")
Step = Callable[[], float]


def make_step(program: str, group: Any, plan: dict[str, int]) -> Step:
    """Return a training step of a network of equal layers; it returns the loss."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(*(nn.Linear(plan["width"], plan["width"]) for _ in range(plan["layers"])))
    data = torch.randn(BATCH, plan["width"], generator=torch.Generator().manual_seed(dist.get_rank()))
    if program == "fsdp":
        mesh = DeviceMesh.from_group(group, "cpu")
        for module in (*model, model):
            fully_shard(module, mesh=mesh)
    else:
        model = DistributedDataParallel(model, process_group=group)
    if program == "zero-1":
        optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=group, lr=RATE)
    else:
        optimizer = torch.optim.SGD(model.parameters(), RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def time_step(step: Step) -> tuple[float, float]:
    """Return the seconds of the slowest rank, and the loss."""
    dist.barrier()
    start = time.perf_counter()
    loss = step()
    seconds = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item(), loss


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "ddl": dist.new_group(backend="ddl")}
    for program in PROGRAMS:
        steps = {backend: make_step(program, group, plan) for backend, group in groups.items()}
        runs: dict[str, list[tuple[float, float]]] = {backend: [] for backend in steps}
        for number in range(plan["rounds"] + 1):
            for backend, step in steps.items():
                runs[backend] += [time_step(step)] if number else [(0.0, time_step(step)[1])]
        if dist.get_rank() == 0:
            seconds = {backend: [run[0] for run in rows[1:]] for backend, rows in runs.items()}
            losses = {backend: [run[1] for run in rows] for backend, rows in runs.items()}
            print(json.dumps({"program": program, "seconds": seconds, "losses": losses}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
