"""Racks found on networks whose links share fairly: what the algorithm makes of rates, without any hosts."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from ddlrun.hosts import Host, HostList
from ddlrun.measure.hierarchy import HierarchyResult, find_levels
from ddlrun.measure.pair_rates import Pair
from ddlrun.report.racks import MeasuredHierarchy, render_hierarchy

NIC = 100.0


class Wires(NamedTuple):
    """Hosts a rack, racks, racks an aisle, what an uplink and an aisle's uplink carry; a host's NIC carries NIC."""

    hosts: int
    racks: int
    uplink: float
    racks_per_aisle: int = 1000
    aisle: float = 1e9


def fair(paths: Sequence[Sequence[tuple[str, int]]], capacity: dict[str, float]) -> list[float]:
    """Share links among flows, max-min: fill all alike, fix those on the first link that is full, go on."""
    left = {link: capacity[link[0]] for path in paths for link in path}
    rates = [NIC] * len(paths)
    open_ones = set(range(len(paths)))
    while open_ones:
        users = {link: [flow for flow in open_ones if link in paths[flow]] for link in left}
        shares = {link: left[link] / len(flows) for link, flows in users.items() if flows}
        full = min(shares, key=lambda link: shares[link], default=None)
        if full is None or shares[full] >= NIC:
            break
        for flow in users[full]:
            rates[flow] = shares[full]
            open_ones.remove(flow)
            for link in paths[flow]:
                left[link] -= shares[full]
    return rates


def network(wires: Wires, noise: float, seed: int) -> tuple[list[int], Callable[[Sequence[Pair]], list[float]]]:
    """Return each host's rack, hosts in a random order, and what measures; rates are too low by up to some noise."""
    chance = random.Random(seed)  # noqa: S311 - a test's
    racks = [host // wires.hosts for host in range(wires.hosts * wires.racks)]
    chance.shuffle(racks)
    capacity = {"rack": wires.uplink, "aisle": wires.aisle}

    def path(one: int, other: int) -> list[tuple[str, int]]:
        ends = {racks[one], racks[other]}
        aisles = {rack // wires.racks_per_aisle for rack in ends}
        return [
            *(("rack", rack) for rack in ends if len(ends) > 1),
            *(("aisle", aisle) for aisle in aisles if len(aisles) > 1),
        ]

    def measure(pairs: Sequence[Pair]) -> list[float]:
        rates = fair([path(*pair) for pair in pairs], capacity)
        return [rate * (1 - noise * chance.random()) for rate in rates]

    return racks, measure


def solve(wires: Wires, noise: float, seed: int) -> tuple[HierarchyResult, list[int]]:
    racks, measure = network(wires, noise, seed)
    return find_levels(len(racks), measure, seed), racks


def grouped(places: Sequence[int]) -> set[frozenset[int]]:
    return {frozenset(host for host, place in enumerate(places) if place == one) for one in set(places)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize(
    "wires", [Wires(2, 2, 100), Wires(2, 3, 100), Wires(3, 2, 100), Wires(4, 4, 200), Wires(2, 3, 50), Wires(8, 4, 400)]
)
def test_racks_are_found_by_their_load(wires: Wires, noise: float, seed: int) -> None:
    found, racks = solve(wires, noise, seed)
    assert [(set(map(frozenset, level.groups)), level.doubts) for level in found.levels] == [(grouped(racks), ())]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wires", [Wires(4, 1, 1), Wires(7, 1, 1), Wires(16, 1, 1), Wires(3, 2, 1000)])
def test_links_that_nobody_can_fill_are_no_racks(wires: Wires, seed: int) -> None:
    assert solve(wires, 0.15, seed)[0].levels == ()


def test_aisles_are_found_above_racks() -> None:
    found, racks = solve(Wires(4, 8, 100, racks_per_aisle=2, aisle=100), 0.1, 1)
    assert [set(map(frozenset, level.groups)) for level in found.levels] == [
        grouped(racks), grouped([rack // 2 for rack in racks]),
    ]  # fmt: skip
    assert not any(level.doubts for level in found.levels)


def test_many_hosts_are_sampled() -> None:
    found, racks = solve(Wires(16, 8, 400), 0.05, 1)
    assert [set(map(frozenset, level.groups)) for level in found.levels] == [grouped(racks)]
    assert found.rounds <= 2 * len(racks)


def test_rates_without_any_order_are_no_guess() -> None:
    chance = random.Random(1)  # noqa: S311 - a test's
    found = find_levels(8, lambda pairs: [NIC * chance.choice((0.4, 1.0)) for _ in pairs])
    assert found.levels
    assert found.levels[-1].doubts


def test_two_hosts_that_are_busy_are_no_racks_of_one() -> None:
    racks, measure = network(Wires(2, 3, NIC), 0.02, 1)
    busy = {host for host, rack in enumerate(racks) if rack == 2}

    def slowed(pairs: Sequence[Pair]) -> list[float]:
        return [rate / (1 + (busy == {*pair})) for pair, rate in zip(pairs, measure(pairs), strict=True)]

    *_, level = find_levels(len(racks), slowed).levels
    assert {host for _, hosts in level.doubts for host in hosts} >= busy


@pytest.mark.parametrize(
    ("said", "line"),
    [("aabb", "Slurm says the same racks\n"), ("abab", "Slurm says other racks: h[1,3]; h[2,4]\n"), ("", "")],
)
def test_racks_are_compared_with_what_a_scheduler_says(said: str, line: str) -> None:
    hosts = HostList(
        tuple(Host(f"h{number + 1}", None, said[number : number + 1] or None) for number in range(4)), "Slurm"
    )
    level: dict[str, object] = {"groups": [[0, 1], [2, 3]], "inside": 2e6, "across": 1e6, "doubts": []}
    found = {"levels": [level], "latency": (1e-5, 2e-5), "rounds": 24, "seconds": 3.0, "rate": 2e6}
    text = render_hierarchy(MeasuredHierarchy(hosts, found))
    assert "  r1: h[1-2]\n  r2: h[3-4]\n" in text
    assert line in text if said else "says" not in text
