"""Machines: descriptions in YAML, and the probe of /sys and /proc."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.cli.inputs import read_preset
from ddlrun.errors import DdlrunError, InputError, UnreachableError
from ddlrun.machine.cpus import cpu_list, parse_cpu_list
from ddlrun.machine.preset import parse_machine
from ddlrun.machine.sysfs import parse_sysfs
from ddlrun.mapping.local_ranks import place_local_ranks
from ddlrun.mapping.rankfile import render
from tests.machines.facts import parse_facts
from tests.machines.probes import cores_of_lstopo, cores_of_machine, probe_output
from tests.machines.render_hwloc import render_hwloc
from tests.support import needs
from tests.support.oracle import map_ranks
from tests.support.shapes import cores_by_package, placement

PRESETS = Path(__file__).parents[2] / "configs" / "machines"


def test_this_machine_agrees_with_hwloc() -> None:
    needs.program("lstopo", "hwloc-nox")
    assert cores_of_machine(parse_sysfs(probe_output(), "here")) == cores_of_lstopo()


SMALL = """\
cpu/online:0-3
cpu/cpu0/topology/core_siblings_list:0-3
cpu/cpu0/topology/thread_siblings_list:0,2
cpu/cpu1/topology/core_siblings_list:0-3
cpu/cpu1/topology/thread_siblings_list:1,3
cpu/cpu2/topology/core_siblings_list:0-3
cpu/cpu2/topology/thread_siblings_list:0,2
cpu/cpu3/topology/core_siblings_list:0-3
cpu/cpu3/topology/thread_siblings_list:1,3
node/node0/cpulist:0-3
/proc/self/status:Cpus_allowed_list:\t0-3
"""


def test_cores_outside_the_cpuset_are_left_out_and_those_outside_the_affinity_are_not_usable() -> None:
    whole = parse_sysfs(SMALL + "ddlrun:end\n", "h")
    assert [core.usable for core in whole.cores] == [True, True]
    bound = parse_sysfs(SMALL.replace("\t0-3", "\t1,3") + "ddlrun:end\n", "h")
    assert [core.usable for core in bound.cores] == [False, True]
    caged = parse_sysfs(SMALL + "@cpuset cgroup2 cpus 1-3\nddlrun:end\n", "h")
    assert cores_of_machine(caged) == [(0, (2,)), (0, (1, 3))]  # ordered by CPUs 0 and 1
    shrunk = parse_sysfs(SMALL + "@cpuset cgroup2 cpus 1,3\nddlrun:end\n", "h")
    assert cores_of_machine(shrunk) == [(0, (1, 3))]


def test_gpus_and_rdma_devices() -> None:
    pci = (
        "0000:03:00.0/vendor:0x1a03\n0000:03:00.0/class:0x030000\n"  # a server's display chip
        "0000:17:00.0/vendor:0x10de\n0000:17:00.0/class:0x030200\n0000:17:00.0/numa_node:0\n"
        "0000:ca:00.0/vendor:0x1002\n0000:ca:00.0/class:0x038000\n0000:ca:00.0/numa_node:-1\n"
        "@nic infiniband mlx5_0 0 /sys/devices/pci0000:00/0000:18:00.0\nddlrun:end\n"
    )
    machine = parse_sysfs(SMALL + pci, "h")
    assert [(gpu.pci_address, gpu.package, gpu.numa_node) for gpu in machine.gpus] == [
        ("0000:17:00.0", 0, 0),
        ("0000:ca:00.0", 0, None),  # there is only one package
    ]
    assert machine.rdma_devices == ("mlx5_0",)


@given(st.integers(0, len(SMALL) - 1))
def test_cut_text_is_never_a_machine(length: int) -> None:
    with pytest.raises(UnreachableError, match="host h"):
        parse_sysfs(SMALL[:length], "h")


@given(st.text(alphabet="0123456789-,:/\n abcpuntode", max_size=200))
def test_any_text_is_a_machine_or_an_error_that_names_the_host(text: str) -> None:
    try:
        parse_sysfs(SMALL + text + "\nddlrun:end\n", "h")
    except UnreachableError as error:
        assert "host h" in str(error)


@given(st.sets(st.integers(0, 300)))
def test_cpu_lists_are_inverses(numbers: set[int]) -> None:
    assert parse_cpu_list(cpu_list(numbers)) == numbers


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.yaml")), ids=lambda path: path.stem)
def test_presets_are_planned_and_name_their_source(path: Path, major: int, mpirun: str) -> None:
    described = read_preset(path.stem)
    assert described is not None
    assert not described.measured
    assert re.search(r"(?m)^# Source: \S", path.read_text())
    placed = placement(f"{len(described.gpus)}x2", ["a", "b"], described)
    for rank in placed.by_host():
        gpu = rank.binding.gpu
        assert gpu is not None
        assert gpu.package in (None, *(core.package for core in rank.binding.cores))
    assert not placed.shares_cores
    smt, last = len(described.cores[0].pus), len(described.cores) * len(described.cores[0].pus) - 1
    per_package = (last + 1) // len(described.packages)
    facts = parse_facts(f"about: {path.stem}\npackages: 0-{last}/{per_package}\ncores: 0-{last}/{smt}\n", path.stem)
    mapped = map_ranks(major, "".join(render(placed, "test")), render_hwloc(facts), mpirun=mpirun)
    assert mapped == cores_by_package(placed)


def test_summit_gives_seven_cores_to_each_gpu() -> None:
    described = read_preset("ac922-6gpu")
    assert described is not None
    assert [len(seat.cores) for seat in place_local_ranks(described, 6)] == [7] * 6


def test_frontiers_first_gpu_is_on_the_last_numa_node() -> None:
    described = read_preset("mi250x")
    assert described is not None
    seats = place_local_ranks(described, 8)
    assert [seat.cores[0].numa_node for seat in seats] == [3, 3, 1, 1, 0, 0, 2, 2]
    assert {seat.gpu.vendor for seat in seats if seat.gpu} == {"amd"}


def test_dgx_a100_has_its_gpus_on_the_odd_numa_nodes() -> None:
    machine = read_preset("dgx-a100")
    assert machine is not None
    assert [(gpu.package, gpu.numa_node) for gpu in machine.gpus] == [
        (0, 3), (0, 3), (0, 1), (0, 1), (1, 7), (1, 7), (1, 5), (1, 5),
    ]  # fmt: skip
    assert [core.numa_node for core in machine.cores[::16]] == list(range(8))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("packages: 2", "cores_per_package"),
        ("{packages: [8, 10], cores_per_package: 9}", "cores_per_package"),
        ("{packages: 0, cores_per_package: 2}", "packages"),
        ("{packages: 2, cores_per_package: two}", "cores_per_package"),
        ("{packages: 2, cores_per_package: 2, cors: 3}", "cors"),
        ("{packages: 2, cores_per_package: 2, gpus: [2]}", "there is no package 2"),
        ("{packages: 2, cores_per_package: 2, gpus: [0, 9], gpus_by: numa}", "there is no numa 9"),
        ("packages: [", "machine test"),
        ("just text", "machine test"),
        ("", "machine test"),
    ],
)
def test_a_wrong_description_names_its_key(text: str, part: str) -> None:
    with pytest.raises(InputError, match=re.escape(part)) as caught:
        parse_machine(text, "test")
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_description_or_an_input_error(text: str) -> None:
    try:
        parse_machine(text, "test")
    except DdlrunError as error:
        assert str(error).startswith("machine test")


def test_an_unknown_preset_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean s822lc"):
        read_preset("s822")
