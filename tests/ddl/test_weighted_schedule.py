"""Blocks sized by the rates of links, and their schedules, executed without a network."""

import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlrun.allreduce_algorithms import (
    WEIGHTED,
    AlgorithmSpace,
    AllreduceAlgorithm,
    MessageClass,
    Tuning,
    default_algorithm,
    neighbours,
    size_blocks,
)
from ddlrun.block_sizing import JobLinks, cut, divide_blocks, is_equal
from ddlrun.ddl.schedules.schedule import ScheduleStep, mirror
from ddlrun.ddl.schedules.weighted_schedule import HostLayout, reduce_scatter
from ddlrun.ddl.selection.autotune import is_clearly_faster
from ddlrun.ddl.selection.nic_monitor import can_size_blocks, choose_rates, pair_hosts, round_rates
from ddlrun.ddl.selection.unequal_links import HostGroups, degraded_hosts, make_layout, parse_links
from ddlrun.errors import InputError
from tests.support.schedules import carry_out, least_seconds

RATES = st.sampled_from([1.0, 0.5, 0.25, 0.9, 3.0])
COUNT = 12_000


class UnequalJob(NamedTuple):
    """The links of a job, and the ranks of each host."""

    links: JobLinks
    sizes: tuple[int, ...]

    @property
    def layout(self) -> HostLayout:
        ends = [0, *itertools.accumulate(self.sizes)]
        hosts = tuple(tuple(range(low, high)) for low, high in itertools.pairwise(ends))
        return HostLayout(hosts, divide_blocks(self.links))

    def schedules(self, count: int, *, division: bool = False) -> list[list[ScheduleStep]]:
        layout = self.layout
        return [reduce_scatter(layout, rank, count, division=division) for rank in range(sum(self.sizes))]


@st.composite
def jobs(draw: st.DrawFn) -> UnequalJob:
    racks = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    nics = tuple(draw(RATES) for _ in range(sum(racks)))
    uplinks = tuple(draw(RATES) for _ in racks) if draw(st.booleans()) else ()
    return UnequalJob(JobLinks(nics, racks, uplinks), tuple(draw(st.integers(1, 3)) for _ in nics))


def seconds_per_byte(job: UnequalJob, layout: HostLayout) -> float:
    """Return the seconds of the busiest NIC or uplink, from the messages of the schedules."""
    host_of = [host for host, size in enumerate(job.sizes) for _ in range(size)]
    rack_of = [rack for rack, size in enumerate(job.links.racks) for _ in range(size)]
    nics, uplinks = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for rank, host in enumerate(host_of):
        steps = reduce_scatter(layout, rank, COUNT)
        for step in [*steps, *mirror(steps)]:
            for peer, low, high in step.sends:
                other = host_of[peer]
                if host != other:
                    nics["out", host] += high - low
                    nics["in", other] += high - low
                if rack_of[host] != rack_of[other]:
                    uplinks["out", rack_of[host]] += high - low
                    uplinks["in", rack_of[other]] += high - low
    seconds = [0.0, *(load / job.links.nics[host] for (_, host), load in nics.items())]
    if job.links.uplinks:
        seconds += [load / job.links.uplinks[rack] for (_, rack), load in uplinks.items()]
    return float(max(seconds)) / COUNT


@settings(max_examples=50, deadline=None)
@given(jobs(), st.integers(0, 200))
def test_each_element_is_summed_exactly_once_and_arrives_everywhere(job: UnequalJob, count: int) -> None:
    size = sum(job.sizes)
    reduces = job.schedules(count)
    buffers = [np.full(count, 1 << rank, dtype=object) for rank in range(size)]
    carry_out([[*steps, *mirror(steps)] for steps in reduces], buffers)
    assert all((buffer == (1 << size) - 1).all() for buffer in buffers)


@settings(max_examples=50, deadline=None)
@given(jobs(), st.integers(0, 100))
def test_averages_are_divided_by_all_ranks_once(job: UnequalJob, count: int) -> None:
    size = sum(job.sizes)
    buffers = [np.full(count, float(rank)) for rank in range(size)]
    carry_out([[*steps, *mirror(steps)] for steps in job.schedules(count, division=True)], buffers)
    assert all(np.allclose(buffer, (size - 1) / 2) for buffer in buffers)


