"""Probing hosts with all their tools: this machine's reply, the cache, saved and loaded replies."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.application.chosen_gpus import check_named_gpus
from ddlrun.errors import InputError, UnreachableError
from ddlrun.machine import GPU, MachineNoteCode, machine_note
from ddlrun.machine.pci import granted
from ddlrun.machine.probe_reply import SYSFS, full_script, machine_of, parse_answer
from ddlrun.machine.sysfs import parse_sysfs
from ddlrun.machine.sysfs_script import SCRIPT
from ddlrun.mapping.slot_notation import render_slots
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.probe import group, render_failures
from ddlrun.report.machines import differences, render_groups
from ddlrun.report.picture import Canvas
from tests.machines.facts import load, parse_facts
from tests.machines.probes import probe_output
from tests.machines.render_hwloc import render_hwloc
from tests.machines.render_lscpu import render_json, render_table
from tests.machines.render_numactl import render_numactl
from tests.machines.render_ppc64_cpu import render_ppc64_cpu
from tests.machines.render_sysfs import write_sysfs
from tests.support import needs
from tests.support.processes import running, wait_for
from tests.support.shapes import machine

Ddlrun = Callable[..., subprocess.CompletedProcess[str]]


def probe_here(key: str = "") -> str:
    """Return this machine's reply to a probe that knows the key of an earlier reply."""
    return subprocess.run(
        ["sh", "-s"], input=full_script(key), capture_output=True, text=True, check=True, cwd="/"
    ).stdout


@pytest.fixture(scope="module")
def text() -> str:
    return probe_here()


def test_all_tools_describe_this_machine_alike(text: str) -> None:
    needs.program("lstopo", "hwloc-nox")
    sections = dict(parse_answer(text, "h").sections)
    whole = machine_of(sections, "h")
    assert whole.source == "hwloc"
    assert whole.notes == ()
    for tool, source in (("lstopo.xml", "sysfs"), (SYSFS, "lscpu")):
        sections.pop(tool)
        other = machine_of(sections, "h")
        assert other.source == source
        assert [core._replace(l3=None, kind=0) for core in other.cores] == [
            core._replace(l3=None, kind=0) for core in whole.cores
        ]  # lscpu's table has no caches


@pytest.fixture
def sections(tmp_path: Path) -> dict[str, str]:
    """Return what the tools print on a described machine."""
    facts = load("power9-16-cores")
    return {
        SYSFS: probe_output(str(write_sysfs(facts, tmp_path))),
        "lstopo.xml": render_hwloc(facts),
        "lscpu.txt": render_table(facts),
        "numactl.txt": render_numactl(facts),
        "ppc64_cpu.txt": render_ppc64_cpu(facts),
        "lscpu.json": render_json(facts),
    }


def test_the_most_trusted_of_the_tools_is_used(sections: dict[str, str]) -> None:
    whole = machine_of(sections, "h")
    assert (whole.source, whole.notes, str(whole)) == ("hwloc", (), "2 packages x 16 cores, SMT4")
    for tool, source in (("lstopo.xml", "sysfs"), (SYSFS, "lscpu"), ("lscpu.txt", "lscpu -J")):
        sections.pop(tool)
        other = machine_of(sections, "h")
        assert other.source == source
        assert [core.pus for core in other.cores] == [core.pus for core in whole.cores]
        assert other.numa_nodes == whole.numa_nodes
    sections.pop("lscpu.json")
    by_hand = machine_of(sections, "h")
    assert by_hand.source == "numactl + ppc64_cpu"
    assert [core._replace(l3=None, kind=0) for core in by_hand.cores] == [
        core._replace(l3=None, kind=0) for core in whole.cores
    ]
    assert by_hand.numa_distances == whole.numa_distances
    with pytest.raises(UnreachableError, match="host h: numactl alone does not list which CPUs share a core"):
        machine_of({"numactl.txt": "available: 1 nodes (0)\n"}, "h")
    with pytest.raises(UnreachableError, match="host h: none of its tools lists its cores"):
        machine_of({}, "h")


