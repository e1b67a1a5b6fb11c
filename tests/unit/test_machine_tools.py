"""Parsers of lscpu, numactl, ppc64_cpu and nvidia-smi: outputs for described machines, and broken text."""

import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import UnreachableError
from ddlrun.machine.lscpu import parse_lscpu, parse_lscpu_summary
from ddlrun.machine.numactl import parse_numactl
from ddlrun.machine.nvidia_smi import parse_query, parse_topo, with_topology
from ddlrun.machine.ppc64_cpu import machine_of, parse_ppc64_cpu
from ddlrun.machine.preset import parse_machine
from ddlrun.ranges import render_ranges
from tests.machines.facts import load
from tests.machines.probes import cores_of_lstopo, cores_of_machine
from tests.machines.render_lscpu import render_json, render_summary
from tests.machines.render_numactl import render_numactl
from tests.machines.render_nvidia_smi import Style, render_topo
from tests.machines.render_ppc64_cpu import render_ppc64_cpu
from tests.support import needs

# Machine -> summary, or a part of the error.
SUMMARIES = {
    "arm-four-kinds-of-cores": "its cores are of several kinds",
    "armv7-2-cores": "1 package x 2 cores",
    "epyc-7451": "2 packages x 24 cores, SMT2",
    "every-cpu-in-every-node": "2 packages x 4 cores",
    "hybrid-laptop": "not the 20 online CPUs ('1 x 14 x 2'); try lscpu -p",
    "laptop-2-cores": "1 package x 2 cores, SMT2",
    "offline-cpu0": "not the 17 online CPUs ('2 x 8 x 1'); try lscpu -p",
    "power7-16-cores": "16 packages x 1 core, SMT4",
    "power7-4-cores": "4 packages x 1 core, SMT4",
    "power9-16-cores": "2 packages x 16 cores, SMT4",
    "power9-gpu-memory": "2 packages x 4 cores, SMT4",
    "qemu-power": "1 package x 1 core",
    "s390-partition": "not the 8 online CPUs",
    "sparc64-6-packages": "6 packages x 1 core",
    "sparse-numa": "4 packages x 12 cores",
    "vmware-2x4": "2 packages x 4 cores, SMT2",
    "xeon-4x8": "4 packages x 8 cores, SMT2",
}


def summary_of(text: str) -> str:
    try:
        return str(parse_lscpu_summary(text, "h"))
    except UnreachableError as error:
        assert str(error).startswith("host h: lscpu, line ")
        return str(error)


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries(name: str) -> None:
    assert SUMMARIES[name] in summary_of(render_summary(load(name)))
    assert SUMMARIES[name] in summary_of(render_json(load(name)))


def test_packages_of_a_summary_are_in_the_order_of_their_first_cpus() -> None:
    counts = "Thread(s) per core: 1\nCore(s) per socket: 2\nCPU socket(s): 2\n"  # of an old lscpu
    nodes = "NUMA node(s): 2\nNUMA node0 CPU(s): 2-3\nNUMA node8 CPU(s): 0-1\n"
    machine = parse_lscpu_summary(f"On-line CPU(s) list: 0-3\n{counts}{nodes}", "h")
    assert [core.numa_node for core in machine.cores] == [8, 8, 0, 0]


def test_this_machine() -> None:
    needs.program("lstopo", "hwloc-nox")
    argv = ["lscpu", "-p=CPU,CORE,SOCKET,NODE,ONLINE"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert cores_of_machine(parse_lscpu(text, "here")) == cores_of_lstopo()
    text = subprocess.run(["lscpu", "-J"], capture_output=True, text=True, check=True).stdout
    assert len(parse_lscpu_summary(text, "here").cores) == len(cores_of_lstopo())


LIST = "# CPU,Core,Socket,Node,Online\n0,0,0,0,Y\n1,0,0,0,Y\n2,1,0,0,Y\n3,1,0,0,N\n4,0,1,8,Y\n5,0,1,8,Y\n"


def test_a_core_number_may_be_repeated_in_another_socket() -> None:
    machine = parse_lscpu(LIST, "h")
    assert cores_of_machine(machine) == [(0, (0, 1)), (0, (2,)), (1, (4, 5))]
    assert [core.numa_node for core in machine.cores] == [0, 0, 8]
    flat = parse_lscpu("# CPU,Core,Socket,Node\n0,0,,\n1,1,,\n", "h")
    assert (flat.packaged, cores_of_machine(flat)) == (False, [(0, (0,)), (0, (1,))])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0,0,0,0,Y\n", "line 1: no header"),
        (LIST + "6,0\n", "line 8: 5 columns are expected ('6,0')"),
        (LIST + "5,1,1,8,Y\n", "line 8: a CPU is listed twice ('5')"),
        (LIST + "6,1,,8,Y\n", "some CPUs have a socket, others have none ('6')"),
        (LIST + "6,x,1,8,Y\n", "line 8: CORE is not a number"),
        (LIST + "6,1,1,8,?\n", "line 8: ONLINE is neither"),
        ("# CPU,Core\n", "it is cut off"),
        ("", "it is cut off"),
        (LIST[:-1], "it is cut off"),
        ("{", "line 1"),
        ('{"lscpu": 3}', "it is not a list of fields"),
        ('{"lscpu": [0]}', "it is not a list of fields"),
        ('{"lscpu": [{"field": "CPU(s):", "data": "2"}]}', "does not list the online CPUs"),
    ],
)
def test_a_broken_lscpu_is_an_error_with_its_line(text: str, part: str) -> None:
    with pytest.raises(UnreachableError) as caught:
        (parse_lscpu_summary if text.startswith("{") else parse_lscpu)(text, "h")
    assert str(caught.value).startswith("host h: lscpu, line ")
    assert part in str(caught.value)


