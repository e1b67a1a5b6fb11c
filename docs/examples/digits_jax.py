"""Train the network of digits.py with JAX.

    python digits_jax.py                                               alone
    ddlrun launch --framework jax --ranks-per-host core digits_jax.py    one process per rank

On a machine with GPUs, set JAX_PLATFORMS=cpu to use the CPU.
Exits with 1 if fewer than 95 % of the held-out images are recognized.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

HELD_OUT, GOAL, BATCH, HIDDEN, RATE, MOMENTUM, WARM_UP = 360, 0.95, 64, 64, 0.05, 0.9, 20
Net = list[jax.Array]


def scores(net: Net, images: jax.Array) -> jax.Array:
    """Return the score of each class, one row per image."""
    w1, b1, w2, b2 = net
    return jax.nn.relu(images @ w1 + b1) @ w2 + b2


def loss(net: Net, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross entropy of the whole batch, the images of all ranks."""
    chances = jax.nn.log_softmax(scores(net, images))
    return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()


@jax.jit
def train_step(net: Net, velocity: Net, rate: float, images: jax.Array, labels: jax.Array) -> tuple[Net, Net]:
    """Return the weights and velocities after a step; XLA averages the gradients over all ranks."""
    gradients = jax.grad(loss)(net, images, labels)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradients)
    return jax.tree.map(lambda w, v: w - rate * v, net, velocity), velocity


def main() -> None:
    """Train over all ranks and check the accuracy."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the data (30)")
    epochs = parser.parse_args().epochs

    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize()  # before any other call of JAX
    rank, size = jax.process_index(), jax.process_count()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    random = np.random.default_rng(1)
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32)
    held_out, training = np.split(random.permutation(len(images)), [HELD_OUT])
    w1, w2 = (random.normal(0, np.sqrt(2 / shape[0]), shape) for shape in ((64, HIDDEN), (HIDDEN, 10)))
    start = [part.astype(np.float32) for part in (w1, np.zeros(HIDDEN), w2, np.zeros(10))]
    net = jax.device_put(start, everywhere)  # the same weights on every rank
    velocity = jax.tree.map(jnp.zeros_like, net)

    each = BATCH // size  # every rank has the same number of images per step, and of steps
    if each == 0:
        sys.exit(f"{size} ranks: a step has {BATCH} images; take at most as many ranks")
    steps, seconds = len(training) // (each * size), []
    for epoch in range(epochs):
        begin = perf_counter()
        order = np.random.default_rng([1, epoch]).permutation(training)[: steps * size * each]
        for step, mine in enumerate(order.reshape(steps, size, each)[:, rank], epoch * steps + 1):
            # A rank reads only its own images; together they are the batch.
            x, y = (jax.make_array_from_process_local_data(split, part[mine]) for part in (images, labels))
            net, velocity = train_step(net, velocity, RATE * min(1, step / WARM_UP), x, y)
        jax.block_until_ready(net)
        seconds.append(perf_counter() - begin)

    if rank == 0:
        final = [np.asarray(part.addressable_data(0)) for part in net]
        accuracy = float((scores(final, images[held_out]).argmax(axis=1) == labels[held_out]).mean())
        speed = steps * size * each / statistics.median(seconds)
        print(f"epoch {epochs}: loss {loss(final, images[held_out], labels[held_out]):.4f}")
        result = f"accuracy {100 * accuracy:.1f} % on {HELD_OUT} held-out images"
        if accuracy < GOAL:
            sys.exit(f"{result}, below the goal of {100 * GOAL:.0f} %")
        print(f"done: {result}, {speed:,.0f} images/s, {size} rank{'s' * (size > 1)}")


if __name__ == "__main__":
    main()