def test_a_difference_between_lstopo_and_sys_is_noted(text: str) -> None:
    sections = dict(parse_answer(text, "h").sections)
    other = render_hwloc(load("24-packages"))
    probed = machine_of({**sections, "lstopo.xml": other}, "h")
    assert probed.notes[-1].code is MachineNoteCode.CORES_DIFFER


def test_devices_are_near_the_cores_that_lstopo_lists(tmp_path: Path) -> None:
    """/sys shows the devices, and lstopo the cores: packages have lstopo's numbers."""
    facts = load("interleaved-4x10")
    sections = {SYSFS: probe_output(str(write_sysfs(facts, tmp_path, cgroup=1))), "lstopo.xml": render_hwloc(facts)}
    probed = machine_of(sections, "h")
    assert probed.notes == ()
    assert [(gpu.package, gpu.numa_node) for gpu in probed.gpus] == [(1, 1), (0, 0), (2, 2), (3, 3)]
    other = machine_of({**sections, "lstopo.xml": render_hwloc(load("xeon-2x20"))}, "h")
    assert [(gpu.package, gpu.numa_node) for gpu in other.gpus] == [(1, 1), (0, 0), (None, None), (None, None)]


def test_a_table_of_lscpu_is_refused_where_cores_are_of_several_kinds() -> None:
    """Each kind's cores count from 0, so that cores of two kinds look like threads of one."""
    facts = load("arm-four-kinds-of-cores")
    with pytest.raises(UnreachableError, match=r"several kinds .*try lstopo"):
        machine_of({"lscpu.txt": render_table(facts), "lscpu.json": render_json(facts)}, "h")


def test_an_unchanged_host_replies_only_that(text: str) -> None:
    key = parse_answer(text, "h").key
    second = parse_answer(probe_here(key), "h")
    assert (second.same, second.key, set(second.sections)) == (True, key, {SYSFS})
    assert not parse_answer(probe_here("1"), "h").same


@given(st.data())
def test_an_incomplete_reply_is_an_error(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text.rstrip()) - 1))
    with pytest.raises(UnreachableError, match="host h: its answer stops"):
        parse_answer(text[:cut], "h")


@pytest.fixture
def ddlrun(tmp_path: Path) -> Ddlrun:
    """Return a function that runs ddlrun with its own cache, and with stand-in tools first on PATH."""
    (tmp_path / "bin").mkdir()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    def run(*words: str, before: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}
        argv = [*before, sys.executable, "-m", "ddlrun", *words]
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)

    return run


def tool(tmp_path: Path, name: str, body: str) -> Path:
    """Put a program on PATH that counts its calls; return the file with the count."""
    path = tmp_path / "bin" / name
    path.write_text(f"#!/bin/sh\necho called >> {tmp_path}/{name}.count\n{body}\n")
    path.chmod(0o755)
    return tmp_path / f"{name}.count"


def calls(count: Path) -> int:
    return len(count.read_text().splitlines()) if count.exists() else 0


def test_replies_are_cached_until_the_machine_changes(ddlrun: Ddlrun, tmp_path: Path) -> None:
    count = tool(tmp_path, "lscpu", 'exec /usr/bin/lscpu "$@"')
    first = ddlrun("probe")
    assert (first.returncode, calls(count)) == (0, 2)
    assert ddlrun("probe").stdout == first.stdout
    assert calls(count) == 2
    ddlrun("probe", "--refresh")
    assert calls(count) == 4
    changed = ddlrun("probe", before=("taskset", "-c", str(max(os.sched_getaffinity(0)))))
    assert calls(count) == 6
    assert len(os.sched_getaffinity(0)) == 1 or "1 cores usable" in changed.stdout
    cached = next((tmp_path / "cache" / "ddlrun" / "hosts").iterdir())
    os.utime(cached, (0, 0))
    ddlrun("probe")
    assert calls(count) == 8
    cached.write_bytes(b"\xff broken")
    assert ddlrun("probe").stdout == first.stdout


def test_a_tool_that_fails_or_reads_our_script_does_no_harm(ddlrun: Ddlrun, tmp_path: Path) -> None:
    tool(tmp_path, "lstopo-no-graphics", "cat; exit 1")
    tool(tmp_path, "nvidia-smi", "cat; exit 9")
    done = ddlrun("probe")
    assert (done.returncode, done.stderr) == (0, "")
    assert "(sysfs)" in done.stdout


