"""Machines: descriptions in YAML, and the probe of /sys and /proc."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.application.inputs import read_preset
from ddlrun.errors import DdlrunError, InputError, UnreachableError
from ddlrun.machine.preset import parse_machine
from ddlrun.machine.sysfs import parse_sysfs
from ddlrun.mapping.local_ranks import place_local_ranks
from ddlrun.mapping.placement_notes import unchecked_notes
from ddlrun.mapping.rankfile import render
from ddlrun.ranges import parse_ranges, render_ranges
from tests.machines.facts import parse_facts
from tests.machines.probes import cores_of_lstopo, cores_of_machine, probe_output
from tests.machines.render_hwloc import render_hwloc
from tests.machines.render_sysfs import write_sysfs
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


def test_a_gpu_of_a_node_that_spans_packages_is_near_its_local_cpus() -> None:
    cpus = "".join(
        f"cpu/cpu{cpu}/topology/core_siblings_list:{cpu}\ncpu/cpu{cpu}/topology/thread_siblings_list:{cpu}\n"
        for cpu in range(2)
    )
    gpus = "".join(
        f"0000:{bus}:00.0/vendor:0x10de\n0000:{bus}:00.0/class:0x030200\n0000:{bus}:00.0/numa_node:0\n"
        f"0000:{bus}:00.0/local_cpulist:{local}\n"
        for bus, local in {"17": "1", "41": "0-1"}.items()
    )
    machine = parse_sysfs(f"{cpus}node/online:0\nnode/node0/cpulist:0-1\n{gpus}ddlrun:end\n", "h")
    assert [(gpu.package, gpu.numa_node) for gpu in machine.gpus] == [(1, 0), (None, 0)]


def test_a_gpu_without_a_numa_node_is_near_its_local_cpus() -> None:
    """A package that a cpuset hides is nobody's, and CPUs of several packages are not a place."""
    cpus = "".join(
        f"cpu/cpu{cpu}/topology/core_siblings_list:{package}\ncpu/cpu{cpu}/topology/thread_siblings_list:{cpu}\n"
        for cpu, package in enumerate(["0-1", "0-1", "2-3", "2-3", "4-5", "4-5"])
    )
    near = {"17": "0-1", "41": "2-3", "61": "5", "81": "0-5", "a1": "4-5"}
    gpus = "".join(
        f"0000:{bus}:00.0/vendor:0x10de\n0000:{bus}:00.0/class:0x030200\n0000:{bus}:00.0/numa_node:-1\n"
        f"0000:{bus}:00.0/local_cpulist:{local}\n"
        for bus, local in near.items()
    )
    nic = "@near mlx5_0 2-3\n@nic infiniband mlx5_0 -1 /sys/devices/pci0000:40/0000:42:00.0\n"
    cpuset = "@cpuset cgroup2 cpus 2-5\n@cpuset cgroup2 mems 0\n"
    nodes = "node/online:0-1\nnode/node0/cpulist:0-3\nnode/node1/cpulist:4-5\n"
    machine = parse_sysfs(f"{cpus}{nodes}{gpus}{nic}{cpuset}ddlrun:end\n", "h")
    places = {(gpu.pci_address or "")[5:7]: (gpu.package, gpu.numa_node) for gpu in machine.gpus}
    assert places == {"17": (None, None), "41": (0, 0), "61": (1, None), "81": (None, None), "a1": (1, None)}
    assert [(nic.package, nic.numa_node) for nic in machine.nics or ()] == [(0, 0)]
    assert machine.numa_nodes == (0,)


@pytest.mark.parametrize("kind", ["cpuset", "cgroup rw,noprefix,cpuset", "cgroup rw,cpuset", "cgroup2 rw"])
def test_cpusets_of_every_kind_are_read(kind: str, tmp_path: Path) -> None:
    """The cpuset at the process's own path counts. One at another path hides nothing, for hwloc as for ddlrun."""
    root = write_sysfs(parse_facts("about: eight\npackages: 0-7/4\ncores: 0-7/1\nnodes: 0-7/4\n", "eight"), tmp_path)
    at = root / "dev/cpuset/job"
    at.mkdir(parents=True)
    mount = kind if " " in kind else f"{kind} rw"
    before, after = {"cgroup rw,cpuset": ("cpuset.", ""), "cgroup2 rw": ("cpuset.", ".effective")}.get(kind, ("", ""))
    (at / f"{before}cpus{after}").write_text("5-7\n")
    (at / f"{before}mems{after}").write_text("0-1\n")
    (at.parent / "cgroup.controllers").write_text("cpuset cpu\n")
    for path in ("proc/mounts", "proc/self/mounts"):
        (root / path).write_text(f"none /dev/cpuset {mount} 0 0\n")
    (root / "proc/self/cpuset").write_text("/job\n")
    inside = parse_sysfs(probe_output(str(root)), "h")
    assert (cores_of_machine(inside), inside.empty_packages) == ([(1, (5,)), (1, (6,)), (1, (7,))], (0,))
    assert (str(inside), inside.uniform) == ("1 package x 3 cores", False)
    (root / "proc/self/cpuset").write_text("/of/the/host\n")
    assert len(parse_sysfs(probe_output(str(root)), "h").cores) == 8


def test_a_machine_without_packages_and_one_without_cores() -> None:
    flat = parse_sysfs(re.sub(r".*core_siblings.*\n", "", SMALL) + "ddlrun:end\n", "h")
    assert (flat.packaged, cores_of_machine(flat)) == (False, [(0, (0, 2)), (0, (1, 3))])
    bare = parse_sysfs(re.sub(r".*thread_siblings.*\n", "", SMALL) + "ddlrun:end\n", "h")
    assert bare.cores_are_threads
    assert cores_of_machine(bare) == [(0, (cpu,)) for cpu in range(4)]


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
    assert parse_ranges(render_ranges(numbers)) == numbers


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


def test_a_description_without_its_last_line_break_has_a_note(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    for text, notes in (("packages: 2\ncores_per_package: 20\n", 0), ("packages: 2\ncores_per_package: 2", 1)):
        path.write_text(text)
        described = read_preset(str(path))
        assert described is not None
        assert len(unchecked_notes({"a": described})) == notes


def test_an_unknown_preset_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean s822lc"):
        read_preset("s822")
