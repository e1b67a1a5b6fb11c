"""Texts that were cut off: the same machine, an error, or a note, never a smaller machine without a word."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.application.inputs import load_hosts, load_machine
from ddlrun.errors import DdlrunError, InputError
from ddlrun.machine import UNCHECKED_NOTES, Machine, MachineNoteCode
from ddlrun.machine.manifest import MANIFEST, render_manifest
from ddlrun.machine.probe_reply import SYSFS, machine_of, parse_answer
from tests.machines.facts import Facts, load, parse_facts
from tests.machines.probes import probe_output
from tests.machines.render_hwloc import render_hwloc
from tests.machines.render_lscpu import render_json, render_summary, render_table
from tests.machines.render_numactl import render_numactl
from tests.machines.render_nvidia_smi import Style, render_query, render_topo
from tests.machines.render_ppc64_cpu import render_ppc64_cpu
from tests.machines.render_sysfs import write_sysfs

# A machine of which every cut is tried; of the others, some are.
SMALL = """
about: 2 packages x 2 cores, SMT2, 2 GPUs, 2 cards, and a NUMA node of memory alone
packages: 0-7/4
cores: 0-7/2
nodes: {0: 0-3, 8: 4-7, 255: ""}
memory: 65536
distances: [10 40 80, 40 10 80, 80 80 10]
devices:
  node 0:
    pci0002:00/0002:00:00.0/0002:01:00.0: nvidia
    pci0003:00/0003:00:00.0/0003:01:00.0: net ib0 rdma mlx5_0
  node 8:
    pci000a:00/000a:00:00.0/000a:01:00.0: nvidia
    pci000b:00/000b:00:00.0/000b:01:00.0: net ib1 rdma mlx5_10
"""
OTHERS = ["ac922-16-cores", "minsky", "minsky-8-cores-smt2", "lassen-gpu-memory", "power9-lassen"]
TABLE, NODES = MachineNoteCode.TABLE_UNCHECKED, MachineNoteCode.NODES_UNCHECKED
GPUS = MachineNoteCode.GPUS_UNCHECKED
UNCHECKED = UNCHECKED_NOTES | {MachineNoteCode.GPUS_DIFFER}


@cache
def read_sys(name: str) -> str:
    with TemporaryDirectory(prefix="ddlm") as folder:
        return probe_output(str(write_sysfs(described(name), Path(folder))))


def described(name: str) -> Facts:
    return parse_facts(SMALL, name) if name == "small" else load(name)


def reply(facts: Facts) -> str:
    texts = {SYSFS: read_sys(facts.name), "lscpu.txt": render_table(facts), "lscpu.json": render_json(facts)}
    parts = (f"@ddlrun begin {name}\n{text}\n@ddlrun end {name} 0\n" for name, text in texts.items())
    return f"@ddlrun key 1\n{''.join(parts)}@ddlrun done\n"


# Form -> the file that is cut, its text, and the texts of the other files.
FORMS: Mapping[str, tuple[str, Callable[[Facts], str], Mapping[str, Callable[[Facts], str]]]] = {
    "lscpu": ("lscpu.json", render_summary, {}),
    "lscpu -J": ("lscpu.json", render_json, {}),
    "lscpu -p": ("lscpu.txt", render_table, {}),
    "lscpu -p beside -J": ("lscpu.txt", render_table, {"lscpu.json": render_json}),
    "lscpu -J beside -p": ("lscpu.json", render_json, {"lscpu.txt": render_table}),
    "numactl": ("numactl.txt", render_numactl, {"ppc64_cpu.txt": render_ppc64_cpu}),
    "numactl, wrapped": (
        "numactl.txt", lambda facts: render_numactl(facts, width=66), {"ppc64_cpu.txt": render_ppc64_cpu},
    ),
    "numactl --cpu-compress": (
        "numactl.txt", lambda facts: render_numactl(facts, style="compressed"), {"ppc64_cpu.txt": render_ppc64_cpu},
    ),
    "numactl beside lscpu": ("numactl.txt", render_numactl, {"lscpu.txt": render_table, "lscpu.json": render_json}),
    "ppc64_cpu": ("ppc64_cpu.txt", render_ppc64_cpu, {"numactl.txt": render_numactl}),
    "nvidia-smi topo": ("nvidia-topo.txt", render_topo, {"lscpu.json": render_json}),
    "nvidia-smi topo, no nodes": (
        "nvidia-topo.txt", lambda facts: render_topo(facts, Style(numa="")), {"lscpu.json": render_json},
    ),
    "nvidia-smi topo, legend": (
        "nvidia-topo.txt", lambda facts: render_topo(facts, Style(legend=True)), {"lscpu.json": render_json},
    ),
    "nvidia-smi query": ("nvidia-gpus.csv", render_query, {"lscpu.json": render_json}),
    "nvidia-smi query beside topo": (
        "nvidia-gpus.csv", render_query, {"lscpu.json": render_json, "nvidia-topo.txt": render_topo},
    ),
    "hwloc 1": ("lstopo.xml", lambda facts: render_hwloc(facts, version=1), {}),
    "hwloc 2": ("lstopo.xml", render_hwloc, {}),
    "/sys": (SYSFS, lambda facts: read_sys(facts.name), {}),
    "reply": ("", reply, {}),
}  # fmt: skip


def form_of(form: str, facts: Facts) -> tuple[str, Callable[[str], Machine]]:
    """Return the text of a form, and a function that reads it."""
    file, render, others = FORMS[form]
    rest = {name: other(facts) for name, other in others.items()}
    if form == "reply":
        return render(facts), lambda text: machine_of(parse_answer(text, "h").sections, "h")
    return render(facts), lambda text: machine_of({**rest, file: text}, "h", complete=False)


def misread(text: str, ends: Iterable[int], read: Callable[[str], Machine]) -> list[str]:
    """Return the cuts of a text that are read as another machine without a note."""
    whole = read(text)
    return [text[:end][-60:] for end in ends if read_cut(text[:end], read) not in (None, whole)]


def read_cut(text: str, read: Callable[[str], Machine]) -> Machine | None:
    """Return the machine of a text; None if the text is refused, or if the machine has a note that it may be cut."""
    try:
        machine = read(text)
    except DdlrunError:
        return None
    return None if any(note.code in UNCHECKED for note in machine.notes) else machine


@pytest.mark.parametrize("form", FORMS)
def test_every_cut_of_a_text_is_noticed(form: str) -> None:
    text, read = form_of(form, described("small"))
    assert misread(text, range(len(text)), read) == []


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_cuts_of_larger_machines_are_noticed(form: str, data: st.DataObject) -> None:
    text, read = form_of(form, described(data.draw(st.sampled_from(OTHERS))))
    line_ends = [place for place, character in enumerate(text, 1) if character == "\n"]
    end = data.draw(st.sampled_from(line_ends[:-1]) | st.integers(0, len(text) - 1))
    assert misread(text, [end], read) == []


@pytest.mark.parametrize("form", FORMS)
def test_only_a_text_without_a_total_has_a_note(form: str) -> None:
    text, read = form_of(form, described("small"))
    noted = [note.code for note in read(text).notes if note.code in UNCHECKED]
    assert noted == {"lscpu -p": [TABLE], "nvidia-smi query": [GPUS]}.get(form, [])
    if form == "lscpu":
        without_nodes = text.partition("NUMA node(s)")[0]
        assert [note.code for note in read(without_nodes).notes] == [NODES]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder as `ddlrun probe --save` writes it, for one host."""
    facts = described("small")
    texts = {"lscpu.txt": render_table(facts), "nvidia-gpus.csv": render_query(facts), "uname.txt": "Linux n1\n"}
    for folder, files in ((tmp_path / "n1", texts), (tmp_path, {"hosts": "n1\nn2\nn12\n"})):
        folder.mkdir(exist_ok=True)
        for name, text in {**files, MANIFEST: render_manifest(files)}.items():
            (folder / name).write_text(text)
    return tmp_path