# Machine -> CPUs of each node.
NODES = {
    "ac922-16-cores": {0: "0-63", 8: "64-127", 252: "", 253: "", 254: "", 255: ""},
    "grace-fake-numa": {0: "0-71", 1: "0-71", 2: "0-71", 3: "0-71"},
    "grace-hopper": {0: "0-71", **dict.fromkeys(range(1, 9), "")},
    "minsky": {0: "0-79", 1: "80-159"},
    "power8-nodes-0-8": {0: "0-79", 8: "80-159"},
    "power9-16-cores": {0: "0-63", 8: "64-127"},
    "xeon-2x20": {0: "0-19,40-59", 1: "20-39,60-79"},
}


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("width", [0, 66])
@pytest.mark.parametrize("style", ["listed", "compressed"])
def test_nodes(name: str, width: int, style: Literal["listed", "compressed"]) -> None:
    nodes = parse_numactl(render_numactl(load(name), width=width, style=style), "h")
    assert {node: render_ranges(cpus) for node, cpus in nodes.items()} == NODES[name]


def test_old_numactl() -> None:
    with pytest.raises(UnreachableError, match="this old numactl lists no CPUs"):
        parse_numactl(render_numactl(load("24-packages"), style="old"), "h")


@pytest.mark.parametrize(
    ("cpus", "part"),
    [("0-2, 4 (5)", "a node has 5 CPUs, but the list 4"), ("0-2 (3) 4", "the CPUs of a node are not a list")],
)
def test_compressed_cpus_are_checked_against_their_number(cpus: str, part: str) -> None:
    text = f"available: 1 nodes (0)\nnode 0 cpus: {cpus}\nnode 0 size: 7 MB\nNo distance information available.\n"
    with pytest.raises(UnreachableError, match=part):
        parse_numactl(text, "h")
    assert parse_numactl(text.replace(cpus, "0-2, 4 (4)"), "h") == {0: {0, 1, 2, 4}}


@pytest.mark.parametrize("name", ["minsky", "power8-nodes-0-8"])
def test_power8_as_powerai_counts_it(name: str) -> None:
    facts = load(name)
    nodes = parse_numactl(render_numactl(facts), "h")
    machine = machine_of(nodes, parse_ppc64_cpu(render_ppc64_cpu(facts), "h"), "h")
    assert str(machine) == "2 packages x 10 cores, SMT8"
    assert machine.source == "numactl + ppc64_cpu"
    assert [core.index_in_package for core in machine.cores] == [*range(10), *range(10)]
    assert [pu.os_index for pu in machine.packages[1][0].pus] == list(range(80, 88))


# Machine -> online CPUs of each core.
CORES = {
    "minsky": [f"{8 * core}-{8 * core + 7}" for core in range(20)],
    "power8-lpar-smt-off": ["0", "8"],
    "power9-4-cores-one-online-smt2": ["0-1", "", "", ""],
    "power9-4-cores-one-online": ["0-3", "", "", ""],
    "power9-4-cores": ["0-3", "4-7", "8-11", "12-15"],
}


@pytest.mark.parametrize("name", CORES)
def test_cores(name: str) -> None:
    cores = parse_ppc64_cpu(render_ppc64_cpu(load(name)), "h")
    assert [render_ranges(cpu for cpu, on in slots if on) for slots in cores] == CORES[name]
    online = frozenset(cpu for slots in cores for cpu, on in slots if on)
    machine = machine_of({0: online}, cores, "h")
    assert [render_ranges(pu.os_index for pu in core.pus) for core in machine.cores] == [
        text for text in CORES[name] if text
    ]


