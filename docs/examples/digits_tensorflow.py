"""Train the network of digits.py with TensorFlow's MultiWorkerMirroredStrategy.

    python digits_tensorflow.py                                                      alone
    ddlrun launch --framework tensorflow --ranks-per-host core digits_tensorflow.py    one process per rank

The training loop is written out, because `fit` of Keras 3 fails under this strategy.
Exits with 1 if fewer than 95 % of the held-out images are recognized.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from time import perf_counter

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

HELD_OUT, GOAL, BATCH, HIDDEN, RATE, MOMENTUM, WARM_UP = 360, 0.95, 64, 64, 0.05, 0.9, 20


def main() -> None:
    """Train over all ranks and check the accuracy."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the data (30)")
    epochs = parser.parse_args().epochs

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any other call of TensorFlow; it reads TF_CONFIG
    size = strategy.num_replicas_in_sync
    rank = strategy.cluster_resolver.task_id or 0

    random = np.random.default_rng(1)
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32)
    held_out, training = np.split(random.permutation(len(images)), [HELD_OUT])
    w1, w2 = (random.normal(0, np.sqrt(2 / shape[0]), shape) for shape in ((64, HIDDEN), (HIDDEN, 10)))
    mean = tf.VariableAggregation.MEAN
    with strategy.scope():
        start = (w1, np.zeros(HIDDEN), w2, np.zeros(10))
        net = [tf.Variable(part, dtype=tf.float32, aggregation=mean) for part in start]
        velocity = [tf.Variable(tf.zeros_like(part), aggregation=mean) for part in net]

    def scores(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ net[0] + net[1]) @ net[2] + net[3]

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores(x)))

    def replica_step(x: tf.Tensor, y: tf.Tensor, rate: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = loss(x, y)
        gradients = tape.gradient(value, net)
        gradients = tf.distribute.get_replica_context().all_reduce("MEAN", gradients)  # over all ranks
        for part, speed, gradient in zip(net, velocity, gradients, strict=True):
            speed.assign(MOMENTUM * speed + gradient)
            part.assign_sub(rate * speed)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor, rate: tf.Tensor) -> None:
        strategy.run(replica_step, (x, y, rate))

    each = BATCH // size  # every rank has the same number of images per step, and of steps
    if each == 0:
        sys.exit(f"{size} ranks: a step has {BATCH} images; take at most as many ranks")
    steps, seconds = len(training) // (each * size), []
    for epoch in range(epochs):
        begin = perf_counter()
        order = np.random.default_rng([1, epoch]).permutation(training)[: steps * size * each]
        mine = order.reshape(steps, size, each)[:, rank]  # a rank reads only its own images
        for step, (x, y) in enumerate(zip(images[mine], labels[mine], strict=True), epoch * steps + 1):
            train_step(tf.constant(x), tf.constant(y), tf.constant(RATE * min(1, step / WARM_UP)))
        seconds.append(perf_counter() - begin)

    if rank == 0:
        answers = labels[held_out]
        accuracy = float((scores(images[held_out]).numpy().argmax(axis=1) == answers).mean())
        speed = steps * size * each / statistics.median(seconds)
        print(f"epoch {epochs}: loss {loss(images[held_out], answers):.4f}")
        result = f"accuracy {100 * accuracy:.1f} % on {HELD_OUT} held-out images"
        if accuracy < GOAL:
            sys.exit(f"{result}, below the goal of {100 * GOAL:.0f} %")
        print(f"done: {result}, {speed:,.0f} images/s, {size} rank{'s' * (size > 1)}")


if __name__ == "__main__":
    main()
