"""Train a small network on handwritten digits, its gradients averaged over all ranks.

    python digits.py                    alone
    ddlrun launch digits.py             one process per rank, placed by the launcher

Every rank holds the same weights and takes its part of every batch. In each step one
MPI_Allreduce (with `--allreduce ddl`, ddlrun's own) averages the gradients, so any number
of ranks trains the same network.
The data are the 1,797 images of 8 x 8 pixels that come with scikit-learn (UCI digits).
Exits with 1 if fewer than 95 % of the held-out images are recognized.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray
from sklearn.datasets import load_digits

if TYPE_CHECKING:
    from collections.abc import Callable

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

PIXELS, CLASSES, HELD_OUT = 64, 10, 360
MOMENTUM, GOAL, REPORT_EVERY = 0.9, 0.95, 5


def check_world(world: MPI.Intracomm) -> None:
    """Exit if this Python loaded an MPI other than the launcher's, and so is in another world."""
    env = os.environ
    told = env.get("OMPI_COMM_WORLD_SIZE") or env.get("PMI_SIZE")
    if told is None or int(told) == world.size:
        return
    library = MPI.Get_library_version().split(",")[0]
    message = (
        f"digits.py: started as {told} ranks, but MPI sees {world.size}: mpi4py loaded "
        f"{library}, which is not the MPI of the mpirun that started it"
    )
    first = "0" in (env.get("OMPI_COMM_WORLD_RANK"), env.get("PMI_RANK"))
    sys.exit(message if first else 1)  # one rank prints the message


def where(world: MPI.Intracomm) -> str:
    """Return the host, local rank and CPUs of this rank as text."""
    host = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
    local_rank = host.rank
    host.Free()
    cpus = sorted(os.sched_getaffinity(0))
    firsts = [cpu for cpu in cpus if cpu - 1 not in cpus]
    lasts = [cpu for cpu in cpus if cpu + 1 not in cpus]
    ranges = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(firsts, lasts, strict=True)]
    return (
        f"rank {world.rank} of {world.size} on {socket.gethostname()}, "
        f"local rank {local_rank}, CPUs {','.join(ranges)}, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '(not set)')}"
    )


def layers(flat: Floats, hidden: int) -> list[Floats]:
    """Split a flat vector into the weights and biases of both layers, as views."""
    shapes = [(PIXELS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def forward(net: list[Floats], images: Floats) -> tuple[Floats, Floats]:
    """Return the hidden layer and the probability of each class, one row per image."""
    w1, b1, w2, b2 = net
    hidden = np.maximum(images @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def backward(net: list[Floats], gradients: list[Floats], images: Floats, labels: Labels) -> None:
    """Write the sum of the gradients of the cross entropy over these images; zeros if there are none."""
    hidden, error = forward(net, images)
    error[np.arange(len(labels)), labels] -= 1
    hidden_error = (error @ net[2].T) * (hidden > 0)
    np.matmul(images.T, hidden_error, out=gradients[0])
    np.sum(hidden_error, axis=0, out=gradients[1])
    np.matmul(hidden.T, error, out=gradients[2])
    np.sum(error, axis=0, out=gradients[3])


def averager(world: MPI.Intracomm, which: str) -> Callable[[Floats], None]:
    """Return a function that averages an array over all ranks in place, the only communication in a step."""

    def by_mpi(values: Floats) -> None:
        world.Allreduce(MPI.IN_PLACE, values, MPI.SUM)
        values /= world.size

    def by_ddl(values: Floats) -> None:
        ddl.all_reduce(values, "avg", in_place=True)

    if which == "mpi":
        return by_mpi
    from ddlrun import ddl  # noqa: PLC0415 - the example runs without ddlrun

    ddl.init()
    return by_ddl


def train(world: MPI.Intracomm, options: argparse.Namespace) -> tuple[float, float]:
    """Train over all ranks; return, on rank 0, the held-out accuracy and the images per second."""
    average = averager(world, options.allreduce)
    # One seed for all ranks: the same split, the same first weights, the same batches.
    random = np.random.default_rng(options.seed)
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32)
    held_out, training = np.split(random.permutation(len(images)), [HELD_OUT])

    size = (PIXELS + 1) * options.hidden + (options.hidden + 1) * CLASSES
    weights, gradients, velocity = np.zeros((3, size), np.float32)
    net, net_gradients = layers(weights, options.hidden), layers(gradients, options.hidden)
    for matrix in (net[0], net[2]):
        matrix[:] = random.normal(0, np.sqrt(2 / len(matrix)), matrix.shape)

    accuracy, speed, start = 0.0, 0.0, perf_counter()
    for epoch in range(1, options.epochs + 1):
        order = random.permutation(training)
        for whole in np.split(order, range(options.batch, len(order), options.batch)):
            mine = np.array_split(whole, world.size)[world.rank]
            backward(net, net_gradients, images[mine], labels[mine])
            # Parts may differ in size, so each rank scales its sum, not its mean: the average
            # over ranks is then the mean over the whole batch.
            gradients *= world.size / len(whole)
            average(gradients)
            velocity[:] = MOMENTUM * velocity - options.lr * gradients
            weights += velocity
        if world.rank == 0 and (epoch % REPORT_EVERY == 0 or epoch == options.epochs):
            speed = epoch * len(training) / (perf_counter() - start)
            chances, answers = forward(net, images[held_out])[1], labels[held_out]
            loss = -np.log(chances[np.arange(HELD_OUT), answers] + 1e-9).mean()
            accuracy = float((chances.argmax(axis=1) == answers).mean())
            print(
                f"epoch {epoch}: loss {loss:.4f}, accuracy {100 * accuracy:.1f} %, {speed:,.0f} images/s",
                flush=True,
            )
    return accuracy, speed


def main() -> None:
    """Print the place of every rank, train, and check the accuracy."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the data (30)")
    parser.add_argument("--batch", type=int, default=64, help="images a step, all ranks (64)")
    parser.add_argument("--hidden", type=int, default=64, help="units in the hidden layer (64)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (0.05)")
    parser.add_argument("--seed", type=int, default=1, help="of split, weights, batches (1)")
    parser.add_argument(
        "--allreduce", choices=["mpi", "ddl"], default="mpi", help="who averages: MPI_Allreduce, ddlrun.ddl (mpi)"
    )
    options = parser.parse_args()

    world = MPI.COMM_WORLD
    check_world(world)
    places = world.gather(where(world), root=0)
    if places:  # rank 0 prints for all ranks, so lines stay whole and in order
        print("\n".join(places), flush=True)
    accuracy, speed = train(world, options)
    if world.rank == 0:
        result = f"accuracy {100 * accuracy:.1f} % on {HELD_OUT} held-out images"
        if accuracy < GOAL:
            sys.exit(f"digits.py: {result}, below the goal of {100 * GOAL:.0f} %")
        ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
        print(f"done: {result}, {speed:,.0f} images/s, {ranks}")


if __name__ == "__main__":
    main()