@settings(max_examples=50, deadline=None)
@given(jobs())
def test_messages_load_the_links_as_the_shares_predict(job: UnequalJob) -> None:
    layout = job.layout
    assert seconds_per_byte(job, layout) <= layout.shares.seconds * 1.01 + 1e-9
    assert least_seconds(job.links) <= layout.shares.seconds * (1 + 1e-9)


@pytest.mark.parametrize("hosts", [4, 8])
def test_a_nic_at_half_rate_costs_the_least_possible(hosts: int) -> None:
    job = UnequalJob(JobLinks((*[1.0] * (hosts - 1), 0.5), (hosts,)), (2,) * hosts)
    assert seconds_per_byte(job, job.layout) == pytest.approx(2.0, rel=1e-3)
    assert least_seconds(job.links) == 2.0
    assert job.layout.shares.hosts[0] == pytest.approx((*[1 / (hosts - 1)] * (hosts - 1), 0))


@pytest.mark.parametrize("uplinks", [(), (1.0, 1.0), (0.5, 0.5), (4.0, 4.0)])
def test_racks_of_3_and_2_hosts_are_near_the_bound(uplinks: tuple[float, ...]) -> None:
    job = UnequalJob(JobLinks((1.0,) * 5, (3, 2), uplinks), (1,) * 5)
    assert least_seconds(job.links) >= 0.92 * seconds_per_byte(job, job.layout)


def test_hosts_of_1_2_and_3_ranks_reach_the_bound() -> None:
    job = UnequalJob(JobLinks((1.0,) * 3, (3,)), (1, 2, 3))
    assert seconds_per_byte(job, job.layout) == pytest.approx(least_seconds(job.links), rel=1e-3)


def test_equal_links_are_recognised() -> None:
    assert is_equal(JobLinks((1.0, 1.0), (1, 1), (2.0, 2.0)))
    assert not is_equal(JobLinks((1.0, 0.5), (2,)))
    assert not is_equal(JobLinks((1.0,) * 3, (2, 1)))
    assert not is_equal(JobLinks((1.0,) * 2, (1, 1), (1.0, 0.5)))


@given(st.integers(0, 1000), st.integers(0, 1000), st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any))
def test_blocks_cover_a_range_in_proportion(low: int, size: int, parts: list[int]) -> None:
    shares = [part / sum(parts) for part in parts]
    bounds = cut(low, low + size, shares)
    assert (bounds[0], bounds[-1], len(bounds)) == (low, low + size, len(parts) + 1)
    for (start, end), share in zip(itertools.pairwise(bounds), shares, strict=True):
        assert abs(end - start - share * size) <= 1.01


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_every_host_meets_others_to_measure_its_nic(racks: list[int]) -> None:
    rounds = pair_hosts(racks)
    met = Counter(host for pairs in rounds for pair in pairs for host in pair)
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len({frozenset(pair) for pairs in rounds for pair in pairs}) >= sum(map(len, rounds[:1]))
    if sum(racks) >= 3:
        assert all(met[host] >= 2 for host in range(sum(racks)))


def test_rates_that_differ_by_noise_are_equal() -> None:
    assert round_rates([10.0, 9.0, 11.0, 10.4]) == (10.2,) * 4
    assert round_rates([10.0, 5.0, 10.0]) == (10.0, 5.0, 10.0)


@pytest.mark.parametrize(
    ("rates", "sentences"),
    [
        ((100.0, 100.0, 51.0, 100.0), ["h3's NIC carries 51 % of the others'"]),
        ((100.0, 100.0, 50.0, 50.0), ["h3's NIC carries 50 % of the others'", "h4's NIC carries 50 % of the others'"]),
        ((100.0, 100.0, 400.0), []),
    ],
)
def test_degraded_hosts_are_slower_than_the_others(rates: tuple[float, ...], sentences: list[str]) -> None:
    assert degraded_hosts(rates, ["h1", "h2", "h3", "h4"][: len(rates)]) == sentences