def test_subcores_and_mixed_smt() -> None:
    split = parse_ppc64_cpu(
        "Core   0:\n  Subcore 0:  0*  1*\n  Subcore 1:  2*  3\nCore   1:\n  Subcore 2:  4*  5\n", "h"
    )
    assert [render_ranges(cpu for cpu, on in slots if on) for slots in split] == ["0-1", "2", "4"]
    fake = machine_of(dict.fromkeys(range(4), frozenset({0, 1, 2, 4})), split, "h")
    assert cores_of_machine(fake) == [(0, (0, 1)), (0, (2,)), (0, (4,))]  # nodes of the same CPUs are one package


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Core 0: 0* 1*\nCore 2: 4* 5*\n", "line 2: core 1 is missing"),
        ("Core 0: 0* 1*\nCore 1: 1* 2*\n", "line 2: a CPU is listed twice"),
        ("Core 0: 0* 1*\nCore 1: 2*\n", "different numbers of thread slots"),
        ("Core 0: 0* 1*\nCo", "line 2: it is not a line of a core"),
        ("Core 0: 0* 1*", "is cut off"),
        ("", "is cut off"),
    ],
)
def test_a_broken_ppc64_cpu_is_an_error_with_its_line(text: str, part: str) -> None:
    with pytest.raises(UnreachableError, match="host h: ppc64_cpu --info, line") as caught:
        parse_ppc64_cpu(text, "h")
    assert part in str(caught.value)


def test_tools_that_contradict_each_other() -> None:
    cores = parse_ppc64_cpu("Core 0: 0* 1*\nCore 1: 2* 3*\n", "h")
    with pytest.raises(UnreachableError, match="CPUs online in ppc64_cpu alone: 2-3, in numactl alone: none"):
        machine_of({0: frozenset({0, 1})}, cores, "h")
    with pytest.raises(UnreachableError, match="in ppc64_cpu alone: none, in numactl alone: 4"):
        machine_of({0: frozenset(range(5))}, cores, "h")
    with pytest.raises(UnreachableError, match="the core of CPUs 2-3 is in no package, or in several"):
        machine_of({0: frozenset({0, 1, 2}), 8: frozenset({3})}, cores, "h")


# Machine -> (driver's style, (NUMA node, number of CPUs, nearest NICs) of each GPU).
SMI: dict[str, tuple[Style, Sequence[tuple[int | None, int, tuple[str, ...]]]]] = {
    "two-gpus-nvlink": (Style(numa="N/A", blanks=True), [(None, 24, ())] * 2),
    "two-gpus-pcie": (Style(numa="N/A", blanks=True), [(None, 12, ())] * 2),
    "a100-48": (Style(blanks=True), [(0, 24, ())] * 4 + [(1, 24, ())] * 4),
    "h100-104": (Style(blanks=True), [(0, 52, ())] * 4 + [(1, 52, ())] * 4),
    "h100-208-threads": (Style(blanks=True), [(0, 104, ())] * 4 + [(1, 104, ())] * 4),
    "ac922-16-cores": (
        Style(),
        [(0, 64, ("mlx5_0", "mlx5_1"))] * 2 + [(8, 64, ("mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"))] * 2,
    ),
    "dgx1": (
        Style(numa="", same_affinity=True, blanks=True, nics=("mlx5_2", "mlx5_0", "mlx5_3", "mlx5_1")),
        [(None, 40, (f"mlx5_{gpu // 2}",)) for gpu in range(8)],
    ),
    "xeon-2x20": (Style(), [(0, 40, ())] * 2 + [(1, 40, ())] * 2),
}


@pytest.mark.parametrize("name", SMI)
def test_gpus(name: str) -> None:
    style, expected = SMI[name]
    rows = parse_topo(render_topo(load(name), style), "h")
    described = parse_machine(f"{{packages: 2, cores_per_package: 64, gpus: {len(rows)}}}", "test")
    completed = with_topology(described, rows, ())
    assert [([*row.numa_nodes], len(row.cpus or ())) for row in rows] == [
        ([] if node is None else [node], cpus) for node, cpus, _ in expected
    ]
    assert [gpu.nics for gpu in completed.gpus] == [nics for _, _, nics in expected]


