"""Parser of lstopo: every captured machine compared with its index and with lstopo itself, and broken text."""

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
from ddlrun.machine.cpus import cpu_list
from ddlrun.machine.hwloc import parse_cpuset, parse_hwloc
from tests.conftest import CAPTURES
from tests.support.shapes import as_hwloc2

FILES = sorted(path.name for path in (CAPTURES / "hwloc-xml").glob("*.xml")) or ["none"]
INDEX = (CAPTURES / "INDEX.md").read_text().splitlines() if (CAPTURES / "INDEX.md").exists() else []
# The index has packages, totals and NUMA nodes of these; lstopo is asked about all.
INDEXED = [name for name in FILES if any(line.startswith(f"| {name} |") for line in INDEX)] or ["none"]
# The index counts the PUs that its own allowed_cpuset (16 of 64) forbids; lstopo does not.
FORBIDDEN_BUT_COUNTED = "hwloc-irregulargroups-disallowed.xml"


def parsed(capture: Callable[[str], Path], name: str) -> Machine:
    return parse_hwloc((capture("hwloc-xml") / name).read_text(errors="replace"), name)


def index_row(capture: Callable[[str], Path], name: str) -> list[str]:
    """Return the cells of a file in INDEX.md: packages, totals, NUMA nodes."""
    capture("INDEX.md")
    row = next(line for line in INDEX if line.startswith(f"| {name} |"))
    cells = [cell.strip() for cell in row.split("|")]
    return [cells[3], cells[5], cells[6]]


@pytest.mark.parametrize("name", INDEXED)
def test_a_captured_machine_agrees_with_the_index(capture: Callable[[str], Path], name: str) -> None:
    machine = parsed(capture, name)
    packages, totals, nodes = index_row(capture, name)
    if name == FORBIDDEN_BUT_COUNTED:
        assert (len(machine.cores), len(machine.packages)) == (16, 2)
        return
    pus = sum(len(core.pus) for core in machine.cores)
    # Without Core objects, hardware threads count as cores, and the machine has a note.
    cores = 0 if machine.cores_are_threads else len(machine.cores)
    assert totals == f"cores {cores} PUs {pus}"
    listed = re.findall(r"(\d+)c/(\d+)t", packages)
    ours = [(str(len(package)), str(sum(len(core.pus) for core in package))) for package in machine.packages]
    assert machine.packaged == bool(listed)
    assert not listed or ours[: len(listed)] == listed
    count = re.search(r"x(\d+)$", packages)
    assert not listed or len(ours) == (int(count[1]) if count else len(listed))
    if "…" not in nodes:
        assert list(machine.numa_nodes) == [int(number) for number in re.findall(r"\d+", nodes.replace("!", ""))]


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


@pytest.mark.parametrize("name", FILES)
def test_a_captured_machine_agrees_with_lstopo(capture: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    cores, gpus = cores_and_gpus_of_lstopo(as_hwloc2(capture("hwloc-xml") / name, tmp_path))
    machine = parsed(capture, name)
    assert [tuple(pu.os_index for pu in core.pus) for core in machine.cores] == cores
    assert [core.logical_index for core in machine.cores] == list(range(len(cores)))
    assert sorted(gpu.pci_address or "" for gpu in machine.gpus) == gpus


@pytest.mark.parametrize(
    ("name", "homes", "nics"),
    [
        ("fluxsched-sierra2-0.xml", [0, 0, 8, 8], [("mlx5_0", "mlx5_1")] * 2 + [("mlx5_2", "mlx5_3")] * 2),
        ("mpibind-coral-ea-hwloc1.xml", [0, 0, 1, 1], [("mlx5_0",)] * 2 + [("mlx5_1",)] * 2),
        ("mpibind-cts1-pascal.xml", [0, 0], [("mlx5_0",)] * 2),
        ("mpibind-epyc-corona-p2.xml", [0, 0, 0, 0, 1, 1, 1, 1], [("mlx5_0",)] * 8),
        ("hwloc-nvidiaDGX2.xml", [0] * 8 + [1] * 8, [()] * 16),
        ("prrte-test-topo2.xml", [3], [("mlx5_0",)]),
    ],
)
def test_gpus_know_their_numa_node_and_the_nearest_nics(
    capture: Callable[[str], Path], name: str, homes: list[int], nics: list[tuple[str, ...]]
) -> None:
    machine = parsed(capture, name)
    assert [gpu.numa_node for gpu in machine.gpus] == homes
    assert [gpu.nics for gpu in machine.gpus] == nics


def synthetic(description: str) -> str:
    """Return the output of lstopo for a synthetic machine."""
    argv = ["lstopo", "-i", description, "--of", "xml"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def minsky() -> str:
    return synthetic("pack:2 core:10 pu:8")


def test_cores_outside_the_affinity_are_not_usable(minsky: str) -> None:
    machine = parse_hwloc(minsky, "h", frozenset(range(80, 160)))
    assert [core.usable for core in machine.cores] == [False] * 10 + [True] * 10
    with pytest.raises(UnreachableError, match="host h: lstopo: no core is usable"):
        parse_hwloc(minsky, "h", frozenset())


def test_a_machine_without_packages_and_one_without_cores() -> None:
    flat = parse_hwloc(synthetic("core:4 pu:2"), "h")
    assert (flat.packaged, len(flat.cores), flat.notes) == (False, 4, ())
    bare = parse_hwloc(synthetic("pu:4"), "h")
    assert (bare.packaged, len(bare.cores)) == (False, 4)
    assert bare.notes == (MachineNote(MachineNoteCode.CORES_ARE_THREADS),)


def test_open_mpi_5_accepts_no_rank_file_on_a_machine_without_cores(major: int, mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "bare.xml").write_text(synthetic("pu:4"))
    argv = [sys.executable, "-m", "ddlrun", "launch", "--dry-run", "--machine", str(tmp_path / "bare.xml")]
    done = subprocess.run([*argv, "--mpirun", mpirun, "true"], capture_output=True, text=True, check=False)
    assert done.returncode == {4: 0, 5: 5}[major], done.stderr
    note = MachineNoteCode.CORES_ARE_THREADS.value
    assert (f"host localhost: {note}; take Open MPI 4.1" in done.stderr) == (major == 5)


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
    assert cpu_list(numbers) == "0-159"


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
