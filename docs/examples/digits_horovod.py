"""Train the network of digits.py with PyTorch and Horovod.

    python digits_horovod.py                                                         alone
    ddlrun launch --framework horovod --ranks-per-host core digits_horovod.py          one process per rank

docs/how-to/install-horovod.sh builds Horovod 0.28.1.
Exits with 1 if fewer than 95 % of the held-out images are recognized.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from time import perf_counter

import horovod.torch as hvd
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

HELD_OUT, GOAL, BATCH, RATE, WARM_UP = 360, 0.95, 64, 0.05, 20


def main() -> None:
    """Train over all ranks and check the accuracy."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the data (30)")
    parser.add_argument("--batch", type=int, default=BATCH, help="images a step, all ranks; the rate follows it (64)")
    parser.add_argument("--save", help="file that rank 0 writes the trained network to")
    options = parser.parse_args()

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    each = options.batch // size  # every rank has the same number of images per step, and of steps
    if each == 0:
        sys.exit(f"--batch {options.batch}: fewer images than {size} ranks")
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", hvd.local_rank() % gpus) if gpus else torch.device("cpu")

    random = np.random.default_rng(1)
    pixels, labels = load_digits(return_X_y=True)
    images, answers = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    held_out, training = np.split(random.permutation(len(images)), [HELD_OUT])
    first, last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)
    for layer in (first, last):
        start = random.normal(0, np.sqrt(2 / layer.in_features), (layer.in_features, layer.out_features))
        layer.weight.data = torch.tensor(start.T.astype(np.float32)).contiguous()  # Horovod needs contiguous tensors
        layer.bias.data.zero_()
    net = torch.nn.Sequential(first, torch.nn.ReLU(), last).to(device)
    # With a batch k times as large, the steps are k times as long; the first ones are short.
    sgd = torch.optim.SGD(net.parameters(), lr=RATE * options.batch / BATCH, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: min(1, (step + 1) / WARM_UP))
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)  # rank 0's values replace those of the others
    hvd.broadcast_optimizer_state(sgd, root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=net.named_parameters())

    steps, seconds = len(training) // (each * size), []
    for epoch in range(options.epochs):
        begin = perf_counter()
        order = np.random.default_rng([1, epoch]).permutation(training)[: steps * size * each]
        # Shard first: a rank reads and moves only its own images.
        mine = torch.from_numpy(order.reshape(steps, size, each)[:, rank])
        for x, y in zip(images[mine].to(device), answers[mine].to(device), strict=True):
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()  # with the gradients' averages over all ranks
            schedule.step()
        seconds.append(perf_counter() - begin)

    if rank == 0:
        with torch.no_grad():
            scores = net(images[held_out].to(device)).cpu()
        loss, right = cross_entropy(scores, answers[held_out]), scores.argmax(1) == answers[held_out]
        accuracy, speed = right.float().mean(), steps * size * each / statistics.median(seconds)
        print(f"epoch {options.epochs}: loss {loss:.4f}")
        result = f"accuracy {100 * accuracy:.1f} % on {HELD_OUT} held-out images"
        if accuracy < GOAL:
            sys.exit(f"{result}, below the goal of {100 * GOAL:.0f} %")
        if options.save:
            torch.save(net.state_dict(), options.save)
        print(f"done: {result}, {speed:,.0f} images/s, {size} ranks")


if __name__ == "__main__":
    main()
