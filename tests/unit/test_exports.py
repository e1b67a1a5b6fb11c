import os
import subprocess
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.cli.launch import command as launch
from ddlrun.cli.options.translation import translate
from ddlrun.environment.exports import (
    HOST_BOUND,
    keep_inherited,
    parse_assignment,
    parse_exports,
    select_exports,
)
from ddlrun.environment.library_settings import SETTINGS, render_shown_variables
from ddlrun.environment.placement_variables import render_rank_variables
from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList
from ddlrun.keeper.binding import parse_binding
from ddlrun.machine import GPU, PU
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.mapping.placement import place
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.plan.plan import START
from ddlrun.ranges import render_ranges
from ddlrun.topology import JobTopology, RankOrder, Topology, UnequalTopology
from docs.reference.tables import read_table
from tests.machines.facts import load
from tests.machines.render_hwloc import render_hwloc
from tests.support import needs
from tests.support.shapes import machine, placement

ENVIRON = ("HOME", "LC_ALL", "MYVAR", "NCCL_DEBUG", "OMPI_X", "PATH", "SEED", "SLURM_JOB_ID", "SSH_AUTH_SOCK")


@pytest.mark.parametrize(
    ("text", "elsewhere", "here"),
    [
        ("ALL", {"LC_ALL", "MYVAR", "NCCL_DEBUG", "PATH", "SEED"}, set(ENVIRON)),
        ("NONE", {"LC_ALL", "PATH"}, {"HOME", "LC_ALL", "OMPI_X", "PATH", "SLURM_JOB_ID", "SSH_AUTH_SOCK"}),
        ("NCCL_*,SEED", {"LC_ALL", "NCCL_DEBUG", "PATH", "SEED"}, set(ENVIRON) - {"MYVAR"}),
        ("ALL,SLURM_JOB_ID", {"LC_ALL", "MYVAR", "NCCL_DEBUG", "PATH", "SEED", "SLURM_JOB_ID"}, set(ENVIRON)),
    ],
)
def test_exported_variables(text: str, elsewhere: set[str], here: set[str]) -> None:
    policy = parse_exports(text)
    kept = keep_inherited(dict.fromkeys(ENVIRON, ""), policy, [])
    assert set(kept) == here
    assert set(select_exports(kept, policy, [])) == elsewhere


def test_named_variables_are_exported_whatever_they_describe() -> None:
    policy = parse_exports("NONE")
    assert keep_inherited({"MINE": "1", "OTHER": "2"}, policy, ["MINE"]) == {"MINE": "1"}
    assert select_exports({"MINE": "1"}, policy, ["MINE", "SSH_AUTH_SOCK"]) == ("MINE", "SSH_AUTH_SOCK")


@pytest.mark.parametrize("text", ["", ",", "NONE,A", "A=1", "A-B", "a b", "*x"])
def test_bad_exports(text: str) -> None:
    with pytest.raises(InputError, match="--export"):
        parse_exports(text)


def test_the_page_lists_the_variables_of_a_host() -> None:
    rows = read_table("reference/environment-variables.md", "What is passed on to the ranks")
    assert rows == [[group.reason, group.names.replace("*", "\\*")] for group in HOST_BOUND]


def test_names_that_no_shell_can_carry_are_left_out() -> None:
    assert select_exports(["NCCL_A.B", "BASH_FUNC_x%%"], parse_exports("ALL"), []) == ()


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


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        ("--cycle-time-ms 3.5", "HOROVOD_CYCLE_TIME=3.5"), ("--cache-capacity=0", "HOROVOD_CACHE_CAPACITY=0"),
        ("--torus-allreduce", "HOROVOD_TORUS_ALLREDUCE=1"), ("--no-torus-allreduce", "HOROVOD_TORUS_ALLREDUCE=0"),
        ("--no-stall-check", "HOROVOD_STALL_CHECK_DISABLE=1"), ("--log-with-timestamp", "HOROVOD_LOG_HIDE_TIME=0"),
        ("--log_level debug", "HOROVOD_LOG_LEVEL=DEBUG"),
        ("-lms 1MB", "DDLRUN_LMS=977"), ("-lms_frac 0.5", "DDLRUN_LMS_FRAC=0.5"),
    ],
)  # fmt: skip
def test_settings_of_libraries_become_variables(words: str, variable: str) -> None:
    assert translate([*words.split(), "a.py"], launch.params).words == ["--env", variable, "a.py"]


