"""A byte that is altered between a keeper and ddlrun, by a proxy in a running job."""

from pathlib import Path

import pytest

from tests.mpi.altered_bytes import run_altered
from tests.support.altering_proxy import Place

EXTRA = pytest.mark.extra


@pytest.mark.parametrize(
    ("to_server", "byte"),
    [
        pytest.param(True, 0, id="greeting"),
        pytest.param(True, 44, id="proof"),
        pytest.param(True, 160, id="output", marks=EXTRA),
        pytest.param(False, 20, id="welcome", marks=EXTRA),
        pytest.param(False, 60, id="length"),
        pytest.param(False, 80, id="code", marks=EXTRA),
    ],
)
def test_an_altered_byte_ends_the_job(tmp_path: Path, byte: int, *, to_server: bool) -> None:
    seen = run_altered(Place(to_server, byte), tmp_path)
    assert (seen.altered, seen.right) == (True, True), seen
