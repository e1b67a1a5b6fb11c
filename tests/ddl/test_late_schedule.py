"""Schedules that take a late host last: executed without a network, and by real ranks over MPI and TCP."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.allreduce_algorithms import LATE, WEIGHTED, AllreduceAlgorithm, MessageClass, wait_for_late_host
from ddlrun.ddl.group.dimensions import coords_of, peers_of
from ddlrun.ddl.schedules.late_schedule import allreduce
from ddlrun.ddl.schedules.schedule import Dimension, ScheduleStep
from ddlrun.ddl.selection.late_host_monitor import Begin, LateHost, can_wait, find_late_host
from ddlrun.topology import RankOrder, Topology
from tests.ddl.test_mpi import started
from tests.ddl.test_tcp import started_alone
from tests.support.schedules import carry_out

RANKS = Path(__file__).with_name("late_ranks.py")


class LateJob(NamedTuple):
    """Ranks per host in two dimensions, hosts, and the index of the late one."""

    dims: tuple[int, int, int]
    late: int
    order: RankOrder

    def steps(self, count: int, division: str = "") -> list[tuple[ScheduleStep, ...]]:
        topology, steps = Topology(self.dims), []
        for rank in range(topology.size):
            coords = coords_of(topology, self.order, rank)
            dimensions = [
                Dimension(peers_of(topology, self.order, coords, axis), coords[axis], algorithm)
                for axis, algorithm in enumerate(("ring", "halving", "ring"))
            ]
            steps.append(allreduce(dimensions, self.late, count, division=division))
        return steps

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    def late_ranks(self) -> list[int]:
        topology = Topology(self.dims)
        return [rank for rank in range(self.size) if coords_of(topology, self.order, rank)[2] == self.late]


JOBS = st.builds(
    lambda x, y, hosts, late, order: LateJob((x, y, hosts), late % hosts, order),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(2, 6),
    st.integers(0, 5),
    st.sampled_from(RankOrder),
)


@given(JOBS, st.integers(0, 200))
def test_each_element_is_summed_exactly_once_and_arrives_everywhere(job: LateJob, count: int) -> None:
    buffers = [np.full(count, 1 << rank, dtype=object) for rank in range(job.size)]
    carry_out(job.steps(count), buffers)
    assert all((buffer == (1 << job.size) - 1).all() for buffer in buffers)


@given(JOBS, st.integers(0, 100), st.sampled_from(["once", "each"]))
def test_averages_are_divided_by_all_learners_once(job: LateJob, count: int, division: str) -> None:
    buffers = [np.full(count, float(rank)) for rank in range(job.size)]
    carry_out(job.steps(count, division), buffers)
    assert all(np.allclose(buffer, (job.size - 1) / 2) for buffer in buffers)


@given(JOBS, st.integers(1, 100))
def test_the_others_reduce_without_the_late_host(job: LateJob, count: int) -> None:
    """What comes before the late step is complete without the late ranks, and leaves the sums of the others."""
    programs = job.steps(count)
    cuts = [next(at for at, step in enumerate(steps) if step.late) for steps in programs]
    late = job.late_ranks()
    assert [cuts[rank] for rank in late] == [0] * len(late)
    buffers = [np.full(count, 1 << rank, dtype=object) for rank in range(job.size)]
    carry_out([steps[:cut] for steps, cut in zip(programs, cuts, strict=True)], buffers)
    others = sum(1 << rank for rank in range(job.size) if rank not in late)
    complete = np.zeros(count, int)
    for buffer in buffers:
        complete += buffer == others
    assert (complete >= 1).all()


def test_the_late_host_sends_and_receives_the_array_once() -> None:
    """The others send as much after its arrival; an allreduce of equal learners sends 2 (n - 1)/n times the array."""
    for steps in LateJob((1, 1, 8), 3, RankOrder.HOST).steps(7 * 100):
        cut = next(at for at, step in enumerate(steps) if step.late)
        after = steps[cut:]
        sent = sum(high - low for step in after for _, low, high in step.sends)
        received = sum(high - low for step in after for _, low, high in step.receives)
        assert (sent, received) == (700, 700)


def test_the_host_that_is_last_in_most_reductions_is_late() -> None:
    hosts = [[Begin(0.1 + 0.01 * host, 1.0)] * 8 for host in range(4)]
    assert find_late_host(hosts) is None
    hosts[2] = [Begin(0.5, 1.0)] * 6 + [Begin(0.1, 1.0)] * 2
    assert find_late_host(hosts) == LateHost(2, 0.37, 1.0)
    hosts[2] = [Begin(0.5, 1.0)] * 5 + [Begin(0.1, 1.0)] * 3
    assert find_late_host(hosts) is None
    # Two hosts that are late together are waited for.
    hosts[1] = hosts[2] = [Begin(0.5, 1.0)] * 8
    assert find_late_host(hosts) is None
    # In a reduction that begins during another one nobody is late.
    hosts[1] = [Begin(0, 0), Begin(0.1, 1.0)] * 4
    assert find_late_host(hosts) == LateHost(2, 0.37, 1.0)
    assert find_late_host([[Begin(0, 0)] * 8] * 4) is None
    assert find_late_host([begins[:6] for begins in hosts]) is None


def test_large_reductions_in_chunks_may_wait() -> None:
    message = MessageClass(2**20, "float32", whole=True, blocking=True)
    chunks = AllreduceAlgorithm("chunks", ("ring", "ring", "ring"), 2**16, 8)
    assert can_wait(message, chunks)
    assert not can_wait(message._replace(size=2**19), chunks)
    assert not can_wait(message._replace(whole=False), chunks)
    assert not can_wait(message._replace(wire="bfloat16:Y"), chunks)
    assert not can_wait(message, AllreduceAlgorithm("flat"))
    assert not can_wait(message, chunks._replace(algorithms=WEIGHTED))
    assert wait_for_late_host(2**23) == AllreduceAlgorithm("chunks", LATE, 2**17, 4)


@pytest.mark.parametrize("major", [5], indirect=True)
def test_ranks_over_mpi(mpirun: str) -> None:
    done = started(mpirun, 8, str(RANKS))
    assert (done.returncode, done.stdout.strip()[-7:]) == (0, "0 wrong"), done.stdout + done.stderr


def test_ranks_over_tcp() -> None:
    first, *others = started_alone(8, str(RANKS))
    assert (first.returncode, first.stdout.strip()[-7:]) == (0, "0 wrong"), first.stdout + first.stderr
    assert [(end.returncode, end.stderr) for end in others] == [(0, "")] * len(others)
