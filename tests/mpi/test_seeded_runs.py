"""The diagnosis of running jobs whose cause of slowness is known."""

from pathlib import Path

import pytest

from tests.support import needs
from tests.support.seeded_runs import SEEDS, findings_of, run_seed


@pytest.mark.extra
@pytest.mark.parametrize("cause", ["throttled", "storage", "thrashing", "overload"])
def test_the_slow_rank_of_a_running_job_is_named(cause: str, tmp_path: Path) -> None:
    if reason := SEEDS[cause].why_not():
        needs.skip(reason)
    name = SEEDS[cause].finding or cause
    history = run_seed(cause, tmp_path, lambda history: (name, "1") in findings_of(history))
    assert (name, "1") in findings_of(history)