TWO = parse_lscpu("# CPU,Core,Socket,Node\n0,0,0,0\n1,1,0,0\n2,2,1,8\n3,3,1,8\n", "h")
TOPO = (
    "\x1b[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tSYS\tPXB\t{0}\t{1}\t\tN/A\nGPU1\tSYS\t X \tSYS\t{2}\t{3}\t\tN/A\nNIC0\tPXB\tSYS\t X \n\n"
    "NIC Legend:\n\n  NIC0: mlx5_7\n"
)
QUERY = (
    "0, GPU-7f7a2c6e-0000-1111-2222-333344445555, 00000000:17:00.0, Tesla V100-SXM2-16GB\n"
    "1, GPU-7f7a2c6e-0000-1111-2222-333344445556, 00000000:CA:00.0, NVIDIA A100, 80GB\n"
)


def test_nvidia_smi_completes_a_machine() -> None:
    listed = parse_query(QUERY, "h")
    assert listed[1].pci_address == "0000:ca:00.0"
    assert listed[1].name == "NVIDIA A100, 80GB"
    by_node = with_topology(TWO, parse_topo(TOPO.format("2-3", "8", "0-1", "0"), "h"), listed)
    assert [(gpu.pci_address, gpu.package, gpu.numa_node, gpu.nics) for gpu in by_node.gpus] == [
        ("0000:17:00.0", 1, 8, ("mlx5_7",)), ("0000:ca:00.0", 0, 0, ()),
    ]  # fmt: skip
    by_cpus = with_topology(TWO, parse_topo(TOPO.format("2-3", "N/A", "0-1", "N/A"), "h"), listed)
    assert [gpu.package for gpu in by_cpus.gpus] == [1, 0]
    nothing = with_topology(TWO, parse_topo(TOPO.format("0-3", "N/A", "0-3", "N/A"), "h"), listed)
    assert [gpu.package for gpu in nothing.gpus] == [None, None]
    known = with_topology(by_node, parse_topo(TOPO.format("0-1", "0", "2-3", "8"), "h"), listed)
    assert known.gpus == by_node.gpus  # known values stay
    fewer = with_topology(by_node._replace(gpus=by_node.gpus[:1]), None, listed)
    assert [str(note) for note in fewer.notes] == ["nvidia-smi lists 2 GPUs, 1 may be used"]
    assert len(fewer.gpus) == 1


HEAD = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
LEGEND = "\nNIC Legend:\n\n  NIC0: mlx5_7\n"
# Matrices of other drivers, terminals and containers, with the CPUs and nodes of both GPUs.
MATRICES = {
    "links that old drivers call SOC": (
        "  GPU0  GPU1  mlx5_7  CPU Affinity\nGPU0  X   SOC   PXB   0-0,1-1\nGPU1  SOC  X    SOC   2-2,3-3\n",
        [({0, 1}, set()), ({2, 3}, set())],
    ),
    "a link that the driver cannot tell": (
        "\tGPU0\tGPU1\tmlx5_7\tCPU Affinity\nGPU0\t X \tERR!\tPXB\t0-1\nGPU1\tERR!\t X \tERR!\t2-3\n",
        [({0, 1}, set()), ({2, 3}, set())],
    ),
    "indented, as a quotation": (
        "    GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity\n    GPU0 X SYS PXB 0-1 0\n    GPU1 SYS X SYS 2-3 8\n" + LEGEND,
        [({0, 1}, {0}), ({2, 3}, {8})],
    ),
    "blank cells": (
        HEAD + "GPU0\t X \tSYS\tPXB\t\t\t\tN/A\nGPU1\tSYS\t X \tSYS\t\t\t\tN/A\n" + LEGEND,
        [(None, set())] * 2,
    ),
    "blank cells, tabs expanded": (
        (HEAD + "GPU0\t X \tSYS\tPXB\t\t\t\tN/A\nGPU1\tSYS\t X \tSYS\t\t\t\tN/A\n" + LEGEND).expandtabs(),
        [(None, set())] * 2,
    ),
    "blank cells, ends of lines trimmed": (
        HEAD + "GPU0\t X \tSYS\tPXB\nGPU1\tSYS\t X \tSYS\n" + LEGEND,
        [(None, set())] * 2,
    ),
    "lists of nodes": (
        HEAD + "GPU0\t X \tNV18\tPXB\t0-1\t0,2-17\t\tN/A\nGPU1\tNV18\t X \tSYS\t2-3\t8,18-33\t\tN/A\n" + LEGEND,
        [({0, 1}, {0, *range(2, 18)}), ({2, 3}, {8, *range(18, 34)})],
    ),
    "lines that a terminal wrapped": (
        HEAD + "GPU0\t X \tSYS\tPXB\t0,\n1\t0\t\tN/A\nGPU1\tSYS\t X \tSYS\n2-3\t8\t\tN/A\n" + LEGEND,
        [({0, 1}, {0}), ({2, 3}, {8})],
    ),
    "escape sequences without their first character": (
        f"[4m{HEAD[:-1]}[0m\nGPU0\t X \tSYS\tPXB\t0-1\t0\t\tN/A\nGPU1\tSYS\t X \tSYS\t2-3\t8\t\tN/A\n{LEGEND}",
        [({0, 1}, {0}), ({2, 3}, {8})],
    ),
}