def test_settings_that_are_shown_become_variables() -> None:
    values = {"fusion_threshold_mb": 64.5, "hierarchical_allreduce": True}
    assert render_shown_variables(values) == {
        "HOROVOD_FUSION_THRESHOLD": str(int(64.5 * 1048576)), "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
    }  # fmt: skip


def test_each_setting_of_libraries_stands_once() -> None:
    assert len({setting.option for setting in SETTINGS}) == len(SETTINGS)
    assert len({setting.yaml for setting in SETTINGS}) == len(SETTINGS)


def threads_and_cpus(told: Mapping[str, str], rank: int, local_rank: int, size: int) -> tuple[int, AbstractSet[int]]:
    found = parse_binding(told, rank, local_rank, size)
    assert found is not None
    return found.threads, found.cpus


@given(
    st.sampled_from(["1x2", "minsky", "4x6"]), st.integers(1, 2), st.integers(1, 4), st.integers(1, 3),
    st.integers(1, 2), st.sampled_from(RankOrder),
)  # fmt: skip
def test_each_rank_finds_its_own_seat(name: str, x: int, y: int, z: int, a: int, order: RankOrder) -> None:
    hosts = [f"h{i}" for i in range(y * z * a)]
    placed = placement(f"{x}x{y}x{z}x{a}", hosts, machine(name), order)
    told = render_rank_variables(placed, "p")
    for one in placed.by_host():
        found = threads_and_cpus(told, one.rank, one.binding.local_rank, placed.topology.size)
        assert found == (one.binding.threads, set())  # a described machine's CPUs are not known


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
    told = render_rank_variables(placed, "p")
    assert len(told["DDLRUN_SEATS"]) < 120_000
    assert threads_and_cpus(told, 11999, 3, 12000) == (5, set())


@pytest.mark.parametrize(
    ("topology", "racks", "expected"),
    [
        (Topology((1, 5)), "aaabb", "3+2"),
        (Topology((1, 2, 3)), "aaaabb", "4+2"),
        (Topology((1, 2, 2)), "aabb", None),
        (Topology((1, 3)), "aaa", None),
        (Topology((1, 3)), "aba", None),
        (UnequalTopology((2, 1, 1)), "abb", "1+2"),
        (UnequalTopology((2, 1)), "ab", "1+1"),
    ],
)
def test_racks_that_the_topology_does_not_have_are_told(
    topology: JobTopology, racks: str, expected: str | None
) -> None:
    listed = HostList(tuple(Host(f"h{number}", None, rack) for number, rack in enumerate(racks)), "test")
    machines = dict.fromkeys(listed.names, machine("minsky"))
    told = render_rank_variables(place(topology, listed, machines, RankOrder.HOST), "p")
    assert told.get("DDLRUN_RACKS") == expected
    nameless = HostList(tuple(host._replace(rack=None) for host in listed), "test")
    assert "DDLRUN_RACKS" not in render_rank_variables(place(topology, nameless, machines, RankOrder.HOST), "p")


def test_cores_that_are_left_are_told() -> None:
    measured = machine("minsky")._replace(measured=True)  # 2 packages x 10 cores, SMT8: 0-7, 8-15, ...
    plain = place(Topology((4,)), hosts(1), {"h0": measured}, RankOrder.HOST)
    assert "DDLRUN_SPARES" not in render_rank_variables(plain, "p")
    policy = PlacementPolicy(reserve_cores=3, cores_per_rank=4, threads_per_core=1)
    machines = {"h0": measured, "h1": measured, "h2": measured._replace(measured=False)}
    placed = place(Topology((4, 3)), hosts(3), machines, RankOrder.HOST, policy)
    told = render_rank_variables(placed, "p")
    assert told["DDLRUN_SPARES"] == "2*0,8,80;120/1*;"
    shown = "os.environ.get('DDLRUN_SPARE_CPUS')"
    for rank, spares in ((0, "0,8,80;120"), (11, ";")):
        done = started("1@@@;1@@@;1@@@;1@@@", shown, **told | {"OMPI_COMM_WORLD_RANK": str(rank), "DDLRUN_SEATS": ""})
        assert done.stdout == "None\n"  # no plan for this one
        seats = {"DDLRUN_SEATS": "3*1@@@;1@@@;1@@@;1@@@", "OMPI_COMM_WORLD_SIZE": "12"}
        done = started("", shown, **told | seats | {"OMPI_COMM_WORLD_RANK": str(rank)})
        assert done.stdout == f"{spares}\n", done.stderr


