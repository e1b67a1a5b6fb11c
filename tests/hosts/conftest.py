"""The hosts that all tests of a process share."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Provide h1 and h2 in a rack, h3 and h4 in another; a test that damages a host restores it."""
    with Cluster(hosts_per_rack=2, racks=2) as up:
        yield up
