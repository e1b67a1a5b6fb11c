"""Each described machine is the one that was captured: both give the same value through ddlrun's parsers.

The captured outputs of real machines are beside the project, in the folder that DDLRUN_CAPTURES names.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlrun.errors import UnreachableError
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.machine.lscpu import parse_lscpu, parse_lscpu_summary
from ddlrun.machine.numactl import parse_numactl
from ddlrun.machine.nvidia_smi import parse_topo
from ddlrun.machine.ppc64_cpu import parse_ppc64_cpu
from ddlrun.machine.sysfs import parse_sysfs
from tests.machines.facts import load
from tests.machines.probes import cores_of_lstopo, cores_of_machine, probe_output
from tests.machines.render_hwloc import render_hwloc
from tests.machines.render_lscpu import render_summary, render_table
from tests.machines.render_numactl import render_numactl
from tests.machines.render_nvidia_smi import Style, render_topo
from tests.machines.render_ppc64_cpu import render_ppc64_cpu
from tests.machines.trees import captured_tree, described_tree
from tests.support import needs

pytestmark = pytest.mark.extra

Capture = Callable[[str], Path]

HWLOC_XML = {
    "derived-minsky-socket0-8cores-socket1-10cores.xml": "minsky-8+10-cores",
    "fluxsched-chimera.xml": "threadripper-32",
    "fluxsched-exclusive-broker0.xml": "xeon-4-cores",
    "fluxsched-lassen-0.xml": "lassen-without-gpu-memory",
    "fluxsched-sierra2-0.xml": "ac922-22-cores",
    "hwloc-16amd64-8n2c-cpusets.xml": "cpuset-6-of-8-packages",
    "hwloc-16em64t-4s2c2t-offlines.xml": "offline-threads",
    "hwloc-192em64t-24n8c2t.xml": "24-packages",
    "hwloc-24em64t-2n6c2t-pci.xml": "westmere-2x6",
    "hwloc-64intel64-heteromem.xml": "knl-16-cores-two-memories",
    "hwloc-allowed-test1.xml": "cpuset-without-packages",
    "hwloc-cxlmem+dax.v2.xml": "cxl-memory",
    "hwloc-fakeheterocpunuma.xml": "heterogeneous-nodes",
    "hwloc-hagrid.xml": "forbidden-package",
    "hwloc-irregulargroups-disallowed.xml": "uv2000-16-of-64-cores",
    "hwloc-memorysidecaches.xml": "memory-side-caches",
    "hwloc-nvidiaDGX2.xml": "dgx2-cpuset",
    "hwloc-power8gpudistances.xml": "minsky-8-cores-smt2",
    "hwloc-ppc64-full-with-smt.xml": "power-4-packages",
    "hwloc-ppc64-with-smt.xml": "power-no-core-objects",
    "hwloc-ppc64-without-smt.xml": "power-no-core-objects-smt-off",
    "hwloc-x86-AMD-17h-Zen-2xEpyc-7451.xml": "zen1-48",
    "hwloc-x86-AMD-19h-Zen3-2xEpyc-7763.xml": "zen3-64",
    "hwloc-x86-AMD-19h-Zen4-2xEpyc-9654.xml": "zen4-96",
    "hwloc-x86-Intel-IvyBridge-12xXeon-E5-4620v2.xml": "12-packages",
    "hwloc-x86-Intel-KnightsLanding-XeonPhi-7210.xml": "knl-64",
    "hwloc-x86-Intel-RaptorLake-Corei7-1370P.xml": "hybrid-laptop",
    "hwloc-x86-Intel-SapphireRapids-2xXeonMax9460.xml": "xeon-max-40",
    "mpibind-coral-butte-hwloc1.xml": "ac922-22-cores-caches",
    "mpibind-coral-ea-hwloc1.xml": "minsky",
    "mpibind-coral-lassen-hwloc1.xml": "lassen-gpu-memory",
    "mpibind-coral-lassen.xml": "power9-lassen",
    "mpibind-coral-rzansel-hwloc1.xml": "ac922-22-cores-odd-pairs",
    "mpibind-cts1-pascal.xml": "pascal",
    "mpibind-eas-tioga.xml": "tioga",
    "mpibind-epyc-corona-p2.xml": "corona-8-gpus",
    "mpibind-epyc-corona.xml": "corona-4-gpus",
    "mpibind-g4dnmetal.xml": "g4dn",
    "mpibind-knl-snc4-flat-hwloc1.xml": "knl-snc4",
    "prrte-test-topo.xml": "cloud-2x88",
    "prrte-test-topo2.xml": "epyc-24-one-gpu",
    "prrte-turin-4gpu-nvml.xml": "turin-4-gpus",
}
HWLOC_SYSFS = {
    "128arm-2pa2n8cluster4co": "arm-128-clusters",
    "16amd64-4n4c-cgroup-distance-merge": "opteron-4x4",
    "20em64t-hybrid-1p6c2t+2ca4co1t": "raptor-lake",
    "256ppc-8n8s4t": "power7-256",
    "48amd64-4pa2n6c-sparse": "sparse-numa",
    "8em64t-2s2ca2c-buggynuma": "every-cpu-in-every-node",
    "nvidiagpunumanodes": "power9-gpu-memory",
    "offline-cpu0-node0": "offline-cpu0",
    "16amd64-8n2c-cpusets": "cpuset-7-of-8-packages",
    "16em64t-4s2ca2c-cpusetreorder": "cpuset-reorders-packages",
    "20s390-2g6s4c": "s390-books",
    "64amd64-4s2n4ca2co": "opteron-modules",
}
LSCPU = {
    "arm-A510-A710-A715-X3.txt": "arm-four-kinds-of-cores",
    "armv7.txt": "armv7-2-cores",
    "derived-hwloc-48amd64-4pa2n6c-sparse.txt": "sparse-numa",
    "derived-hwloc-8em64t-2s2ca2c-buggynuma.txt": "every-cpu-in-every-node",
    "derived-hwloc-nvidiagpunumanodes.txt": "power9-gpu-memory",
    "derived-hwloc-offline-cpu0-node0.txt": "offline-cpu0",
    "power9-2x16c-numa-0-8.txt": "power9-16-cores",
    "ppc-qemu.txt": "qemu-power",
    "ppc64-POWER7-64cpu.txt": "power7-16-cores",
    "ppc64-POWER7.txt": "power7-4-cores",
    "s390-lpar-drawer.txt": "s390-partition",
    "sparc64.txt": "sparc64-6-packages",
    "vmware_fpe.txt": "vmware-2x4",
    "x86_64-64cpu.txt": "xeon-4x8",
    "x86_64-dell_e4310.txt": "laptop-2-cores",
    "x86_64-epyc_7451.txt": "epyc-7451",
}
NUMACTL = {
    "ac922-2x16c-gpu-memory-nodes.txt": "ac922-16-cores",
    "grace-fake-numa-same-cpus-in-4-nodes.txt": "grace-fake-numa",
    "grace-hopper-72c-9nodes-wrapped.txt": "grace-hopper",
    "power8-2x10c-nodes-0-8.txt": "power8-nodes-0-8",
    "power8-minsky-2x10c-smt8.txt": "minsky",
    "power9-2x16c-smt4-nodes-0-8.txt": "power9-16-cores",
    "x86-2x20c-ht-interleaved-numbering.txt": "xeon-2x20",
}
PPC64_CPU = {
    "power8-20c-smt8-all-on.txt": "minsky",
    "power8-lpar-smt-off.txt": "power8-lpar-smt-off",
    "power9-4c-one-core-on-smt2.txt": "power9-4-cores-one-online-smt2",
    "power9-4c-one-core-on.txt": "power9-4-cores-one-online",
    "power9-4c-smt4.txt": "power9-4-cores",
}
NVIDIA_SMI = {
    "2gpu-nvlink-numa-na.txt": ("two-gpus-nvlink", Style(numa="N/A")),
    "2gpu-phb-numa-na.txt": ("two-gpus-pcie", Style(numa="N/A")),
    "8xA100-48c.txt": ("a100-48", Style()),
    "8xH100-104c.txt": ("h100-104", Style()),
    "8xH100-208t-ht.txt": ("h100-208-threads", Style()),
    "ac922-4xV100.txt": ("ac922-16-cores", Style()),
    "dgx1-8xV100-4xIB-same-affinity.txt": ("dgx1", Style(numa="", same_affinity=True)),
    "x86-4gpu-nv1-nv2-sys.txt": ("xeon-2x20", Style()),
}
OLD_NUMACTL = "old-numactl-1.0.2-no-cpus-lines-16-nodes.txt"


@pytest.mark.parametrize(
    ("folder", "ending", "files"),
    [
        ("hwloc-xml", ".xml", set(HWLOC_XML)),
        ("hwloc-sysfs", ".tar.bz2", {f"{tree}.tar.bz2" for tree in HWLOC_SYSFS}),
        ("lscpu", ".txt", set(LSCPU)),
        ("numactl", ".txt", {*NUMACTL, OLD_NUMACTL}),
        ("ppc64_cpu", ".txt", set(PPC64_CPU)),
        ("nvidia-smi", ".txt", set(NVIDIA_SMI)),
    ],
)
def test_every_capture_is_compared(capture: Capture, folder: str, ending: str, files: set[str]) -> None:
    names = {path.name for path in capture(folder).glob(f"*{ending}") if "parseable" not in path.name}
    assert names == files


@pytest.mark.parametrize("file", HWLOC_XML)
def test_hwloc_xml(capture: Capture, file: str) -> None:
    facts = load(HWLOC_XML[file])
    captured = parse_hwloc((capture("hwloc-xml") / file).read_text(errors="replace"), "h")
    if not facts.distances:
        captured = captured._replace(numa_distances=())
    described = parse_hwloc(render_hwloc(facts), "h")
    # Some captures lack the packages that a cpuset hides, which are noted.
    assert described._replace(notes=captured.notes) == captured


@pytest.mark.parametrize("tree", HWLOC_SYSFS)
def test_sysfs(capture: Capture, tree: str) -> None:
    root = captured_tree(capture(f"hwloc-sysfs/{tree}.tar.bz2"))
    captured = parse_sysfs(probe_output(str(root)), "h")
    described = parse_sysfs(probe_output(str(described_tree(HWLOC_SYSFS[tree]))), "h")
    assert cores_of_machine(described) == cores_of_machine(captured)
    assert [core.numa_node for core in described.cores] == [core.numa_node for core in captured.cores]
    assert described.numa_nodes == captured.numa_nodes


@pytest.mark.parametrize("tree", HWLOC_SYSFS)
def test_lstopo_finds_the_same_cores(capture: Capture, tree: str) -> None:
    needs.program("lstopo", "hwloc-nox")
    root = captured_tree(capture(f"hwloc-sysfs/{tree}.tar.bz2"))
    own = described_tree(HWLOC_SYSFS[tree])
    assert cores_of_lstopo("--input", str(own)) == cores_of_lstopo("--input", str(root))


@pytest.mark.parametrize("file", LSCPU)
def test_lscpu(capture: Capture, file: str) -> None:
    text = (capture("lscpu") / file).read_text(errors="replace")
    described = lscpu_summary(render_summary(load(LSCPU[file])))
    assert described == lscpu_summary(text)
    pairs = [line.partition(":") for line in text.splitlines() if ":" in line]
    fields = [{"field": f"{key.strip()}:", "data": value.strip()} for key, _, value in pairs]
    assert described == lscpu_summary(json.dumps({"lscpu": fields}))


def lscpu_summary(text: str) -> object:
    """Return packages, cores and nodes, or the error without its quoted text."""
    try:
        machine = parse_lscpu_summary(text, "h")
    except UnreachableError as error:
        return str(error).partition(" (")[0]
    return machine.cores, machine.numa_nodes


@pytest.mark.parametrize("tree", [tree for tree in HWLOC_SYSFS if f"derived-hwloc-{tree}.txt" in LSCPU])
def test_lscpu_table(capture: Capture, tree: str) -> None:
    text = (capture("lscpu") / f"derived-hwloc-{tree}.parseable.txt").read_text()
    assert parse_lscpu(render_table(load(HWLOC_SYSFS[tree])), "h").cores == parse_lscpu(text, "h").cores


@pytest.mark.parametrize("file", NUMACTL)
def test_numactl(capture: Capture, file: str) -> None:
    text = (capture("numactl") / file).read_text()
    assert parse_numactl(render_numactl(load(NUMACTL[file])), "h") == parse_numactl(text, "h")


def test_old_numactl(capture: Capture) -> None:
    with pytest.raises(UnreachableError, match="this old numactl lists no CPUs"):
        parse_numactl((capture("numactl") / OLD_NUMACTL).read_text(), "h")


@pytest.mark.parametrize("file", PPC64_CPU)
def test_ppc64_cpu(capture: Capture, file: str) -> None:
    text = (capture("ppc64_cpu") / file).read_text()
    assert parse_ppc64_cpu(render_ppc64_cpu(load(PPC64_CPU[file])), "h") == parse_ppc64_cpu(text, "h")


@pytest.mark.parametrize("file", NVIDIA_SMI)
def test_nvidia_smi(capture: Capture, file: str) -> None:
    name, style = NVIDIA_SMI[file]
    text = (capture("nvidia-smi") / file).read_text()
    assert parse_topo(render_topo(load(name), style), "h") == parse_topo(text, "h")


@pytest.mark.parametrize("tree", HWLOC_SYSFS)
def test_captured_trees_agree_with_lstopo(capture: Capture, tree: str) -> None:
    needs.program("lstopo", "hwloc-nox")
    root = captured_tree(capture(f"hwloc-sysfs/{tree}.tar.bz2"))
    assert cores_of_machine(parse_sysfs(probe_output(str(root)), tree)) == cores_of_lstopo("--input", str(root))
