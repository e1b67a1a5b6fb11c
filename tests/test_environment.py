from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.environment import HOROVOD, exported, horovod_variables, parse_assignment, rank_variables, redacted
from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList
from ddlrun.machine import PU
from ddlrun.placement import place
from ddlrun.rank import seat
from ddlrun.topology import RankOrder, Topology
from tests.shapes import machine, placement


def test_families_are_passed_on_and_the_rest_is_not() -> None:
    environ = [
        "PATH",
        "OMP_NUM_THREADS",
        "NCCL_DEBUG",
        "HOME",
        "PWD",
        "BASH_FUNC_x%%",
        "LC_ALL",
        "SSH_AUTH_SOCK",
        "A.B",
    ]
    assert exported(environ, ["MINE"]) == ("LC_ALL", "MINE", "NCCL_DEBUG", "OMP_NUM_THREADS", "PATH")


def test_names_that_no_shell_can_carry_are_left_out_of_families() -> None:
    assert exported(["NCCL_A.B", "OMP_X%%"], []) == ()


@pytest.mark.parametrize(
    ("text", "expected"), [("A=1", ("A", "1")), ("A=", ("A", "")), ("A=b=c d\n", ("A", "b=c d\n"))]
)
def test_assignments(text: str, expected: tuple[str, str]) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["A", "=1", "1A=2", "A-B=1", "A=\0"])
def test_bad_assignments_do_not_show_their_value(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_assignment(text)
    assert "=2" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    shown = redacted({"HF_TOKEN": "abc", "AWS_SECRET_ACCESS_KEY": "abc", "MY_PASSWORD": "abc", "OMP_NUM_THREADS": "4"})
    assert "abc" not in shown.values()
    assert shown["OMP_NUM_THREADS"] == "4"


def test_horovod_settings_become_its_variables() -> None:
    values = {
        "fusion_threshold_mb": 64.5,
        "cycle_time_ms": 3.5,
        "hierarchical_allreduce": True,
        "torus_allreduce": False,
        "stall_check": False,
        "log_with_timestamp": True,
        "autotune": None,
    }
    assert horovod_variables(values) == {
        "HOROVOD_FUSION_THRESHOLD": str(int(64.5 * 1048576)),
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_TORUS_ALLREDUCE": "0",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_LOG_HIDE_TIME": "0",
    }


def test_each_horovod_option_stands_once() -> None:
    assert len({knob.option for knob in HOROVOD}) == len(HOROVOD)
    assert len({knob.yaml for knob in HOROVOD}) == len(HOROVOD)


def threads_and_cpus(told: Mapping[str, str], rank: int, local_rank: int, size: int) -> tuple[int, set[int]]:
    found = seat(told, rank, local_rank, size)
    assert found is not None
    return found.threads, found.cpus


@given(
    st.sampled_from(["1x2", "minsky", "4x6"]), st.integers(1, 2), st.integers(1, 4), st.integers(1, 3),
    st.integers(1, 2), st.sampled_from(RankOrder),
)  # fmt: skip
def test_each_rank_finds_its_own_seat(name: str, x: int, y: int, z: int, a: int, order: RankOrder) -> None:
    hosts = [f"h{i}" for i in range(y * z * a)]
    placed = placement(f"{x}x{y}x{z}x{a}", hosts, machine(name), order)
    told = rank_variables(placed, "p")
    for rank in placed.by_host():
        found = threads_and_cpus(told, rank.rank, rank.seat.local_rank, placed.topology.size)
        assert found == (rank.seat.threads, set())  # a described machine's CPUs are not known


def test_seats_of_hosts_that_differ() -> None:
    told = {
        "DDLRUN_SEATS": "2*5@0-4@@;5@5-9@@/1*1@@@;1@8,10@@",
        "DDLRUN_TOPOLOGY": "2x3x1",
        "DDLRUN_RANK_ORDER": "host",
    }
    assert [threads_and_cpus(told, rank, rank % 2, 6) for rank in range(6)] == [
        (5, {0, 1, 2, 3, 4}), (5, {5, 6, 7, 8, 9}), (5, {0, 1, 2, 3, 4}), (5, {5, 6, 7, 8, 9}),
        (1, set()), (1, {8, 10}),
    ]  # fmt: skip
    ddl = {**told, "DDLRUN_RANK_ORDER": "ddl"}
    assert [threads_and_cpus(ddl, rank, rank // 3, 6) for rank in (2, 5)] == [(1, set()), (1, {8, 10})]


def test_seats_of_very_many_hosts_that_all_differ_fit_into_a_variable() -> None:
    names = [f"h{i}" for i in range(3000)]
    one = machine("minsky")
    machines = {
        name: one._replace(
            cores=tuple(core._replace(pus=(PU(1000 * i + core.logical_index),)) for core in one.cores), measured=True
        )
        for i, name in enumerate(names)
    }
    placed = place(Topology((4, 3000)), HostList(tuple(map(Host, names)), "test"), machines, RankOrder.HOST)
    told = rank_variables(placed, "p")
    assert len(told["DDLRUN_SEATS"]) < 120_000
    assert threads_and_cpus(told, 11999, 3, 12000) == (5, set())


def test_outside_of_a_launch_there_is_no_seat() -> None:
    assert seat({}, 0, 0, 1) is None
    assert seat({"DDLRUN_SEATS": "1*1@0@@"}, -1, -1, -1) is None
