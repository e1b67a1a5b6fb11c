"""Jobs that meet random faults: a few scenarios of tests.hosts.random_faults, which runs as many as it is given."""

import pytest

from tests.cluster.cluster import Cluster
from tests.hosts.random_faults import render, run_seed
from tests.hosts.random_faults_scenario import Kind, draw

# Each with another fault: kills, stops, signals, a slow reader, a network that is cut for a moment.
SEEDS = (0, 1, 3, 5, 8, 10, 12, 21, 23, 29, 39, 44, 47, 2007, 2013, 2043, 2044)


@pytest.mark.extra
@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults(cluster: Cluster, seed: int) -> None:
    report = run_seed(cluster, seed)
    assert not report.violations, render(report)


def test_scenarios_have_every_kind_of_fault() -> None:
    assert {kind for seed in range(300) for kind in draw(seed).kinds} == {*Kind}
    assert draw(7) == draw(7)
