"""The examples of docs/examples over two hosts: namespaces of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, why_not
from tests.frameworks.examples import EXAMPLES, Learned, launch
from tests.frameworks.test_examples import alone, same
from tests.support.managers import MPIRUN

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(hosts_per_rack=2, racks=1) as up:
        yield up


@pytest.fixture(scope="module")
def references() -> tuple[Learned, Learned]:
    return alone("hybrid_parallel.py"), alone("digits.py")


@pytest.mark.parametrize("name", EXAMPLES)
def test_two_hosts_learn_the_same(
    cluster: Cluster, name: str, tmp_path: Path, references: tuple[Learned, Learned]
) -> None:
    example = EXAMPLES[name]
    if example.why_not:
        pytest.skip(example.why_not)
    learned = launch(example, MPIRUN[example.over_hosts], tmp_path, cluster)
    assert learned.ranks == example.ranks
    same(learned, *references, example)
