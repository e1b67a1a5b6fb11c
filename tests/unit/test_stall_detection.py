"""Stall detection: the ranks that are reported."""

from ddlrun.managers.own import own_manager
from ddlrun.plan.supervision import SupervisedJob
from ddlrun.supervise.stall_detection import StallDetector
from ddlrun.topology import RankOrder, Topology

JOB = SupervisedJob(Topology((2, 1)), RankOrder.HOST, ("n0",), own_manager(""))


def test_a_silent_rank_is_reported_once_until_it_prints_again() -> None:
    reports: list[str] = []
    detector = StallDetector(5.0, JOB, reports.append)
    for rank in range(2):
        detector.start(rank, 0.0)
    assert not detector.check(4.0, 0.0)
    assert detector.check(6.0, 0.0)
    assert not detector.check(7.0, 0.0)
    assert reports == ["ranks 0-1 on n0 printed nothing for 5 s"]
    detector.add_output(0, 7.0)
    assert detector.stalled_ranks() == [1]
    assert detector.check(13.0, 7.0)
    assert reports[1:] == ["rank 0 on n0 printed nothing for 5 s"]


def test_a_rank_that_never_printed_is_silent_only_if_no_rank_prints() -> None:
    reports: list[str] = []
    detector = StallDetector(5.0, JOB, reports.append)
    for rank in range(2):
        detector.start(rank, 0.0)
    detector.add_output(0, 4.0)
    assert not detector.check(8.0, 4.0)
    detector.end(0)
    assert detector.check(10.0, 4.0)
    assert reports == ["rank 1 on n0 printed nothing for 5 s"]