def saved_names(folder: Path) -> tuple[str, ...]:
    hosts = load_hosts(str(folder))
    return () if hosts is None else tuple(hosts.names)


@pytest.mark.parametrize("file", ["n1/lscpu.txt", "n1/nvidia-gpus.csv", f"n1/{MANIFEST}", "hosts", MANIFEST])
def test_every_cut_of_a_saved_file_is_an_error(saved: Path, file: str) -> None:
    whole = load_machine(str(saved / "n1")), saved_names(saved)
    assert (whole[0].notes, whole[1]) == ((), ("n1", "n2", "n12"))
    text = (saved / file).read_text()
    for end in range(len(text)):
        (saved / file).write_text(text[:end])
        try:
            assert (load_machine(str(saved / "n1")), saved_names(saved)) == whole
            assert text[end:] == "\n"
        except InputError as error:
            assert str(error).startswith(str((saved / file).parent))


def test_files_that_changed_are_reported_together(saved: Path) -> None:
    (saved / "n1/uname.txt").unlink()
    (saved / "n1/lscpu.txt").write_text("# CPU,Core\n0,0\n")
    with pytest.raises(InputError) as caught:
        load_machine(str(saved / "n1"))
    remedy = f"save the replies again, or delete {MANIFEST} if the change is yours"
    assert caught.value.problems == (
        f"{saved}/n1/lscpu.txt: 2 lines of 15 characters, but 9 lines of 110 characters were saved; {remedy}",
        f"{saved}/n1/uname.txt: 0 lines of 0 characters, but 1 line of 9 characters were saved; {remedy}",
    )
    (saved / "n1" / MANIFEST).unlink()
    assert [note.code for note in load_machine(str(saved / "n1")).notes] == [TABLE, GPUS]


@pytest.mark.parametrize(
    "command", ["launch --dry-run --machine . -H n1 -np 2 true", "lint ranks --machine .", "probe n1 --machine ."]
)
def test_commands_print_the_note(saved: Path, command: str) -> None:
    (saved / "n1" / MANIFEST).unlink()
    (saved / "ranks").write_text("rank 0=n1 slot=0:0\n")
    argv = [sys.executable, "-m", "ddlrun", *command.split()]
    done = subprocess.run(argv, cwd=saved, capture_output=True, text=True, check=False)
    assert (done.returncode, (done.stdout + done.stderr).count(TABLE.value)) == (0, 1), done.stderr
