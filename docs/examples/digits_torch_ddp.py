"""Train the network of digits.py with PyTorch's DistributedDataParallel.

    python digits_torch_ddp.py                                                 alone
    ddlrun launch --framework torch --ranks-per-host core digits_torch_ddp.py    one process per rank

With `--checkpoint FILE`, in a folder that all hosts share, it continues where it was ended.
Exits with 1 if fewer than 95 % of the held-out images are recognized.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

HELD_OUT, GOAL, BATCH, WARM_UP = 360, 0.95, 64, 20


def build(random: np.random.Generator) -> torch.nn.Sequential:
    """Return the network, with the same first weights on every rank."""
    first, last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)
    for layer in (first, last):
        start = random.normal(0, np.sqrt(2 / layer.in_features), (layer.in_features, layer.out_features))
        layer.weight.data = torch.tensor(start.T.astype(np.float32))
        layer.bias.data.zero_()
    return torch.nn.Sequential(first, torch.nn.ReLU(), last)


def main() -> None:
    """Train over all ranks and check the accuracy."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the data (30)")
    parser.add_argument("--checkpoint", help="file to go on from, and to write after every epoch")
    options = parser.parse_args()

    if "OMPI_COMM_WORLD_SIZE" not in os.environ:  # started without a launcher
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        os.environ.update({name: value for name, value in alone.items() if name not in os.environ})
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus) if gpus else torch.device("cpu")
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    random = np.random.default_rng(1)
    pixels, labels = load_digits(return_X_y=True)
    images, answers = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    held_out, training = np.split(random.permutation(len(images)), [HELD_OUT])
    net = build(random).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARM_UP))
    parts: dict[str, Any] = {"net": net, "optimizer": optimizer, "schedule": schedule}
    done = 0
    if options.checkpoint and os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        done = saved.pop("done")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    if done >= options.epochs:
        del model
        dist.destroy_process_group()
        sys.exit(f"{options.checkpoint} has {done} epochs already" if rank == 0 else 0)

    each = BATCH // size  # every rank has the same number of images per step, and of steps
    if each == 0:
        sys.exit(f"{size} ranks: a step has {BATCH} images; take at most as many ranks")
    steps, seconds = len(training) // (each * size), []
    for epoch in range(done, options.epochs):
        begin = perf_counter()
        order = np.random.default_rng([1, epoch]).permutation(training)[: steps * size * each]
        # Shard first: a rank reads and moves only its own images.
        mine = torch.from_numpy(order.reshape(steps, size, each)[:, rank])
        for x, y in zip(images[mine].to(device), answers[mine].to(device), strict=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()  # averages the gradients over all ranks
            optimizer.step()
            schedule.step()
        seconds.append(perf_counter() - begin)
        if options.checkpoint and rank == 0:
            new = f"{options.checkpoint}.new"
            torch.save({name: part.state_dict() for name, part in parts.items()} | {"done": epoch + 1}, new)
            os.replace(new, options.checkpoint)  # so the file is complete at any time
    del model  # it keeps the process group, whose threads could abort the rank when Python ends
    dist.destroy_process_group()

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
