"""Train the network of digits.py with its hidden layer split along X and the data along Y and Z.

    python hybrid_parallel.py                                             alone
    ddlrun launch --framework ddl --ranks-per-host core hybrid_parallel.py  one process per rank

Model parallelism: each rank of a host (X) holds a part of the hidden layer, and all see the same images.
Data parallelism: hosts and racks (Y, Z) see different images, and average their gradients.
Exits with 1 if fewer than 95 % of the held-out images are recognized.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from time import perf_counter

import numpy as np
from sklearn.datasets import load_digits

from ddlrun import ddl

HELD_OUT, GOAL, BATCH, HIDDEN, RATE, MOMENTUM, WARM_UP = 360, 0.95, 64, 64, 0.05, 0.9, 20


def main() -> None:
    """Train over all ranks and check the accuracy."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the data (30)")
    epochs = parser.parse_args().epochs

    ddl.init()
    (parts, *sizes), (part_number, *place) = ddl.grid().topology.dims, ddl.coords()
    group, groups = int(np.ravel_multi_index(place, sizes)), math.prod(sizes)

    # One seed for all ranks: each draws the whole matrices and keeps its own units of the hidden layer.
    random = np.random.default_rng(1)
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32)
    held_out, training = np.split(random.permutation(len(images)), [HELD_OUT])
    units = np.array_split(np.arange(HIDDEN), parts)[part_number]
    w1 = random.normal(0, np.sqrt(2 / 64), (64, HIDDEN)).astype(np.float32)[:, units]
    w2 = random.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, 10)).astype(np.float32)[units]
    net = [w1, np.zeros(len(units), np.float32), w2, np.zeros(10, np.float32)]
    velocities = [np.zeros_like(part) for part in net]

    def forward(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.maximum(x @ net[0] + net[1], 0)
        scores = ddl.all_reduce(hidden @ net[2], axes="X")  # the sum over all units
        powers = np.exp(scores + net[3] - scores.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    each = BATCH // groups  # every group has the same number of images per step, and of steps
    if each == 0:
        sys.exit(f"{groups} groups: a step has {BATCH} images; take at most as many groups")
    steps, seconds = len(training) // (each * groups), []
    for epoch in range(epochs):
        begin = perf_counter()
        order = np.random.default_rng([1, epoch]).permutation(training)[: steps * groups * each]
        for step, mine in enumerate(order.reshape(steps, groups, each)[:, group], epoch * steps + 1):
            x = images[mine]
            hidden, error = forward(x)
            error[np.arange(each), labels[mine]] -= 1
            error /= each
            hidden_error = (error @ net[2].T) * (hidden > 0)
            gradients = [x.T @ hidden_error, hidden_error.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
            gradients = ddl.all_reduce_n(gradients, "avg", axes="YZ")
            for part, velocity, gradient in zip(net, velocities, gradients, strict=True):
                velocity[:] = MOMENTUM * velocity + gradient
                part[:] -= RATE * min(1, step / WARM_UP) * velocity
        seconds.append(perf_counter() - begin)

    chances, answers = forward(images[held_out])[1], labels[held_out]  # all ranks of a row together
    if ddl.rank() == 0:
        loss = -np.log(chances[np.arange(HELD_OUT), answers]).mean()
        accuracy = (chances.argmax(axis=1) == answers).mean()
        speed = steps * groups * each / statistics.median(seconds)
        print(f"epoch {epochs}: loss {loss:.4f}")
        result = f"accuracy {100 * accuracy:.1f} % on {HELD_OUT} held-out images"
        if accuracy < GOAL:
            sys.exit(f"{result}, below the goal of {100 * GOAL:.0f} %")
        print(f"done: {result}, {speed:,.0f} images/s, {ddl.size()} rank{'s' * (ddl.size() > 1)}")


if __name__ == "__main__":
    main()
