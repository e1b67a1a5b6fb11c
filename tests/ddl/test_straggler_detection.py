"""Detection of stragglers, their causes, and spare cores: pure functions, on series of times as in real jobs."""

import math
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.ddl.monitor.core_rebinding import SpareCoreOffer, SpareCores
from ddlrun.ddl.monitor.iteration_report import NAME
from ddlrun.ddl.monitor.procfs import CpuCore, core_of, read_load
from ddlrun.ddl.monitor.straggler_detection import (
    CHECKS,
    COOL_DOWN,
    CauseCode,
    IterationStats,
    StragglerDetector,
    StragglerFinding,
    Verdict,
    find_cause,
    median_and_error,
    relative_times,
    slow_ranks,
)
from ddlrun.plan.run_dir import RunDir
from tests.ddl.slow_series import checks, medians_and_errors

TIMES = st.lists(st.floats(0.01, 10), min_size=2, max_size=9)


def check(detector: StragglerDetector, compute: Mapping[int, float], moves: int = 0) -> list[StragglerFinding]:
    """Check four learners that take 0.1 s, except those in `compute`; rank 3 was moved `moves` times."""
    rows = [IterationStats(compute.get(rank, 0.1), 0.0005, 0.02) for rank in range(4)]
    return detector.check([*rows[:3], replace(rows[3], moves=moves)])


def assert_findings(findings: list[StragglerFinding], verdict: Verdict, score: float) -> None:
    assert [(finding.rank, finding.verdict) for finding in findings] == [(3, verdict)]
    assert np.isclose(findings[0].score, score)


@pytest.mark.parametrize("learners", [2, 3, 8, 64])
def test_a_learner_12_percent_slow_is_found_at_the_third_check(learners: int) -> None:
    for seed in range(20):
        detector = StragglerDetector()
        findings = [detector.check(rows) for rows in checks(seed, learners=learners, window=50, number=3, slow=1.12)]
        assert [len(new) for new in findings] == [0, 0, 1]
        assert (findings[2][0].rank, findings[2][0].verdict) == (learners - 1, Verdict.SLOW)


@pytest.mark.parametrize("learners", [2, 3, 8])
def test_no_false_alarm_in_ten_thousand_checks(learners: int) -> None:
    detector = StragglerDetector()
    assert [f for rows in checks(1, learners=learners, window=20, number=10_000) for f in detector.check(rows)] == []


def test_slow_in_the_last_three_checks_and_not_before() -> None:
    detector = StragglerDetector()
    for took in (0.3, 0.3, 0.1, 0.3, 0.3):
        assert check(detector, {3: took}) == []
    assert_findings(check(detector, {3: 0.3}), Verdict.SLOW, 3.0)
    for _ in range(COOL_DOWN):
        assert check(detector, {3: 0.3}) == []
    assert_findings(check(detector, {3: 0.3}), Verdict.SLOW, 3.0)


@pytest.mark.parametrize(("after", "verdict"), [(0.1, Verdict.BETTER), (0.29, Verdict.NOT_BETTER)])
def test_a_move_is_judged_by_three_checks(after: float, verdict: Verdict) -> None:
    detector = StragglerDetector()
    for _ in range(CHECKS):
        findings = check(detector, {3: 0.3})
    assert_findings(findings, Verdict.SLOW, 3.0)
    assert check(detector, {3: 0.3}, moves=1) == []  # iterations from before the move are in it
    for _ in range(CHECKS - 1):
        assert check(detector, {3: after}, moves=1) == []
    assert_findings(check(detector, {3: after}, moves=1), verdict, after / 0.1)


def test_a_learner_is_suspected_after_one_slow_check() -> None:
    detector = StragglerDetector()
    assert not detector.suspects(0)
    check(detector, {3: 0.3})
    assert [detector.suspects(rank) for rank in range(4)] == [False, False, False, True]


@given(TIMES, st.integers(-20, 20), st.randoms())
def test_scores_do_not_depend_on_the_order_of_ranks_or_the_unit(
    compute: list[float], power: int, random: Random
) -> None:
    order = list(range(len(compute)))
    random.shuffle(order)
    plain, mixed = (
        slow_ranks([relative_times([IterationStats(compute[rank] * by, 0, 0) for rank in ranks])] * CHECKS)
        for ranks, by in ((range(len(compute)), 1.0), (order, 2.0**power))
    )
    assert {order[place] for place in mixed} == set(plain)
    assert len(plain) <= len(compute) // 2  # the lower median is among the learners


@given(TIMES)
def test_medians_and_their_errors(times: list[float]) -> None:
    (middle,), (error,) = medians_and_errors(np.array([times]))
    assert np.allclose(median_and_error(times), (middle, error))


SLOW = IterationStats(0.2, 0.001, 0.05, delayed=0.0, idle=0.2, throttled=0.0, switches=1.0)


