"""Fixtures of launches: two hosts in network namespaces, without root."""

from collections.abc import Iterator

import pytest

from tests.cluster import namespaces
from tests.cluster.two_hosts import TwoHosts


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    """Provide hosts h1 and h2."""
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with TwoHosts() as up:
        yield up
