"""Schedules of the allreduce, executed without MPI: each element is summed exactly once, and reaches all learners."""

import itertools
import math
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.ddl.group.dimensions import coords_of, peers_of, rank_at
from ddlrun.ddl.group.operation import Chunk, HostParts, Limits, Operation, make_parts
from ddlrun.ddl.group.reduce_ops import find_reduce_op
from ddlrun.ddl.schedules.partition import block_bounds, chunk_ranges, ramped_ranges
from ddlrun.ddl.schedules.schedule import (
    REDUCE_SCATTERS,
    Dimension,
    Message,
    ScheduleStep,
    between_hosts,
    mirror,
    own_block,
    reduce_scatter,
    scatter_part,
)
from ddlrun.topology import RankOrder, Topology
from tests.support.schedules import carry_out

ORDERS = st.sampled_from(RankOrder)
SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).filter(lambda dims: math.prod(dims) <= 48)
ALGORITHMS = st.sampled_from(sorted(REDUCE_SCATTERS))


class Job(NamedTuple):
    """A topology, the order of its ranks and an algorithm per dimension."""

    topology: Topology
    order: RankOrder
    algorithms: tuple[str, ...]

    def dimensions(self, rank: int) -> list[Dimension]:
        coords = coords_of(self.topology, self.order, rank)
        return [
            Dimension(peers_of(self.topology, self.order, coords, axis), coords[axis], self.algorithms[axis])
            for axis in range(len(coords))
        ]


JOBS = st.builds(
    lambda dims, order, algorithms: Job(Topology(tuple(dims)), order, tuple(algorithms)),
    SHAPES,
    ORDERS,
    st.lists(ALGORITHMS, min_size=4, max_size=4),
)


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_block_bounds_are_those_of_mpi_reduce_scatter(count: int, parts: int) -> None:
    bounds = block_bounds(count, parts)
    sizes = [high - low for low, high in itertools.pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(sizes)) == (0, count, parts)
    each, rest = divmod(count, parts)
    assert sizes == [each + 1] * rest + [each] * (parts - rest)


@given(st.integers(1, 10_000), st.integers(1, 500))
def test_chunk_ranges_are_few_and_equal(count: int, longest: int) -> None:
    ranges = chunk_ranges(count, longest)
    sizes = [high - low for low, high in ranges]
    assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
    assert (sum(sizes), len(sizes)) == (count, math.ceil(count / longest))
    assert 1 <= min(sizes) <= max(sizes) <= min(longest, min(sizes) + 1)


@given(st.integers(1, 10_000), st.integers(1, 500))
def test_ramped_ranges_cover_all_with_the_shortest_at_both_ends(count: int, longest: int) -> None:
    ranges = ramped_ranges(count, longest)
    sizes = [high - low for low, high in ranges]
    assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
    assert sum(sizes) == count
    assert 1 <= min(sizes) <= max(sizes) <= longest
    if 4 <= longest <= count // 4:
        assert sizes[0] == sizes[-1] == longest // 4


@given(SHAPES, ORDERS)
def test_ranks_and_coordinates_are_inverse(dims: list[int], order: RankOrder) -> None:
    topology = Topology(tuple(dims))
    places = [coords_of(topology, order, rank) for rank in range(topology.size)]
    assert sorted(places) == list(itertools.product(*map(range, topology.dims)))
    assert [rank_at(topology, order, place) for place in places] == list(range(topology.size))


