"""The backend "ddl" of torch.distributed, beside gloo."""

from pathlib import Path

import pytest

from tests.ddl.test_tcp import free_port, started_alone
from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

RANKS = Path(__file__).parent / "backend_ranks.py"
pytestmark = pytest.mark.extra


def test_results_are_those_of_gloo_and_errors_name_ranks() -> None:
    ends = started_alone(3, str(RANKS), str(free_port()))
    assert [end.returncode for end in ends] == [0, 0, 0], ends
    outputs = [end.stdout.splitlines() for end in ends]
    assert [lines[-1] for lines in outputs] == [f"{count} results, of which differ: []" for count in (19, 16, 17)]
    assert outputs[0][:-1] == [
        "silent: rank 0 of 3: no message of rank 2 for 2 s",
        "aborted: the process group was aborted",
        "after: the process group was aborted",
        "absent: rank 0 of 3: rank 2 did not arrive within 2 s",
    ]
    assert outputs[1][1:-1] == [
        "aborted: rank 1 of 3: rank 0 is lost: it has ended",
        "absent: rank 1 of 3: rank 2 did not arrive within 2 s",
    ]
