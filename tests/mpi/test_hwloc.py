"""Parser of lstopo: described machines compared with lstopo itself, and broken text."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import UnreachableError
from ddlrun.machine import Machine, MachineNote, MachineNoteCode
from ddlrun.machine.cpus import parse_cpuset
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.ranges import render_ranges
from tests.conftest import CAPTURES
from tests.machines.facts import NAMES, load, parse_facts
from tests.machines.render_hwloc import render_hwloc
from tests.machines.selection import others_extra
from tests.support import needs

# Machine -> cores and PUs that may be used, of each package, and NUMA nodes; as hwloc 2.9 counts them.
EXPECTED = {
    "24-packages": ("8c/16t x24", "0-23"),
    "12-packages": ("8c/16t x12", "0"),
    "ac922-22-cores": ("22c/88t x2", "0,8,252-255"),
    "xeon-4-cores": ("4c/4t", "0"),
    "corona-4-gpus": ("24c/48t x2", "0-7"),
    "cpuset-6-of-8-packages": ("2c/2t 2c/2t 1c/1t 1c/1t 2c/2t 2c/2t", "1-5"),
    "dgx2-cpuset": ("2c/2t x2", "0-1"),
    "epyc-24-one-gpu": ("24c/48t", "0-3"),
    "forbidden-package": ("2c/2t 2c/2t 0c/0t 2c/2t", "0-3"),
    "heterogeneous-nodes": ("6c/12t x2", "0-5"),
    "hybrid-laptop": ("14c/20t", "0"),
    "knl-snc4": ("68c/272t", "0-7"),
    "memory-side-caches": ("20c/40t x2", "0-3"),
    "minsky": ("10c/80t x2", "0-1"),
    "minsky-8+10-cores": ("8c/64t 10c/80t", "0-1"),
    "minsky-8-cores-smt2": ("4c/8t x2", "0-1"),
    "offline-threads": ("2c/3t 1c/1t 1c/1t 2c/2t", "0"),
    "power-4-packages": ("2c/4t x4", "0-1"),
    "power9-lassen": ("20c/80t x2", "0,8"),
    "threadripper-32": ("32c/64t", "0,2"),
    "turin-4-gpus": ("64c/128t x2", "0-7"),
    "uv2000-16-of-64-cores": ("8c/8t x2", "0-1"),
    "zen4-96": ("96c/192t x2", "0"),
}
# Machines without Package objects, and the number of their cores; 0: without Core objects, too.
UNPACKAGED = {"cpuset-without-packages": 7, "power-no-core-objects": 0, "power-no-core-objects-smt-off": 0}


def parsed(name: str) -> Machine:
    return parse_hwloc(render_hwloc(load(name)), name)


@pytest.mark.parametrize("name", EXPECTED)
def test_packages_cores_and_nodes(name: str) -> None:
    machine = parsed(name)
    packages, nodes = EXPECTED[name]
    sizes, _, times = packages.partition(" x")
    ours = [f"{len(package)}c/{sum(len(core.pus) for core in package)}t" for package in machine.packages]
    assert machine.packaged
    assert ours == sizes.split() * int(times or 1)
    assert render_ranges(machine.numa_nodes) == nodes
    assert [core.logical_index for core in machine.cores] == list(range(len(machine.cores)))


@pytest.mark.parametrize("name", UNPACKAGED)
def test_machines_without_packages(name: str) -> None:
    machine = parsed(name)
    assert not machine.packaged
    assert machine.cores_are_threads == (UNPACKAGED[name] == 0)
    # Without Core objects, hardware threads count as cores.
    assert len(machine.cores) == (UNPACKAGED[name] or len(load(name).allowed))


FILES = sorted(path.name for path in (CAPTURES / "hwloc-xml").glob("*.xml")) or ["none"]


def cores_and_gpus_of_lstopo(path: Path) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return the PUs of each core in hwloc's order, and the PCI addresses of its GPUs' class."""
    done = subprocess.run(
        ["lstopo", "--input", str(path), "--whole-io", "--of", "xml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    root = ET.fromstring(done.stdout)
    cores = [item for item in root.iter("object") if item.get("type") == "Core"] or [
        item for item in root.iter("object") if item.get("type") == "PU"
    ]
    gpus = [
        item.get("pci_busid", "")
        for item in root.iter("object")
        if item.get("type") == "PCIDev" and re.match(r"03.. \[(10de|1002:(?!515e))", item.get("pci_type", ""))
    ]
    return [tuple(sorted(_pus(core))) for core in cores], sorted(gpus)


def _pus(core: ET.Element) -> Iterator[int]:
    return (int(pu.get("os_index", "-1")) for pu in core.iter("object") if pu.get("type") == "PU")


@pytest.mark.parametrize("name", others_extra(NAMES))
def test_lstopo_finds_the_same_cores_and_gpus(name: str, tmp_path: Path) -> None:
    needs.program("lstopo", "hwloc-nox")
    path = tmp_path / f"{name}.xml"
    path.write_text(render_hwloc(load(name)))
    compare(parsed(name), path)


@pytest.mark.extra
@pytest.mark.parametrize("name", FILES)
def test_a_captured_machine_agrees_with_lstopo(capture: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    needs.program("lstopo", "hwloc-nox")
    text = (capture("hwloc-xml") / name).read_text(errors="replace")
    path = tmp_path / name  # hwloc 3 has another version number, and equal elements
    path.write_text(text.replace('<topology version="3.0">', '<topology version="2.0">', 1))
    compare(parse_hwloc(text, name), path)


def compare(machine: Machine, path: Path) -> None:
    cores, gpus = cores_and_gpus_of_lstopo(path)
    assert [tuple(pu.os_index for pu in core.pus) for core in machine.cores] == cores
    assert sorted(gpu.pci_address or "" for gpu in machine.gpus) == gpus


@pytest.mark.parametrize(
    ("name", "homes", "nics"),
    [
        ("ac922-22-cores", [0, 0, 8, 8], [("mlx5_0", "mlx5_1")] * 2 + [("mlx5_2", "mlx5_3")] * 2),
        ("minsky", [0, 0, 1, 1], [("mlx5_0",)] * 2 + [("mlx5_1",)] * 2),
        ("pascal", [0, 0], [("mlx5_0",)] * 2),
        ("corona-8-gpus", [0, 0, 0, 0, 1, 1, 1, 1], [("mlx5_0",)] * 8),
        ("dgx2-cpuset", [0] * 8 + [1] * 8, [()] * 16),
        ("epyc-24-one-gpu", [3], [("mlx5_0",)]),
        (
            "tioga",
            [3, 3, 1, 1, 0, 0, 2, 2],
            [("hsi0",)] * 2 + [("hsi1",)] * 2 + [("hsi2", "ens2"), ("hsi2",)] + [("hsi3",)] * 2,
        ),
    ],
)
def test_gpus_know_their_numa_node_and_the_nearest_nics(
    name: str, homes: list[int], nics: list[tuple[str, ...]]
) -> None:
    machine = parsed(name)
    assert [gpu.numa_node for gpu in machine.gpus] == homes
    assert [gpu.nics for gpu in machine.gpus] == nics


def small(text: str) -> str:
    """Return hwloc's XML of a machine with these facts."""
    return render_hwloc(parse_facts(f"about: small\n{text}\n", "small"))


@pytest.fixture(scope="module")
def minsky() -> str:
    return small("packages: 0-159/80\ncores: 0-159/8")


def test_cores_outside_the_affinity_are_not_usable(minsky: str) -> None:
    machine = parse_hwloc(minsky, "h", frozenset(range(80, 160)))
    assert [core.usable for core in machine.cores] == [False] * 10 + [True] * 10
    with pytest.raises(UnreachableError, match="host h: lstopo: no core is usable"):
        parse_hwloc(minsky, "h", frozenset())


def test_a_machine_without_packages_and_one_without_cores() -> None:
    flat = parse_hwloc(small("cores: 0-7/2"), "h")
    assert (flat.packaged, len(flat.cores), flat.notes) == (False, 4, ())
    bare = parse_hwloc(small("cpus: 0-3"), "h")
    assert (bare.packaged, len(bare.cores)) == (False, 4)
    assert bare.notes == (MachineNote(MachineNoteCode.CORES_ARE_THREADS),)


def test_open_mpi_5_accepts_no_rank_file_on_a_machine_without_cores(major: int, mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "bare.xml").write_text(small("cpus: 0-3"))
    argv = [sys.executable, "-m", "ddlrun", "launch", "--dry-run", "--machine", str(tmp_path / "bare.xml")]
    done = subprocess.run([*argv, "--mpirun", mpirun, "true"], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if major == 4 else 5), done.stderr
    note = MachineNoteCode.CORES_ARE_THREADS.value
    assert (f"host localhost: {note}; take Open MPI 4.1" in done.stderr) == (major > 4)


@given(st.data())
def test_cut_text_is_an_error_with_its_line(minsky: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(minsky.rstrip()) - 1))
    with pytest.raises(UnreachableError, match=r"host h: lstopo, line \d+: "):
        parse_hwloc(minsky[:cut], "h")


@given(st.data())
def test_a_line_that_is_missing_or_changed_is_never_another_machine(minsky: str, data: st.DataObject) -> None:
    lines = minsky.splitlines(keepends=True)
    place = data.draw(st.integers(0, len(lines) - 1))
    changed = data.draw(st.sampled_from(["", lines[place].replace("0", "1"), lines[place].replace('"', "")]))
    try:
        machine = parse_hwloc("".join([*lines[:place], changed, *lines[place + 1 :]]), "h")
    except UnreachableError as error:
        assert str(error).startswith("host h: lstopo")
        assert "\n" not in str(error)
        return
    numbers = sorted(pu.os_index for core in machine.cores for pu in core.pus)
    assert len(machine.cores) == 20
    assert render_ranges(numbers) == "0-159"


@given(st.text(max_size=80))
def test_any_text_is_an_error_that_names_the_host(text: str) -> None:
    with pytest.raises(UnreachableError, match="host h: lstopo"):
        parse_hwloc(text, "h")
    with pytest.raises(UnreachableError, match="host h: lstopo"):
        parse_hwloc(f'<topology><object type="Machine" cpuset="{text}"/></topology>', "h")


def test_an_entity_bomb_is_an_error() -> None:
    levels = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    bomb = f'<?xml version="1.0"?><!DOCTYPE t [<!ENTITY a0 "x">{levels}]><t>&a11;</t>'
    with pytest.raises(UnreachableError, match="host h: lstopo"):
        parse_hwloc(bomb, "h")


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpusets_are_inverses(numbers: set[int]) -> None:
    bits = sum(1 << number for number in numbers)
    words = [f"0x{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(288, -1, -32)]
    assert parse_cpuset(",".join(words)) == numbers