def test_output_of_nvidia_smi(ddlrun: Ddlrun, tmp_path: Path) -> None:
    header = "\\tGPU0\\tGPU1\\tmlx5_0\\tCPU Affinity\\tNUMA Affinity"
    rows = "GPU0\\t X \\tNV1\\tPIX\\t0\\t0\\nGPU1\\tNV1\\t X \\tSYS\\t0\\t0\\n"
    listed = "0, GPU-1, 00000000:17:00.0, V100\\n1, GPU-2, 00000000:65:00.0, V100\\n"
    tool(tmp_path, "nvidia-smi", f"[ \"$1\" = topo ] && printf '{header}\\n{rows}' || printf '{listed}'")
    machine = json.loads(ddlrun("probe", "--json").stdout)["machines"][0]
    assert [(gpu["pci_address"], gpu["package"], gpu["nics"]) for gpu in machine["gpus"]] == [
        ("0000:17:00.0", 0, ["mlx5_0"]), ("0000:65:00.0", 0, []),
    ]  # fmt: skip


def test_saved_replies_can_be_loaded(ddlrun: Ddlrun, tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    probed = ddlrun("probe", "localhost", "--save", folder)
    assert probed.returncode == 0
    assert {path.name for path in (tmp_path / "saved" / "localhost").iterdir()} >= {SYSFS, "lscpu.txt"}
    assert ddlrun("probe", "--machine", folder).stdout == probed.stdout
    assert ddlrun("show", "placement", "--machine", folder, "--ranks-per-host", "core").returncode == 0
    assert "\nrank 0=localhost slot=" in ddlrun("gen-rankfile", "1", "localhost", "--machine", folder).stdout
    assert ddlrun("probe", "--machine", f"{folder}/localhost").returncode == 0
    wrong = ddlrun("probe", "other", "--machine", folder)
    assert (wrong.returncode, wrong.stderr) == (
        2, f"ddlrun: error: {folder}: nothing saved of other; saved: localhost\n",
    )  # fmt: skip
    (tmp_path / "saved" / "localhost" / "lscpu.txt").write_text("CPU")
    assert "localhost/lscpu.txt: 0 lines of 3 characters, but " in ddlrun("probe", "--machine", folder).stderr
    (tmp_path / "saved" / "localhost" / "lstopo.xml").write_text("<topology>")
    (tmp_path / "saved" / "localhost" / "manifest.txt").unlink()
    assert "localhost: lstopo, line 1" in ddlrun("probe", "--machine", folder).stderr
    assert "No such file or directory" in ddlrun("probe", "--machine", f"{folder}/nowhere").stderr


def test_machines_side_by_side(ddlrun: Ddlrun, tmp_path: Path) -> None:
    for name in ("n1", "n2", "n3"):
        (tmp_path / "saved" / name).mkdir(parents=True)
        described = load("power9-lassen" if name == "n2" else "ac922-22-cores")
        (tmp_path / "saved" / name / "lstopo.xml").write_text(render_hwloc(described))
    done = ddlrun("probe", "--machine", str(tmp_path / "saved"))
    assert [line for line in done.stdout.splitlines() if ": " in line] == [
        "n[1,3]: 2 packages x 22 cores, SMT4, 4 GPUs, 6 NICs (4 RDMA), 320 GiB (hwloc)",
        "n2: 2 packages x 20 cores, SMT4, 4 GPUs, 6 NICs (4 RDMA), 256 GiB (hwloc)",
        (
            "  differs from n[1,3]: packages of 20+20 cores instead of packages of 22+22 cores; "
            "NUMA nodes 0,8 instead of NUMA nodes 0,8,252-255; 256 GiB instead of 320 GiB"
        ),
    ]
    # In a scheduler's job, the hosts are those of the job.
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}
    for environ, hosts in (({}, 3), (job, 2)):
        shown = ddlrun("show", "hosts", "--json", "--machine", str(tmp_path / "saved"), **environ)
        assert len(json.loads(shown.stdout)["hosts"]) == hosts
    # Each rank is placed by its own host's machine, and lint checks against it.
    ranks = ddlrun("gen-rankfile", "4x3", "n[1-3]", "--machine", str(tmp_path / "saved"))
    assert "rank 0=n1 slot=0:0-10\n" in ranks.stdout
    assert "rank 1=n2 slot=0:0-9\n" in ranks.stdout
    (tmp_path / "ranks").write_text(ranks.stdout)
    assert ddlrun("lint", str(tmp_path / "ranks"), "--machine", str(tmp_path / "saved")).stdout == ""
    (tmp_path / "ranks").write_text(ranks.stdout.replace("n2 slot=0:0-9", "n2 slot=0:0-20"))
    assert (
        "package 0 has cores 0-19"
        in ddlrun("lint", str(tmp_path / "ranks"), "--machine", str(tmp_path / "saved")).stdout
    )


