"""Simulated computing times of learners, and the figures that each would send at its checks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ddlrun.ddl.monitor.straggler_detection import IterationStats

NOISE = 0.05


def checks(seed: int, *, learners: int, window: int, number: int, slow: float = 1.0) -> Iterator[list[IterationStats]]:
    """Yield the figures of `number` checks of `window` iterations; the last learner takes `slow` times as long.

    Iterations vary by 5 % (lognormal), one in 100 takes three times as long (a checkpoint, garbage collection), hosts
    differ by up to 1.5 %, each learner drifts by 0.5 %, and all together by 5 % (clock, load of the site).
    """
    random = np.random.default_rng(seed)
    own = random.uniform(0.985, 1.015, learners)
    own[-1] = own[-1] if slow == 1 else slow
    drift = np.zeros(learners)
    for _ in range(number):
        drift = 0.9 * drift + random.normal(0, 0.005 * np.sqrt(1 - 0.9**2), learners)
        times = 0.1 * random.normal(1, 0.05) * np.exp(random.normal(0, NOISE, (learners, window)))
        times *= (own * (1 + drift))[:, None] * np.where(random.random((learners, window)) < 0.01, 3, 1)
        yield [IterationStats(*pair, inside=0.02) for pair in zip(*medians_and_errors(times), strict=True)]


def medians_and_errors(times: Any) -> tuple[list[float], list[float]]:
    """Return the results of `median_and_error` for many learners at once."""
    middle = np.median(times, axis=1)
    deviation = np.median(np.abs(times - middle[:, None]), axis=1)
    return middle.tolist(), (1.2533 * 1.4826 * deviation / np.sqrt(times.shape[1])).tolist()