def hosts(number: int) -> HostList:
    return HostList(tuple(Host(f"h{i}") for i in range(number)), "test")


def test_outside_of_a_launch_there_is_no_seat() -> None:
    assert parse_binding({}, 0, 0, 1) is None
    assert parse_binding({"DDLRUN_SEATS": "1*1@0@@"}, -1, -1, -1) is None


def started(seats: str, program: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Start one rank as mpirun does, with the affinity that we have."""
    told = {
        "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1",
        "DDLRUN_TOPOLOGY": "1x1x1", "DDLRUN_RANK_ORDER": "host", "DDLRUN_SEATS": f"1*{seats}",
        "PATH": os.environ["PATH"],
    }  # fmt: skip
    argv = [sys.executable, "-I", "-S", START, sys.executable, "-c", f"import os; print({program})"]
    return subprocess.run(argv, env={**told, **more}, capture_output=True, text=True, check=False)


def test_a_rank_keeps_to_the_hardware_threads_of_its_seat() -> None:
    one = min(os.sched_getaffinity(0))
    narrow = started(f"1@{one}@@", "sorted(os.sched_getaffinity(0))", DDLRUN_NARROW="1")
    assert (narrow.stdout, narrow.stderr) == (f"[{one}]\n", "")
    loose = started(f"1@{one}@@", "len(os.sched_getaffinity(0))")
    assert loose.stdout == f"{len(os.sched_getaffinity(0))}\n"
    assert ("nothing binds it: --bind-to none" in loose.stderr) == (len(os.sched_getaffinity(0)) > 1)
    wider = started(f"1@{render_ranges({*os.sched_getaffinity(0), 4000})}@@", "1")
    assert "a cgroup or taskset on that host leaves it fewer" in wider.stderr


def test_threads_of_a_hosts_own_environment_are_a_difference_from_the_plan() -> None:
    other = started("2@@@", "os.environ['OMP_NUM_THREADS']", OMP_NUM_THREADS="5")
    assert (other.stdout, "OMP_NUM_THREADS=5 in its environment, planned 2" in other.stderr) == ("5\n", True)
    assert started("2@@@", "1", OMP_NUM_THREADS="2,4").stderr == ""


def test_near_nics() -> None:
    shown = "os.environ['NCCL_IB_HCA'], os.environ['UCX_NET_DEVICES']"
    seats = "1@@@mlx5_0;1@@@mlx5_1,mlx5_2"
    two = {"OMPI_COMM_WORLD_SIZE": "2", "DDLRUN_TOPOLOGY": "2x1x1"}
    assert started(seats, shown, **two).stdout == "=mlx5_0,mlx5_1,mlx5_2 mlx5_0:1\n"
    assert started(seats, shown, NCCL_IB_HCA="x", UCX_NET_DEVICES="y").stdout == "x y\n"
    assert started("1@@@", "os.environ.get('NCCL_IB_HCA')").stdout == "None\n"


def test_gpus_that_nobody_measured_are_numbered() -> None:
    placed = placement("2", ["a"], machine("minsky"), policy=PlacementPolicy(gpu_order=(2, 0)))
    told = render_rank_variables(placed, "p")["DDLRUN_SEATS"]
    assert [seat.split("@")[2] for seat in told.partition("*")[2].split(";")] == ["nvidia=2,0,1,3", "nvidia=2,0,1,3"]
    own = render_rank_variables(placed, "p", "own")["DDLRUN_SEATS"]
    assert [seat.split("@")[2] for seat in own.partition("*")[2].split(";")] == ["nvidia=2", "nvidia=0"]
    shown = "os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER']"
    assert started("1@@nvidia=2,0@", shown).stdout == "2,0 PCI_BUS_ID\n"
    assert (
        render_rank_variables(placement("4", ["a"], machine("minsky")), "p")["DDLRUN_SEATS"] == "1*5@@@;5@@@;5@@@;5@@@"
    )


def test_a_rank_sees_its_own_mig_device() -> None:
    shown, two = "os.environ['CUDA_VISIBLE_DEVICES']", {"OMPI_COMM_WORLD_SIZE": "2", "DDLRUN_TOPOLOGY": "2x1x1"}
    second = {**two, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    seats, chosen = "1@@nvidia=0,1@;1@@nvidia=0,1@", {"CUDA_VISIBLE_DEVICES": "MIG-GPU-1/1/0, MIG-2"}
    assert started(seats, shown, **two, **chosen).stdout == "MIG-GPU-1/1/0\n"
    assert started(seats, shown, **second, **chosen).stdout == "MIG-2\n"
    assert started(seats, shown, **second, NVIDIA_VISIBLE_DEVICES="MIG-1,MIG-2").stdout == "MIG-2\n"
    assert started("1@@nvidia=1@", shown, **chosen).stdout == "MIG-2\n"


def test_intel_gpus_are_left_to_the_driver() -> None:
    gpus = tuple(GPU(number, pci_address=f"0000:{number}a:00.0", vendor="intel") for number in range(2))
    measured = machine("minsky")._replace(gpus=gpus, measured=True)
    told = render_rank_variables(placement("2", ["a"], measured), "p")["DDLRUN_SEATS"]
    assert {seat.split("@")[2] for seat in told.split(";")} == {""}
    own = render_rank_variables(placement("2", ["a"], measured), "p", "own")["DDLRUN_SEATS"]
    assert [seat.split("@")[2] for seat in own.split(";")] == ["intel=0", "intel=1"]


def test_gloo_gets_the_interface_of_its_own_host() -> None:
    shown = "os.environ.get('GLOO_SOCKET_IFNAME')"
    names = f"other=eth0 {os.uname().nodename}=ens3,ens4"
    assert started("1@@@", shown, DDLRUN_IFNAMES=names).stdout == "ens3\n"
    assert started("1@@@", shown, DDLRUN_IFNAMES=names, GLOO_SOCKET_IFNAME="mine").stdout == "mine\n"


def test_the_memory_of_a_rank_is_bound_to_numa_nodes() -> None:
    measured = parse_hwloc(render_hwloc(load("turin-4-gpus")), "turin")
    seats = {
        membind: render_rank_variables(placement("4", ["a"], measured, policy=PlacementPolicy(membind=membind)), "p")
        for membind in ("gpu", "interleave", None)
    }
    memory = {
        membind: [seat.split("@")[4:] for seat in told["DDLRUN_SEATS"].split(";")] for membind, told in seats.items()
    }
    assert memory["gpu"] == [["bind=1"], ["bind=2"], ["bind=6"], ["bind=7"]]
    assert memory["interleave"] == [["interleave=0,1"], ["interleave=2,3"], ["interleave=5,6"], ["interleave=4,7"]]
    assert memory[None] == [[], [], [], []]


@pytest.mark.parametrize(
    ("text", "policy"), [("@bind=0", "bind:0"), ("@interleave=0", "interleave:0"), ("", "default")]
)
def test_the_kernel_reports_the_memory_policy_of_the_plan(text: str, policy: str) -> None:
    needs.memory_policy()
    done = started(f"1@@@{text}", "open('/proc/self/numa_maps').readline().split()[1]")
    assert (done.stdout, done.stderr) == (f"{policy}\n", "")


def test_memory_on_a_node_that_is_missing_is_a_problem() -> None:
    needs.memory_policy()
    done = started("1@@@@bind=900", "1")
    assert done.stdout == "1\n"
    assert "rank 0 on " in done.stderr
    assert "its memory policy bind=900 cannot be set: Invalid argument; a node is missing on that host" in done.stderr
    assert started("1@@@@bind=900", "1", DDLRUN_STRICT_BINDING="1").returncode == 5