def test_hosts_that_fail_alike_are_one_line() -> None:
    many = {f"n{i}": f"ssh: no route to n{i}" for i in range(1, 7)}
    assert render_failures({**many, "m": "no answer in time"}, "ssh -p 2") == [
        "hosts n[1-6]: ssh: no route to n1; try: ssh -p 2 n1 true",
        "host m: no answer in time; try: ssh -p 2 m true",
    ]
    assert len(render_failures(dict(list(many.items())[:3]), "ssh")) == 3


def test_no_ssh_is_tried_for_this_machine() -> None:
    assert render_failures({"localhost": "sh: not on PATH"}, "ssh") == [
        "host localhost: sh: not on PATH; try: sh -c true"
    ]


def test_nothing_is_saved_of_hosts_that_fail(ddlrun: Ddlrun, tmp_path: Path) -> None:
    done = ddlrun("probe", "nowhere.invalid", "--save", str(tmp_path / "saved"), "--start-timeout", "20")
    assert done.returncode == 3
    assert not (tmp_path / "saved").exists()


def test_a_description_is_shown_without_a_probe(ddlrun: Ddlrun, tmp_path: Path) -> None:
    done = ddlrun("probe", "no-such-host-[1-2].invalid", "--machine", "s822lc")
    assert (done.returncode, done.stderr) == (0, "")
    first, *drawing = done.stdout.splitlines()
    assert first.startswith("no-such-host-1.invalid,no-such-host-2.invalid: 2 packages x 10 cores, SMT8, 4 GPUs")
    assert any("GPU 0" in line and "GPU 2" in line for line in drawing)
    kept = ddlrun("probe", "--machine", "s822lc", "--save", str(tmp_path / "saved"))
    assert kept.stderr == "ddlrun: error: --save writes what a probe finds; leave --machine out\n"


def test_equal_drawings_stand_once() -> None:
    whole = machine("minsky")
    text = render_groups(group({"a": whole._replace(memory=1), "b": whole, "c": whole}), Canvas())
    assert (text.count("package 0"), text.count("minsky")) == (1, 2)


def test_differences_in_words() -> None:
    whole = machine("minsky")
    half = whole._replace(cores=tuple(core._replace(usable=core.logical_index < 5) for core in whole.cores))
    assert differences(half, whole) == ["usable cores 0-4 instead of all cores usable"]
    assert differences(whole._replace(gpus=whole.gpus[:3]), whole)[0] == "3 GPUs instead of 4 GPUs"
    groups = group({"a": half, "b": whole, "c": whole})
    assert [list(names) for _, names in groups] == [["b", "c"], ["a"]]
    assert "a: 2 packages x 10 cores, SMT8, 4 GPUs, 5 cores usable (minsky)" in render_groups(groups, Canvas())


# A program that interrupts itself at a moment.
INTERRUPT = """
import os, signal, sys, time
sent, slow = [], []
def interrupt():
    if not sent:
        sent.append(1)
        os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
# When a process was started, and before it is recorded.
STARTED = """
def on_event(_frame, event, function):
    if event == "c_return" and function.__name__ == "posix_spawnp":
        interrupt()
