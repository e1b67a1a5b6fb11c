"""Stall detection: the ranks that have become silent."""

from ddlrun.hangs.stall import StallDetector


def test_a_silent_rank_is_found_once_until_it_prints_again() -> None:
    detector = StallDetector(5.0)
    for rank in range(2):
        detector.start(rank, 0.0)
    assert [detector.find_new(now, 0.0) for now in (4.0, 6.0, 7.0)] == [set(), {0, 1}, set()]
    detector.add_output(0, 7.0)
    assert detector.stalled_ranks() == [1]
    assert detector.find_new(13.0, 7.0) == {0}


def test_a_rank_that_never_printed_is_silent_only_if_no_rank_prints() -> None:
    detector = StallDetector(5.0)
    for rank in range(2):
        detector.start(rank, 0.0)
    detector.add_output(0, 4.0)
    assert detector.find_new(8.0, 4.0) == set()
    detector.end(0)
    assert detector.find_new(10.0, 4.0) == {1}