@pytest.mark.parametrize("about", MATRICES)
def test_matrices_of_other_drivers(about: str) -> None:
    text, expected = MATRICES[about]
    rows = parse_topo(text, "h")
    assert [(row.cpus, row.numa_nodes) for row in rows] == expected
    assert rows[0].links["mlx5_7"] == "PXB"
    known = [package if cpus else None for package, (cpus, _) in enumerate(expected)]
    assert [gpu.package for gpu in with_topology(TWO, rows, ()).gpus] == known


def test_gpus_of_a_node_that_spans_packages_have_no_package() -> None:
    spanned = parse_lscpu("# CPU,Core,Socket,Node\n0,0,0,0\n1,1,0,0\n2,2,1,0\n3,3,1,0\n", "h")

    def places(*cells: str) -> list[tuple[int | None, int | None]]:
        machine = with_topology(spanned, parse_topo(TOPO.format(*cells), "h"), ())
        return [(gpu.package, gpu.numa_node) for gpu in machine.gpus]

    assert places("0-3", "0", "0-3", "0") == [(None, 0), (None, 0)]
    assert places("2-3", "0", "0-1", "0") == [(1, 0), (0, 0)]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "couldn't communicate"),
        ("No devices were found\n", "No devices were found"),
        ("0, GPU-1\n", "line 1: it is not a GPU's index, UUID, address and name"),
    ],
)
def test_nvidia_smi_without_gpus_is_an_error_with_the_reason(text: str, part: str) -> None:
    with pytest.raises(UnreachableError, match="host h: nvidia-smi, line 1") as caught:
        parse_query(text, "h")
    assert part in str(caught.value)
    with pytest.raises(UnreachableError, match="host h: nvidia-smi, line 1"):
        parse_topo(text, "h")


NUMACTL = (
    "available: 3 nodes (0,8,255)\nnode 0 cpus: 0 1 2\n3 4\nnode 0 size: 7 MB\nnode 0 free: 1 MB\n"
    "node 8 cpus: 5-9\nnode 8 size: 7 MB\nnode 255 cpus:\nnode 255 size: 7 MB\nnode distances:\n"
    "node   0   8  255\n  0:  10  40  80\n  8:  40  10  80\n 255:  80  80  10\n"
)
POWER = "Core   0:    0*    1*    2     3\nCore   1:    4*    5*    6*    7*\n"
PARSERS: dict[str, tuple[Callable[[str, str], object], str, str]] = {
    "lscpu": (parse_lscpu, LIST, "lscpu"),
    "lscpu -J": (
        parse_lscpu_summary,
        json.dumps({"lscpu": [
            {"field": "On-line CPU(s) list:", "data": "0-7"}, {"field": "Thread(s) per core:", "data": "2"},
            {"field": "Core(s) per socket:", "data": "2", "children": [{"field": "Socket(s):", "data": "2"}]},
        ]}),
        "lscpu",
    ),
    "numactl": (parse_numactl, NUMACTL, "numactl"),
    "ppc64_cpu": (parse_ppc64_cpu, POWER, "ppc64_cpu"),
    "nvidia-smi topo": (parse_topo, TOPO.format("0-1", "0", "2-3", "8"), "nvidia-smi"),
    "nvidia-smi query": (parse_query, QUERY, "nvidia-smi"),
}  # fmt: skip


@pytest.mark.parametrize("tool", PARSERS)
@given(data=st.data())
def test_changed_text_is_a_value_or_an_error_that_names_host_and_line(tool: str, data: st.DataObject) -> None:
    parse, text, name = PARSERS[tool]
    parse(text, "h")
    place = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(place, min(len(text), place + 12)))
    changed = (
        text[:place] + data.draw(st.text("0123456789,-:*\n \tNYXxGPUnodecpus{}[]\"'\x1b\0é", max_size=9)) + text[end:]
    )
    for broken in (changed, text[:place], changed * 3, changed.replace("0-", "0-99999999999")):
        try:
            parse(broken, "h")
        except UnreachableError as error:
            assert str(error).startswith(f"host h: {name}")
            assert ", line " in str(error)
            assert "\n" not in str(error)