sys.setprofile(on_event)
"""


@pytest.mark.parametrize("hosts", ["n1", "n1,n2"])
def test_a_ctrl_c_while_a_process_starts_ends_ddlrun_and_the_process(hosts: str, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    nap = f"60.{os.getpid()}"
    agent.write_text(f"#!/bin/sh\nexec sleep {nap}\n")
    agent.chmod(0o755)
    line = ["ddlrun", "probe", hosts, "--launcher", "agent", "--start-timeout", "30"]
    program = f"{INTERRUPT}\nfrom ddlrun.cli import main\nsys.argv = {line}\n{STARTED}\nmain()"
    environ = os.environ | {"OMPI_MCA_plm_rsh_agent": str(agent)}
    with (tmp_path / "output").open("w") as output:  # a pipe would stay open until the last process has closed it
        done = subprocess.run([sys.executable, "-c", program], env=environ, stdout=output, stderr=output, check=False)
    assert (done.returncode, (tmp_path / "output").read_text().strip()) == (130, "")
    wait_for(lambda: not running(nap))


# Moments of an interrupt: in a fork handler, as logging has, whose exceptions Python drops; there, with a machine so
# busy that the exception is raised again before its handler has returned; in logging's own, before Python 3.13.
MOMENTS = {
    "fork": "os.register_at_fork(after_in_parent=interrupt)",
    "busy": "os.register_at_fork(after_in_parent=interrupt); sys.setprofile(lambda frame, event, function: "
    "event == 'c_return' and function.__name__ == 'setitimer' and not slow and (slow.append(1), time.sleep(0.1)))",
    "lock": "import logging, ddlrun.cli.signals; ddlrun.cli.signals.RAISE_SECONDS = 0.2; "
    "sys.setprofile(lambda frame, event, _: "
    "frame.f_code is logging._acquireLock.__code__ and event == 'call' "
    "and 'logging' not in frame.f_back.f_code.co_filename and interrupt())",
}
FORK = """
from ddlrun.cli.signals import handle_signals
handle_signals()
{moment}
try:
    child = os.fork()
    if child == 0:
        os._exit(0)
    time.sleep(60)
except KeyboardInterrupt:
    os.waitpid(child, 0)
    sys.exit(130)
