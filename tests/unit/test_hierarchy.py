"""Search for racks on simulated networks whose links share fairly."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ddlrun.hosts import Host, HostList
from ddlrun.measure.hierarchy import HierarchyResult, find_levels
from ddlrun.measure.pair_rates import Pair
from ddlrun.report.racks import MeasuredHierarchy, hierarchy_dict, render_hierarchy
from tests.support.json_schemas import unsaid

if TYPE_CHECKING:
    from ddlrun.network.measurements import MeasuredLevel, RacksResult

NIC = 100.0


class Wires(NamedTuple):
    """Hosts per rack, racks, the rate of an uplink, racks per aisle, the rate of an aisle's uplink; a NIC's is NIC."""

    hosts: int
    racks: int
    uplink: float
    racks_per_aisle: int = 1000
    aisle: float = 1e9


def fair(paths: Sequence[Sequence[tuple[str, int]]], capacity: dict[str, float]) -> list[float]:
    """Return the max-min fair rates of flows: raise all equally, fix those on the first full link, continue."""
    left = {link: capacity[link[0]] for path in paths for link in path}
    rates = [NIC] * len(paths)
    unfixed = set(range(len(paths)))
    while unfixed:
        users = {link: [flow for flow in unfixed if link in paths[flow]] for link in left}
        shares = {link: left[link] / len(flows) for link, flows in users.items() if flows}
        full = min(shares, key=lambda link: shares[link], default=None)
        if full is None or shares[full] >= NIC:
            break
        for flow in users[full]:
            rates[flow] = shares[full]
            unfixed.remove(flow)
            for link in paths[flow]:
                left[link] -= shares[full]
    return rates


def network(wires: Wires, noise: float, seed: int) -> tuple[list[int], Callable[[Sequence[Pair]], list[float]]]:
    """Return the rack of each host, in random order, and a function that measures; `noise` lowers rates at random."""
    chance = random.Random(seed)  # noqa: S311 - a test's
    racks = [host // wires.hosts for host in range(wires.hosts * wires.racks)]
    chance.shuffle(racks)
    capacity = {"rack": wires.uplink, "aisle": wires.aisle}

    def path(host: int, other: int) -> list[tuple[str, int]]:
        ends = {racks[host], racks[other]}
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
    return {frozenset(host for host, at in enumerate(places) if at == place) for place in set(places)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize(
    "wires", [Wires(2, 2, 100), Wires(2, 3, 100), Wires(3, 2, 100), Wires(4, 4, 200), Wires(2, 3, 50), Wires(8, 4, 400)]
)
def test_load_shows_the_racks(wires: Wires, noise: float, seed: int) -> None:
    result, racks = solve(wires, noise, seed)
    assert [(set(map(frozenset, level.groups)), level.doubts) for level in result.levels] == [(grouped(racks), ())]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wires", [Wires(4, 1, 1), Wires(7, 1, 1), Wires(16, 1, 1), Wires(3, 2, 1000)])
def test_links_that_cannot_be_filled_are_no_racks(wires: Wires, seed: int) -> None:
    assert solve(wires, 0.15, seed)[0].levels == ()


def test_aisles_are_found_above_racks() -> None:
    result, racks = solve(Wires(4, 8, 100, racks_per_aisle=2, aisle=100), 0.1, 1)
    assert [set(map(frozenset, level.groups)) for level in result.levels] == [
        grouped(racks), grouped([rack // 2 for rack in racks]),
    ]  # fmt: skip
    assert not any(level.doubts for level in result.levels)


def test_many_hosts_are_sampled() -> None:
    result, racks = solve(Wires(16, 8, 400), 0.05, 1)
    assert [set(map(frozenset, level.groups)) for level in result.levels] == [grouped(racks)]
    assert result.rounds <= 2 * len(racks)


def test_random_rates_leave_doubts() -> None:
    chance = random.Random(1)  # noqa: S311 - a test's
    result = find_levels(8, lambda pairs: [NIC * chance.choice((0.4, 1.0)) for _ in pairs])
    assert result.levels
    assert result.levels[-1].doubts


def test_two_busy_hosts_are_no_racks_of_one() -> None:
    racks, measure = network(Wires(2, 3, NIC), 0.02, 1)
    busy = {host for host, rack in enumerate(racks) if rack == 2}

    def slowed(pairs: Sequence[Pair]) -> list[float]:
        return [rate / 2 if busy == {*pair} else rate for pair, rate in zip(pairs, measure(pairs), strict=True)]

    *_, level = find_levels(len(racks), slowed).levels
    assert {host for doubt in level.doubts for host in doubt.hosts} >= busy


@pytest.mark.parametrize(
    ("declared", "line"),
    [("aabb", "racks of Slurm: the same\n"), ("abab", "racks of Slurm: h[1,3]; h[2,4]\n"), ("", "")],
)
def test_racks_are_compared_with_those_of_a_scheduler(declared: str, line: str) -> None:
    hosts = HostList(
        tuple(Host(f"h{number + 1}", None, declared[number : number + 1] or None) for number in range(4)), "Slurm"
    )
    level: MeasuredLevel = {"groups": [[0, 1], [2, 3]], "inside": 2e6, "across": 1e6, "doubts": []}
    result: RacksResult = {"levels": [level], "latency": (1e-5, 2e-5), "rounds": 24, "seconds": 3.0, "rate": 2e6}
    hierarchy = MeasuredHierarchy(hosts, result)
    text = render_hierarchy(hierarchy)
    assert hierarchy_dict(hierarchy)["racks"] == [["h1", "h2"], ["h3", "h4"]]
    assert "  r1: h[1-2]\n  r2: h[3-4]\n" in text
    assert line in text if declared else "racks of" not in text


@pytest.mark.parametrize("case", ["racks", "aisles", "flat", "uncertain"])
def test_text_and_json_of_a_hierarchy_have_the_same_values(case: str) -> None:
    chance = random.Random(1)  # noqa: S311 - a test's
    wires = {
        "racks": Wires(2, 2, NIC), "aisles": Wires(4, 8, NIC, racks_per_aisle=2, aisle=NIC), "flat": Wires(7, 1, 1),
        "uncertain": Wires(8, 1, 1),
    }[case]  # fmt: skip
    racks, measure = network(wires, 0.05, 1)
    if case == "uncertain":
        solved = find_levels(8, lambda pairs: [NIC * chance.choice((0.4, 1.0)) for _ in pairs])
    else:
        solved = find_levels(len(racks), measure, 1)
    result = {
        "levels": [
            {**asdict(level), "doubts": [(doubt.reason, doubt.hosts) for doubt in level.doubts]}
            for level in solved.levels
        ], "rounds": solved.rounds, "seconds": 3.0, "rate": NIC,
        "latency": [1e-5, 2e-5 if solved.levels else None],
    }  # fmt: skip
    hosts = HostList(tuple(Host(f"h{number}", None, f"r{rack}") for number, rack in enumerate(racks)), "a hostfile")
    hierarchy = MeasuredHierarchy(hosts, json.loads(json.dumps(result)))
    assert hierarchy.certain == (case != "uncertain")
    record = json.loads(json.dumps(hierarchy_dict(hierarchy)))
    left_out = {"flat": ["racks"], "uncertain": ["declared", "levels.inside", "levels.across", "latency"]}.get(case, [])
    assert unsaid(record, render_hierarchy(hierarchy), "levels.groups", *left_out) == []
