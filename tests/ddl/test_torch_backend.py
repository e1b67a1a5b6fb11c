"""The backend "ddl" of torch.distributed, beside gloo."""

from pathlib import Path

import pytest

from tests.ddl.test_tcp import started_alone
from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

RANKS = Path(__file__).parent / "backend_ranks.py"
pytestmark = pytest.mark.extra


def test_results_and_losses_are_those_of_gloo() -> None:
    results = started_alone(3, str(RANKS), "ddl")
    expected = started_alone(3, str(RANKS), "gloo")
    assert [end.returncode for end in results] == [0, 0, 0], results
    assert [end.stdout for end in results] == [end.stdout for end in expected]
    assert all(end.stdout.endswith("end\n") for end in results)
