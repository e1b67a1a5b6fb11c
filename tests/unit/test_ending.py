"""The end of a job: the phases, at given times."""

import signal
import time
from collections.abc import Iterator

import pytest

from ddlrun.managers.own import own_manager
from ddlrun.plan.supervision import SupervisedJob, SupervisionOptions
from ddlrun.remote.manager_session import Process, start_manager
from ddlrun.supervise.cause import EndCause
from ddlrun.supervise.ending import HURRY_SECONDS, REPORT_SECONDS, Ending, Phase
from ddlrun.supervise.limits import JobLimits
from ddlrun.supervise.manager_process import ManagerProcess
from ddlrun.supervise.ranks import Ranks
from ddlrun.topology import RankOrder, Topology
from tests.support.keepers import PATIENCE, SimulatedKeeper, is_readable, serving
from tests.support.waiting import wait_until

JOB = SupervisedJob(Topology((2, 1)), RankOrder.HOST, ("n0",), own_manager(""))


@pytest.fixture
def manager() -> Iterator[Process]:
    """Provide a process manager that does not end by itself, nor by SIGTERM."""
    with start_manager(["sh", "-c", "trap '' TERM; echo up; sleep 3600 & wait"], {}) as process:
        assert process.stdout is not None
        wait_until(process.stdout.read)
        yield process
        process.kill()


@pytest.mark.parametrize("before", [True, False], ids=["while ranks end", "while the process manager ends"])
def test_a_second_signal_shortens_the_wait_for_the_process_manager(manager: Process, *, before: bool) -> None:
    with serving() as served:
        ranks = Ranks(JOB)
        limits = JobLimits(SupervisionOptions(), ranks, manager.pid)
        process = ManagerProcess(manager, JOB, served.loop, lambda *_: None)
        ending = Ending(ranks, limits, served.keepers, process, grace=30, tell=lambda _: None)
        ending.begin(EndCause.SIGNAL.reason(exit_code=130, signal=signal.SIGINT))
        if before:
            ending.hurry()
        ending.advance(time.monotonic())
        assert ending.phase is Phase.LEAVING
        ending.hurry()
        ending.advance(time.monotonic() + HURRY_SECONDS)
        assert process.ends_within(PATIENCE)
        assert process.exit_code == -signal.SIGKILL


def test_keepers_that_have_begun_to_connect_are_waited_for() -> None:
    """With many ranks, the process manager may end before ddlrun has read what they sent."""
    with serving() as served, start_manager(["true"], {}) as manager:
        ranks = Ranks(JOB)
        process = ManagerProcess(manager, JOB, served.loop, lambda *_: None)
        limits = JobLimits(SupervisionOptions(), ranks, manager.pid)
        ending = Ending(ranks, limits, served.keepers, process, grace=30, tell=lambda _: None)
        keeper = SimulatedKeeper(served.listener)
        keeper.greet()
        served.until(lambda: is_readable(keeper.link))
        assert process.ends_within(PATIENCE)
        for seconds in (0, 2 * REPORT_SECONDS):
            assert not ending.is_over(time.monotonic() + seconds)
        assert ending.reason is None
        keeper.read_welcome()
        served.until(lambda: served.keepers.peers)
        assert not ending.is_over(time.monotonic() + 2 * REPORT_SECONDS)
        assert ending.reason is None
        keeper.close()
        served.until(lambda: not served.keepers.peers)
        assert ending.is_over(time.monotonic())
