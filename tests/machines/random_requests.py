"""Random plans and rank files for a machine."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from ddlrun.machine import Machine
from ddlrun.mapping.policy import PlacementPolicy


class Request(NamedTuple):
    """A plan to be made: ranks per host and the policy."""

    ranks: int
    policy: PlacementPolicy = PlacementPolicy()

    def __str__(self) -> str:
        defaults = PlacementPolicy._field_defaults
        changed = {key: value for key, value in self.policy._asdict().items() if value != defaults[key]}
        return " ".join([f"X={self.ranks}", *(f"{key}={value}" for key, value in changed.items())])


def random_requests(rng: random.Random, machine: Machine) -> Iterator[Request]:
    """Yield plans to be made on a machine: for whole and odd divisions, and by any policy."""
    cores = sum(core.usable for core in machine.cores)
    yield Request(rng.choice([1, len(machine.packages), cores, max(1, len(machine.gpus))]))
    yield Request(rng.randint(1, cores))
    policy = PlacementPolicy(
        reserve_cores=rng.choice([0, 0, 1, 2]),
        cores_per_rank=rng.choice([None, None, 1, 2, 3]),
        packing=rng.choice([None, "spread", "pack"]),
        bind=rng.choice(["core", "core", "core", "numa", "package", "none"]),
        threads_per_core=rng.choice([None, None, 1]),
        core_kinds=rng.choice(["all", "all", "fast"]),
    )
    yield Request(rng.randint(1, max(1, cores // 2)), policy)


def random_lines(rng: random.Random, machine: Machine) -> Iterator[str]:
    """Yield rank files of one line, most of them for cores that the machine has."""
    while True:
        yield f"rank 0=a slot={_random_slot(rng, machine)}\n"


def _random_slot(rng: random.Random, machine: Machine) -> str:
    beyond = rng.choice([0, 0, 0, 1])
    if rng.random() < 0.4:
        return _random_span(rng, len(machine.cores) + beyond)
    sizes = [len(package) for package in machine.packages]
    chosen = [rng.randrange(len(sizes) + rng.choice([0, 0, 0, 0, 1])) for _ in range(rng.choice([1, 1, 1, 2]))]
    spans = [_random_inside(rng, max(1, sizes[min(package, len(sizes) - 1)] + beyond)) for package in chosen]
    return rng.choice(";;;,").join(f"{package}:{span}" for package, span in zip(chosen, spans, strict=True))


def _random_inside(rng: random.Random, size: int) -> str:
    return "*" if rng.random() < 0.1 else _random_span(rng, size)


def _random_span(rng: random.Random, size: int) -> str:
    low, high = sorted((rng.randrange(size), rng.randrange(size)))
    return f"{low}" if low == high else f"{low}-{high}"