def test_blocks_are_sized_anew_only_if_rates_have_changed() -> None:
    slow, similar, recovered = (100.0, 100.0, 50.0), (220.0, 220.0, 101.0), (80.0, 80.0, 80.0)
    assert choose_rates(slow, ()) == choose_rates(similar, slow) == slow
    assert choose_rates(recovered, slow) == choose_rates(recovered, ()) == ()
    assert choose_rates((100.0, 50.0, 100.0), slow) == (100.0, 50.0, 100.0)


@pytest.mark.parametrize(
    ("sized", "equal", "expected"),
    [
        ([2.0, 2.0, 2.0], [3.0, 3.0, 3.0], True),
        ([2.0, 3.1, 2.0], [3.0, 3.0, 3.0], False),  # once slower: noise
        ([2.8, 2.8, 2.8], [3.0, 3.0, 3.0], False),  # hardly faster
        ([2.0, 2.0, 2.0], [2.1, 2.1, 9.0], False),  # a single disturbance of the others
        ([3.0, 3.0, 3.0], [2.0, 2.0, 2.0], False),
    ],
)
def test_sized_blocks_must_be_clearly_faster(sized: list[float], equal: list[float], expected: bool) -> None:  # noqa: FBT001
    assert is_clearly_faster(sized, equal) is expected


def test_measured_rates_size_the_blocks_of_large_arrays() -> None:
    message = MessageClass(2**20, "float32", whole=True, blocking=False)
    assert can_size_blocks(message)
    assert not can_size_blocks(message._replace(size=2**20 - 4))
    assert not can_size_blocks(message._replace(whole=False))
    assert not can_size_blocks(message._replace(wire="float16:X"))
    explored = AllreduceAlgorithm("chunks", ("ring", "direct"), 2**15, 4, "bfloat16:Y")
    assert size_blocks(explored, Tuning(), 2**25) == explored._replace(algorithms=WEIGHTED)
    assert size_blocks(explored._replace(chunk=2**22), Tuning(), 2**25).chunk == 2**20
    assert size_blocks(AllreduceAlgorithm("flat"), Tuning(chunk=7), 2**25).chunk == 7


@pytest.mark.parametrize("text", ["nics", "nics=", "nics=3*", "nics=0", "speed=3", "nics=1+x", "nics=1e3"])
def test_malformed_links_are_errors(text: str) -> None:
    with pytest.raises(InputError, match="NAME=NUMBERS with nics, racks, uplinks"):
        parse_links(text)


def test_links_describe_the_hosts_of_the_job() -> None:
    hosts = HostGroups(((0, 1), (2, 3), (4, 5)), (3,))
    assert make_layout("", hosts) is None
    assert make_layout("nics=3*10,racks=3,uplinks=5", hosts) is None
    assert make_layout("nics=2*10+5", hosts) == HostLayout(hosts.ranks, divide_blocks(JobLinks((10, 10, 5), (3,))))
    assert make_layout("racks=2+1", hosts) is not None
    assert make_layout("", HostGroups(((0,), (1, 2)), (2,))) is not None
    with pytest.raises(InputError, match=r"2 NICs, but the job has 3\n.*5 hosts in racks, but the job has 3\n.*1 upl"):
        make_layout("nics=10+5,racks=2+3,uplinks=5", hosts)


def test_unequal_links_replace_the_algorithms_of_the_dimensions() -> None:
    message = MessageClass(2**20, "float32", whole=True, blocking=False, weighted=True)
    weighted = default_algorithm("p", Tuning(), (4,), message)
    assert weighted.algorithms == WEIGHTED
    assert default_algorithm("p", Tuning(), (4,), message._replace(whole=False)).algorithms == ("direct",)
    assert default_algorithm("p", Tuning(), (4,), message._replace(wire="float16:X")).algorithms == ("direct",)
    space = AlgorithmSpace(weighted, weighted, (4,), 2**20, blocking=False)
    assert {near.algorithms for near in neighbours(weighted, space)} == {WEIGHTED}
