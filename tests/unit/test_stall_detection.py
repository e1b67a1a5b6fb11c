"""Stall detection: which ranks are reported, and when the states of their processes are."""

from collections.abc import Callable, Iterator

import pytest

from ddlrun.plan.supervision import SupervisedJob
from ddlrun.supervise.keepers import Keepers
from ddlrun.supervise.stall_detection import StallDetector
from ddlrun.topology import RankOrder, Topology
from tests.support.keepers import serving

JOB = SupervisedJob(Topology((2, 1)), RankOrder.HOST, ("n0",))
STATE = "process {} (python): state S"


@pytest.fixture
def keepers() -> Iterator[Keepers]:
    with serving() as served:
        yield served.keepers


def stalled(keepers: Keepers, report: Callable[[str], None]) -> StallDetector:
    """Return a detector that has reported two silent ranks."""
    detector = StallDetector(5.0, JOB, report)
    for rank in range(2):
        detector.start(rank, 0.0)
    detector.check(6.0, 0.0, keepers)
    return detector


def test_equal_states_are_reported_together(keepers: Keepers) -> None:
    reports: list[str] = []
    detector = stalled(keepers, reports.append)
    detector.add_state(0, STATE.format(7))
    assert reports == ["ranks 0-1 on n0 printed nothing for 5 s"]
    detector.add_state(1, STATE.format(8))
    assert reports[1:] == [f"state of ranks 0-1 on n0:\n{STATE.format(7)}"]


def test_a_rank_that_ends_before_its_state_is_known_does_not_hold_up_the_others(keepers: Keepers) -> None:
    reports: list[str] = []
    detector = stalled(keepers, reports.append)
    detector.add_state(0, STATE.format(7))
    detector.end(1)
    assert reports[1:] == [f"state of rank 0 on n0:\n{STATE.format(7)}"]
    detector.add_output(0, 7.0)
    detector.check(13.0, 7.0, keepers)
    detector.add_state(0, STATE.format(7))
    assert reports[2:] == [
        "rank 0 on n0 printed nothing for 5 s",
        f"state of rank 0 on n0:\n{STATE.format(7)}",
    ]
