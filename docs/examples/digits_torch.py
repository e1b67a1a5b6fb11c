"""Train the network of digits.py with PyTorch, its gradients averaged by ddlrun.ddl.

    python digits_torch.py                                               alone
    ddlrun launch --framework ddl --ranks-per-host core digits_torch.py    one process per rank

`--hook` uses DistributedDataParallel with ddlrun's communication hook instead, or with one that compresses gradients.
Exits with 1 if fewer than 95 % of the held-out images are recognized.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from time import perf_counter

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddlrun import ddl
from ddlrun.ddl import torch as ddl_torch

HELD_OUT, GOAL, BATCH, WARM_UP = 360, 0.95, 64, 20


def parallel(net: torch.nn.Module, hook: str) -> DistributedDataParallel:
    """Return the network with averaged gradients."""
    if hook == "average":
        ddl_torch.init_process_group()
    else:
        torch.distributed.init_process_group("ddl")
    model = DistributedDataParallel(net)
    if hook == "power-sgd":
        model.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=WARM_UP), powerSGD_hook)
    else:
        model.register_comm_hook(ddl_torch.Averaging(), ddl_torch.comm_hook)
    return model


def main() -> None:
    """Train over all ranks and check the accuracy."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the data (30)")
    parser.add_argument(
        "--hook", nargs="?", const="average", choices=["average", "power-sgd"],
        help="DistributedDataParallel with this hook (average)",
    )  # fmt: skip
    options = parser.parse_args()

    ddl.init()
    rank, size = ddl.rank(), ddl.size()
    if torch.cuda.is_available():
        torch.cuda.set_device(ddl.local_rank() % torch.cuda.device_count())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    random = np.random.default_rng(1)
    pixels, labels = load_digits(return_X_y=True)
    images, answers = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    held_out, training = np.split(random.permutation(len(images)), [HELD_OUT])
    first, last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)
    for layer in (first, last):
        start = random.normal(0, np.sqrt(2 / layer.in_features), (layer.in_features, layer.out_features))
        layer.weight.data = torch.tensor(start.T.astype(np.float32))
        layer.bias.data.zero_()
    net = torch.nn.Sequential(first, torch.nn.ReLU(), last).to(device)
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: min(1, (step + 1) / WARM_UP))
    model: torch.nn.Module = net
    optimizer: torch.optim.Optimizer = sgd
    if options.hook:
        model = parallel(net, options.hook)
    else:
        ddl_torch.broadcast_parameters(net)  # rank 0's values replace those of the others
        optimizer = ddl_torch.DistributedOptimizer(sgd)

    each = BATCH // size  # every rank has the same number of images per step, and of steps
    if each == 0:
        sys.exit(f"{size} ranks: a step has {BATCH} images; take at most as many ranks")
    steps, seconds = len(training) // (each * size), []
    for epoch in range(options.epochs):
        begin = perf_counter()
        order = np.random.default_rng([1, epoch]).permutation(training)[: steps * size * each]
        # Shard first: a rank reads and moves only its own images.
        mine = torch.from_numpy(order.reshape(steps, size, each)[:, rank])
        for x, y in zip(images[mine].to(device), answers[mine].to(device), strict=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()  # with the gradients' averages over all ranks
            schedule.step()
        seconds.append(perf_counter() - begin)
    ddl.free()

    if rank == 0:
        with torch.no_grad():
            scores = net(images[held_out].to(device)).cpu()
        loss, right = cross_entropy(scores, answers[held_out]), scores.argmax(1) == answers[held_out]
        accuracy, speed = right.float().mean(), steps * size * each / statistics.median(seconds)
        print(f"epoch {options.epochs}: loss {loss:.4f}")
        result = f"accuracy {100 * accuracy:.1f} % on {HELD_OUT} held-out images"
        if accuracy < GOAL:
            sys.exit(f"{result}, below the goal of {100 * GOAL:.0f} %")
        print(f"done: {result}, {speed:,.0f} images/s, {size} rank{'s' * (size > 1)}")


if __name__ == "__main__":
    main()
