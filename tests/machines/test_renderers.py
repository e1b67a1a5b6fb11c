"""Renderers of machines, compared with each other and with real tools: lstopo, lscpu, and mpiruns of both majors."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ddlrun.errors import UnreachableError
from ddlrun.machine import Machine, MachineNoteCode
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.machine.hwloc_2_0 import count_cores
from ddlrun.machine.lscpu import parse_lscpu, parse_lscpu_summary
from ddlrun.machine.numactl import parse_numactl
from ddlrun.machine.nvidia_smi import parse_query, parse_topo
from ddlrun.machine.sysfs import parse_sysfs
from ddlrun.managers.openmpi.dialects import parse_program
from ddlrun.mapping.rankfile import render
from tests.machines.facts import NAMES, load
from tests.machines.probes import Cores, cores_of_lstopo, cores_of_machine, probe_output
from tests.machines.render_hwloc import render_hwloc
from tests.machines.render_lscpu import render_json, render_summary, render_table
from tests.machines.render_numactl import render_numactl
from tests.machines.render_nvidia_smi import Style, render_query, render_topo
from tests.machines.selection import others_extra
from tests.machines.trees import described_tree
from tests.support import needs
from tests.support.oracle import environment, parse_map
from tests.support.shapes import placement

# An old kernel lists no cores in /sys, and a kernel without packages has no machine for ddlrun.
WITH_CORES = [name for name in NAMES if load(name).cores and load(name).packages]
# lscpu counts a module of two cores as one, hwloc does not.
WITHOUT_MODULES = [name for name in WITH_CORES if not load(name).modules]
# The kernel lists no offline CPU of a package, so that /sys has another order than a description with them.
ORDERED_BY_OFFLINE_CPUS = {"offline-threads"}
# Machines whose hwloc 1 was captured.
FORMAT_1 = "ac922-22-cores xeon-4-cores knl-snc4 lassen-gpu-memory lassen-without-gpu-memory minsky".split()


def unordered(cores: Cores) -> set[tuple[int, ...]]:
    return {pus for _, pus in cores}


@pytest.mark.parametrize("name", FORMAT_1)
def test_both_formats_of_hwloc_describe_the_same_machine(name: str) -> None:
    facts = load(name)
    assert parse_hwloc(render_hwloc(facts, version=1), name) == parse_hwloc(render_hwloc(facts), name)


@pytest.mark.parametrize("name", others_extra(WITH_CORES))
def test_sys_and_hwloc_describe_the_same_machine(name: str) -> None:
    facts = load(name)
    kernel = parse_sysfs(probe_output(str(described_tree(name))), name)
    hwloc = parse_hwloc(render_hwloc(facts), name)
    ours, theirs = cores_of_machine(kernel), cores_of_machine(hwloc)
    assert unordered(ours) == unordered(theirs)
    assert (ours == theirs) == (name not in ORDERED_BY_OFFLINE_CPUS)
    assert [(gpu.pci_address, gpu.package) for gpu in kernel.gpus] == [
        (gpu.pci_address, gpu.package) for gpu in hwloc.gpus
    ]
    assert sorted((nic.name, nic.rdma, nic.package) for nic in kernel.nics or ()) == sorted(
        (nic.name, nic.rdma, nic.package) for nic in hwloc.nics or ()
    )
    assert kernel.memory == hwloc.memory or facts.forbidden_nodes
    assert localities(kernel) == localities(hwloc)
    assert hwloc.numa_distances in ((), kernel.numa_distances) or facts.forbidden_nodes


def localities(machine: Machine) -> tuple[object, object]:
    """Return the L3 domain and the kind of each core by its first PU, and the L3 domain of each GPU."""
    cores = {core.pus[0]: (core.l3, core.kind) for core in machine.cores}
    return cores, [gpu.l3 for gpu in machine.gpus]


@pytest.mark.parametrize("name", others_extra(name for name in NAMES if load(name).packages))
def test_lstopo_reads_the_same_machine_from_sys_and_from_xml(name: str, tmp_path: Path) -> None:
    needs.program("lstopo", "hwloc-nox")
    facts = load(name)
    (tmp_path / "machine.xml").write_text(render_hwloc(facts))
    tree = cores_of_lstopo("--input", str(described_tree(name)))
    xml = cores_of_lstopo("--input", str(tmp_path / "machine.xml"))
    assert unordered(tree) == unordered(xml)
    assert (tree == xml) == (name not in ORDERED_BY_OFFLINE_CPUS)
    assert xml == cores_of_machine(parse_hwloc(render_hwloc(facts), name))


@pytest.mark.parametrize("name", others_extra(name for name in NAMES if load(name).devices))
def test_lstopo_reads_the_same_devices_from_sys_and_from_xml(name: str, tmp_path: Path) -> None:
    needs.program("lstopo", "hwloc-nox")
    facts = load(name)
    (tmp_path / "machine.xml").write_text(render_hwloc(facts))
    tree = devices_of_lstopo(str(described_tree(name)))
    assert tree == devices_of_lstopo(str(tmp_path / "machine.xml"))
    assert set(tree) >= {device.address for device in facts.devices}


def devices_of_lstopo(path: str) -> dict[str, str | None]:
    """Return each PCI device's address and the CPUs of the object that has its host bridge."""
    argv = ["lstopo", "--input", path, "--whole-io", "--of", "xml"]
    root = ET.fromstring(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    return {
        device.attrib["pci_busid"]: item.get("cpuset")
        for item in root.iter("object")
        if item.get("cpuset")
        for bridge in item.findall("object[@type='Bridge']")
        for device in bridge.iter("object")
        if device.get("type") == "PCIDev"
    }


@pytest.mark.parametrize("name", others_extra(WITH_CORES))
def test_lscpu_prints_what_is_rendered(name: str) -> None:
    program = needs.program("lscpu", "util-linux")
    facts = load(name)
    root = described_tree(name)

    def lscpu(*options: str) -> str:
        argv = [program, "--sysroot", str(root), *options]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    columns = "-p=CPU,CORE,SOCKET,NODE,ONLINE"
    assert [line for line in lscpu(columns).splitlines() if line[0] != "#"] == render_table(facts).splitlines()[1:]
    if not facts.lscpu:  # counts of a whole computer are not in its partition's /sys
        assert summary(lscpu()) == summary(render_summary(facts))


def summary(text: str) -> Machine | str:
    try:
        return parse_lscpu_summary(text, "h")
    except UnreachableError as error:
        return str(error)


@pytest.mark.parametrize("name", NAMES)
def test_a_summary_is_the_same_as_text_and_as_json(name: str) -> None:
    facts = load(name)
    assert summary(render_summary(facts)) == summary(render_json(facts))


@pytest.mark.parametrize("name", [name for name in WITHOUT_MODULES if len(load(name).models) < 2])
def test_the_table_of_lscpu_has_the_cores_of_hwloc(name: str) -> None:
    facts = load(name)._replace(forbidden=frozenset(), forbidden_nodes=frozenset())  # lscpu lists all that are online
    table = parse_lscpu(render_table(facts), name)
    hwloc = parse_hwloc(render_hwloc(facts), name)
    assert {pus for _, pus in cores_of_machine(table)} == {pus for _, pus in cores_of_machine(hwloc)}
    assert len(table.packages) == len(hwloc.packages)


@pytest.mark.parametrize("name", [name for name in NAMES if load(name).nodes])
@pytest.mark.parametrize("width", [0, 64])
def test_numactl_has_the_cpus_of_each_node(name: str, width: int) -> None:
    facts = load(name)
    expected = {node: cpus & facts.online for node, cpus in facts.nodes.items()}
    assert parse_numactl(render_numactl(facts, width=width), name) == expected


@pytest.mark.parametrize("name", [name for name in NAMES if load(name).gpus])
def test_nvidia_smi_has_the_cpus_and_addresses_of_each_gpu(name: str) -> None:
    facts = load(name)
    rows = parse_topo(render_topo(facts), name)
    assert [row.cpus for row in rows] == [gpu.near & facts.online for gpu in facts.gpus]
    assert rows == parse_topo(render_topo(facts, Style(blanks=True)), name)
    assert rows == parse_topo(render_topo(facts, Style(legend=True)), name)
    assert [gpu.pci_address for gpu in parse_query(render_query(facts), name)] == [gpu.address for gpu in facts.gpus]


TREE_OPTIONS = {
    4: "--do-not-launch --display-devel-map --mca if_base_do_not_resolve 1 --rankfile ranks",
    5: "--runtime-options donotlaunch --display map --map-by rankfile:file=ranks",
}
TREE_OPTIONS[6] = TREE_OPTIONS[5]


# Machine -> ranks. The first ones are usual machines; each of the others has something that changes hwloc's numbering.
PLANNED = {
    "minsky": 4,
    "power9-lassen": 4,
    "sparse-numa": 4,
    "xeon-4x8": 4,
    "cpuset-6-of-8-packages": 6,
    "cpuset-7-of-8-packages": 4,
    "cpuset-reorders-packages": 4,
    "forbidden-package": 3,
    "interleaved-4x10": 4,
    "near-packages": 4,
    "opteron-modules": 8,
    "s390-books": 5,
    "offline-cpu0": 2,
}


@pytest.mark.parametrize("name", [name for name in PLANNED if name != "offline-cpu0"])
def test_mpirun_does_what_is_planned_from_sys(name: str, major: int, mpirun: str, tmp_path: Path) -> None:
    root = described_tree(name, cgroup=1)
    check_plan(name, parse_sysfs(probe_output(str(root)), name), root, tmp_path, major, mpirun)


@pytest.mark.parametrize("name", ["interleaved-4x10", "forbidden-package", "cpuset-reorders-packages", "offline-cpu0"])
def test_mpirun_does_what_is_planned_where_majors_differ(name: str, major: int, mpirun: str, tmp_path: Path) -> None:
    """The hwloc inside Open MPI 4.1 does not see what a cgroup 2 forbids, and no cores where CPU 0 is offline."""
    root = described_tree(name)
    machine = parse_sysfs(probe_output(str(root)), name)
    assert MachineNoteCode.CORES_OF_OPEN_MPI_4 in {note.code for note in machine.notes}
    hidden = parse_program(f"(Open MPI) {major}.0", mpirun, "test").counts_by_hwloc_2_0()
    counted = count_cores({name: machine}, hwloc_2_0=hidden)[name]
    assert (counted.cores == machine.cores) != hidden
    assert sum(core.usable for core in counted.cores) == len(machine.cores)
    check_plan(name, counted, root, tmp_path, major, mpirun)


def check_plan(name: str, machine: Machine, root: Path, tmp_path: Path, major: int, mpirun: str) -> None:
    facts, ranks = load(name), PLANNED[name]
    planned = placement(str(ranks), ["a"], machine)
    (tmp_path / "ranks").write_text("".join(render(planned, name)))
    (tmp_path / "hosts").write_text(f"a slots={ranks}\n")
    argv = [
        mpirun,
        "--allow-run-as-root",
        "-np",
        str(ranks),
        "--hostfile",
        "hosts",
        *TREE_OPTIONS[major].split(),
        "true",
    ]
    environ = environment(major, str(tmp_path)) | {"HWLOC_FSROOT": str(root)}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    if len(machine.cores) > len(facts.allowed):
        facts = facts._replace(forbidden=frozenset(), forbidden_nodes=frozenset())
    xml = render_hwloc(facts)
    core_of = {pu.os_index: core for core in parse_hwloc(xml, name).cores for pu in core.pus}
    expected = {
        rank.rank: {core_of[pu.os_index] for core in rank.binding.cores for pu in core.pus}
        for rank in planned.by_host()
    }
    inside = {(core.package, core.index_in_package): core for core in core_of.values()}
    mapped = {
        rank: {inside[package, index] for package, indexes in cores.items() for index in indexes}
        for rank, (_, cores) in parse_map(done.stdout, xml).items()
    }
    assert mapped == expected, done.stdout