@pytest.mark.parametrize(
    ("stats", "code", "text"),
    [
        (replace(SLOW, delayed=0.5), CauseCode.WAITS_FOR_CPU, "queue"),
        (replace(SLOW, delayed=math.nan, switches=50.0), CauseCode.WAITS_FOR_CPU, "queue"),
        (
            replace(SLOW, delayed=0.5, throttled=0.4),
            CauseCode.QUOTA,
            "its cgroup was stopped for its CPU quota 40% of the time",
        ),
        (
            replace(SLOW, idle=0.6),
            CauseCode.WAITS_ELSEWHERE,
            "it waits for something other than a CPU: data, a disk, a device",
        ),
        (replace(SLOW, clock=0.5), CauseCode.SLOW_CORE, "which run at 50% of their clock: a slow core"),
        (SLOW, CauseCode.SLOW_CORE, "it works longer on its own CPUs: a slow core, or more to do"),
        (
            IterationStats(0.2, 0.001, 0.05),
            CauseCode.SLOW_CORE,
            "it works longer on its own CPUs: a slow core, or more to do",
        ),
    ],
)
def test_causes(stats: IterationStats, code: CauseCode, text: str) -> None:
    cause = find_cause(stats, 2.0)
    assert cause.code is code
    assert text in cause.text


def two_packages(cpu: int) -> CpuCore:
    """Return a core of 2 packages x 2 NUMA nodes x 4 cores of 2 CPUs: 0 and 16, 1 and 17, ..."""
    core = cpu % 16
    return CpuCore(frozenset({core, core + 16}), core // 8, core // 4)


def cores(*numbers: int) -> frozenset[int]:
    return frozenset(cpu for number in numbers for cpu in (number, number + 16))


@pytest.mark.parametrize(
    ("reserved", "unassigned", "expected", "origin"),
    [
        ((0, 3, 8), (), (0,), "kept by the plan"),
        ((4, 8), (3,), (4,), "kept by the plan, on another NUMA node of its package"),
        ((8,), (6, 3), (1, 3), "of its package that no learner owns"),
        ((8,), (12,), (8,), "kept by the plan, in another package: its memory stays behind"),
        ((), (12,), None, ""),
        ((1, 2), (), None, ""),
    ],
)
def test_near_cores_first(
    reserved: tuple[int, ...], unassigned: tuple[int, ...], expected: tuple[int, ...] | None, origin: str
) -> None:
    spare_cores = SpareCores({5: cores(1), 6: cores(2)}, cores(*reserved), cores(*unassigned), two_packages)
    offer = spare_cores.offer(5)
    assert offer == (None if expected is None else SpareCoreOffer(cores(*expected), origin))


def test_fewer_spare_cores_than_its_own_widen_a_learner() -> None:
    spare_cores = SpareCores({0: cores(1, 2), 1: cores(3)}, cores(0), (), two_packages)
    offer = spare_cores.offer(0)
    assert offer is not None
    assert offer.cpus == cores(0, 1, 2)
    assert spare_cores.offer(1) is None
    assert spare_cores.give_back(0) == cores(1, 2)
    again = spare_cores.offer(1)
    assert again is not None
    assert again.cpus == cores(0)


@given(
    st.lists(st.sets(st.integers(0, 15), min_size=1, max_size=3), min_size=1, max_size=5),
    st.sets(st.integers(0, 15)), st.sets(st.integers(0, 15)), st.lists(st.tuples(st.integers(0, 4), st.booleans())),
)  # fmt: skip
def test_never_two_learners_on_one_core(
    assigned: list[set[int]], reserved: set[int], unassigned: set[int], moves: list[tuple[int, bool]]
) -> None:
    """In any order of offers and returns, no learner gets a core that was or is another's."""
    masks = {rank: cores(*mine) for rank, mine in enumerate(assigned)}
    spare_cores = SpareCores(masks, cores(*reserved), cores(*unassigned), two_packages)
    owned, first = dict(masks), dict(masks)
    may_return = set[int]()
    for rank, back in moves:
        if rank not in masks:
            continue
        if back and rank in may_return:
            owned[rank] = spare_cores.give_back(rank)
            may_return.discard(rank)
        elif not back and (offer := spare_cores.offer(rank)) is not None:
            others = frozenset[int]().union(*(mask for other, mask in owned.items() if other != rank))
            new = offer.cpus - owned[rank]
            assert new <= cores(*reserved, *unassigned)
            assert not new & (others | frozenset[int]().union(*first.values()))
            owned[rank] = offer.cpus
            may_return.add(rank)


def test_reading_this_machine() -> None:
    assert 0 in core_of(0).cpus
    assert read_load().on_cpu > 0
    assert core_of(9999) == CpuCore(frozenset({9999}), -1, -1)


def test_the_run_folder_names_the_event_log() -> None:
    assert RunDir("/r").ddl == f"/r/{NAME}"