@given(SHAPES)
def test_in_host_order_ranks_of_a_host_are_adjacent(dims: list[int]) -> None:
    topology = Topology(tuple(dims))
    for rank in range(topology.size):
        x, *rest = coords_of(topology, RankOrder.HOST, rank)
        assert (x, rest) == (rank % topology.ranks_per_host, [*topology.host_coords(rank // topology.ranks_per_host)])


@given(JOBS, st.integers(0, 200))
def test_each_element_is_summed_exactly_once_and_arrives_everywhere(job: Job, count: int) -> None:
    size = job.topology.size
    every = [job.dimensions(rank) for rank in range(size)]
    reduces = [reduce_scatter(dimensions, count) for dimensions in every]
    # Learner i adds 2**i: the sum shows which learners were added, and how often.
    buffers = [np.full(count, 1 << rank, dtype=object) for rank in range(size)]
    carry_out(reduces, buffers)
    blocks = [own_block(dimensions, count) for dimensions in every]
    bounds = block_bounds(count, size)
    assert sorted(blocks) == sorted(itertools.pairwise(bounds))
    for rank, (low, high) in enumerate(blocks):
        assert (buffers[rank][low:high] == (1 << size) - 1).all()
        index = rank_at(job.topology, RankOrder.DDL, coords_of(job.topology, job.order, rank))
        assert (low, high) == bounds[index : index + 2]
    carry_out([mirror(steps) for steps in reduces], buffers)
    assert all((buffer == (1 << size) - 1).all() for buffer in buffers)


@given(JOBS, st.integers(0, 100), st.sampled_from(["once", "each"]))
def test_averages_are_divided_by_all_learners_once(job: Job, count: int, division: str) -> None:
    every = [job.dimensions(rank) for rank in range(job.topology.size)]
    reduces = [reduce_scatter(dimensions, count, division=division) for dimensions in every]
    buffers = [np.full(count, float(rank)) for rank in range(job.topology.size)]
    carry_out([[*steps, *mirror(steps)] for steps in reduces], buffers)
    assert all(np.allclose(buffer, (job.topology.size - 1) / 2) for buffer in buffers)


@given(
    JOBS.filter(lambda job: min(job.topology.ranks_per_host, job.topology.hosts) > 1),
    st.data(),
    st.sampled_from(["", "once", "each"]),
)
def test_parts_inside_hosts_have_the_same_sums_and_averages(job: Job, data: st.DataObject, division: str) -> None:
    """Each learner cuts its own block of a part into chunks, which must be those of its peers on other hosts."""
    count, longest, of_part = (data.draw(st.integers(1, most)) for most in (300, 40, 120))
    size = job.topology.size
    every = []
    for rank in range(size):
        dimensions = job.dimensions(rank)
        host = HostParts(partial(steps_of_part, dimensions), partial(own_block, dimensions[:1]), of_part)
        operation = Operation(
            np.empty(count), find_reduce_op("float64", "avg" if division else "sum"), 1, Limits(longest)
        )
        operation.division = division
        schedule = partial(steps_between_hosts, dimensions)
        every.append(make_parts(operation, schedule, ramped_ranges(count, longest), host))
    buffers = [np.full(count, 1 << rank, dtype=float if division else object) for rank in range(size)]
    for chunks in zip(*every, strict=True):
        carry_out([moved(chunk) for chunk in chunks], buffers)
    total = (1 << size) - 1
    assert all(np.allclose(buffer, total / size) if division else (buffer == total).all() for buffer in buffers)


def steps_of_part(dimensions: list[Dimension], count: int, division: str) -> tuple[ScheduleStep, ...]:
    return tuple(scatter_part(dimensions, count, division=division))


def steps_between_hosts(dimensions: list[Dimension], count: int, division: str) -> tuple[ScheduleStep, ...]:
    return tuple(between_hosts(dimensions, count, division=division))


def moved(chunk: Chunk) -> list[ScheduleStep]:
    """Return the steps of a chunk for the whole array."""
    return [
        step._replace(
            sends=tuple(Message(peer, low + chunk.start, high + chunk.start) for peer, low, high in step.sends),
            receives=tuple(Message(peer, low + chunk.start, high + chunk.start) for peer, low, high in step.receives),
        )
        for step in chunk.steps
    ]


@given(st.integers(1, 40), ALGORITHMS, st.integers(1, 50))
def test_a_learner_sends_the_least_possible(size: int, algorithm: str, each: int) -> None:
    bounds = block_bounds(size * each, size)
    sent = [
        sum(m.high - m.low for step in REDUCE_SCATTERS[algorithm](me, bounds) for m in step.sends) for me in range(size)
    ]
    least = (size - 1) * each
    if algorithm == "halving" and size & (size - 1):
        # An odd half sends one message more than it has pairs.
        assert max(sent) <= 2 * size * each
    else:
        assert max(sent) <= least
    if algorithm != "halving":
        assert sum(sent) == size * least


@pytest.mark.parametrize(("algorithm", "steps"), [("ring", 12), ("direct", 1), ("halving", 4)])
def test_steps_of_thirteen_learners(algorithm: str, steps: int) -> None:
    assert max(len(REDUCE_SCATTERS[algorithm](me, block_bounds(130, 13))) for me in range(13)) == steps