"""


@pytest.mark.parametrize("moment", [name for name in MOMENTS if name != "lock" or sys.version_info < (3, 13)])
def test_a_ctrl_c_in_a_callback_of_a_fork_is_not_lost(moment: str) -> None:
    program = INTERRUPT + FORK.format(moment=MOMENTS[moment])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_without_sys_each_cpu_is_a_core(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Cpus_allowed_list:\t0-1\n")
    machine = machine_of({SYSFS: probe_output(str(tmp_path))}, "a")
    assert (str(machine), machine.cores_uncounted) == ("1 package x 2 cores", True)
    assert render_slots(machine.cores, machine, (4,)) is None


def test_more_files_than_one_command_takes_are_read(tmp_path: Path) -> None:
    root = str(write_sysfs(load("power7-256"), tmp_path))
    shell = ["sh", "-c", "ulimit -s 256; exec sh -s"]  # Linux then takes 128 KiB of arguments and variables
    environ = {"PATH": os.environ["PATH"], "ROOT": root, "LONG": "x" * 100_000}
    done = subprocess.run(shell, input=SCRIPT, env=environ, capture_output=True, text=True, check=True)
    assert (parse_sysfs(done.stdout, "a"), done.stderr) == (parse_sysfs(probe_output(root), "a"), "")


def test_no_rank_file_is_written_where_a_hidden_core_is_a_numa_node(tmp_path: Path) -> None:
    text = 'about: a\npackages: 0-3\ncores: 0-3/1\nnodes: {0: 0-1, 1: "2", 2: "3"}\nmemory: 1024\nforbidden: "3"'
    root = write_sysfs(parse_facts(text, "hidden"), tmp_path)
    hidden = machine_of({SYSFS: probe_output(str(root))}, "a")
    assert (str(hidden), hidden.cores_uncounted) == ("1 package x 3 cores", True)


UUIDS = {"0000:41:00.0": "GPU-1a", "0000:42:00.0": "GPU-1b", "0000:81:00.0": "GPU-2a"}
ALL = ["0000:41:00.0", "0000:42:00.0", "0000:81:00.0"]
ORDERED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("vendor", "variables", "expected"),
    [
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "2,0", **ORDERED}, ["nvidia 0000:81:00.0", "nvidia 0000:41:00.0"]),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-2"}, ["nvidia 0000:81:00.0"]),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-1"}, []),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "MIG-377e,MIG-b6"}, ["nvidia None", "nvidia None"]),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "MIG-GPU-1b/1/0"}, ["nvidia None"]),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,1"}, ["None None", "None None"]),  # by speed, of several models
        ("nvidia", {"NVIDIA_VISIBLE_DEVICES": "GPU-1b"}, ["nvidia 0000:42:00.0"]),
        ("nvidia", {"NVIDIA_VISIBLE_DEVICES": "GPU-1b", "CUDA_VISIBLE_DEVICES": "GPU-2a"}, ["nvidia 0000:81:00.0"]),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0", **ORDERED},
         ["nvidia 0000:42:00.0"]),
        ("amd", {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"}, ["amd 0000:42:00.0"]),  # as Slurm sets both
        ("amd", {"ROCR_VISIBLE_DEVICES": "2,0", "HIP_VISIBLE_DEVICES": "1"}, ["amd 0000:41:00.0"]),
        ("amd", {"CUDA_VISIBLE_DEVICES": "1"}, ["amd 0000:42:00.0"]),
        ("amd", {"GPU_DEVICE_ORDINAL": "2"}, ["amd 0000:81:00.0"]),
        ("amd", {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "2"}, ["amd 0000:41:00.0"]),
        ("intel", {"ZE_AFFINITY_MASK": "0.0,0.1,2"}, ["None None"] * 3),
        ("intel", {"ONEAPI_DEVICE_SELECTOR": "level_zero:0;level_zero:2"}, ["None None"] * 2),
        ("intel", {"ONEAPI_DEVICE_SELECTOR": "!level_zero:1"}, ["None None"] * 2),
        ("intel", {"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu;opencl:0"}, [f"intel {address}" for address in ALL]),
        ("intel", {"ONEAPI_DEVICE_SELECTOR": "level_zero:1", "ZE_AFFINITY_MASK": "0,2"}, ["None None"]),
        ("intel", {"CUDA_VISIBLE_DEVICES": "0"}, [f"intel {address}" for address in ALL]),
    ],
)  # fmt: skip
def test_variables_leave_no_other_gpus_than_the_user_chose(
    vendor: str, variables: dict[str, str], expected: list[str]
) -> None:
    gpus = [GPU(number, pci_address=address, vendor=vendor) for number, address in enumerate(ALL)]
    usable, _ = granted(gpus, [], UUIDS, variables)
    assert [f"{gpu.vendor} {gpu.pci_address}" for gpu in usable] == expected


def test_a_mig_device_is_where_its_gpu_is() -> None:
    gpus = [GPU(n, package=n, pci_address=address, vendor="nvidia") for n, address in enumerate(ALL)]
    usable, (note,) = granted(gpus, [], UUIDS, {"CUDA_VISIBLE_DEVICES": "MIG-GPU-2a/1/0,MIG-377e"})
    assert [(gpu.number, gpu.package) for gpu in usable] == [(0, 2), (1, None)]
    assert note.code is MachineNoteCode.GPUS_PARTITIONED


def test_gpus_by_uuid_are_those_of_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (GPU(0, pci_address=ALL[0], vendor="nvidia"),)
    here, there = (machine("minsky")._replace(gpus=gpus) for _ in range(2))
    machines = {"localhost": here, "h2": there}
    chosen = here._replace(notes=(machine_note(MachineNoteCode.GPUS_RESTRICTED),))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1a")
    check_named_gpus(machines, AgentLauncher())  # all of this host
    check_named_gpus({"localhost": chosen}, AgentLauncher())
    check_named_gpus({"localhost": chosen, "h2": there._replace(gpus=())}, AgentLauncher())
    check_named_gpus({"localhost": chosen, "h2": there}, AgentLauncher("srun"))  # Slurm has chosen there too
    with pytest.raises(InputError, match="'GPU-1a' names GPUs of one host, but the job also has h2; give numbers"):
        check_named_gpus({"localhost": chosen, "h2": there}, AgentLauncher())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    check_named_gpus({"localhost": chosen, "h2": there}, AgentLauncher())
