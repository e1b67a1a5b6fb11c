"""Parser of the probe of a host's cores, GPUs and NICs in /sys, /proc and /dev (sysfs_script.py)."""

import re

from ddlrun.errors import HostError
from ddlrun.machine import Machine, MachineNote, MachineNoteCode, machine_note
from ddlrun.machine.announced_cpus import LINES as ANNOUNCED
from ddlrun.machine.locality import distance_rows, with_locality
from ddlrun.machine.pci import installed_memory
from ddlrun.machine.sysfs_cores import described_cpus, read_cores
from ddlrun.machine.sysfs_devices import read_devices
from ddlrun.machine.sysfs_locality import read_locality
from ddlrun.machine.sysfs_script import ProbeOutput, split_output


def parse_sysfs(text: str, host: str) -> Machine:
    """Parse the output of SCRIPT on `host`.

    Packages, NUMA nodes and cores are numbered as hwloc does. CPUs that are offline or outside the cgroup's
    cpuset are left out; cores outside the process's own affinity are not usable. GPUs without a driver, or
    that may not be opened, are left out with a note. Without a topology in /sys (gVisor) each CPU is a core.
    Raises HostError if the text is broken or incomplete.
    """
    output = split_output(text)
    if "ddlrun" not in output.files or not described_cpus(output.files):
        raise HostError(host, f"its cores could not be read (got {text[-60:]!r}); give `--machine`")
    try:
        machine = _machine(output)
    except (ValueError, IndexError) as error:
        raise HostError(host, f"/sys has unexpected contents ({error}); give `--machine`") from error
    if not any(core.usable for core in machine.cores):
        raise HostError(host, "no core is usable (affinity and cpuset exclude each other)")
    return machine


def _machine(output: ProbeOutput) -> Machine:
    cores, locality = read_cores(output), read_locality(output.files)
    located = with_locality(cores.numbering.cores, locality)
    gpus, nics, notes = read_devices(output, located)
    kib = next((int(size.split()[0]) for path, size in output.files.items() if "MemTotal" in path), 0)
    return Machine(
        cores=located,
        gpus=gpus,
        nics=nics,
        source="sysfs",
        measured=True,
        numa_nodes=cores.numa_nodes,
        numa_distances=distance_rows(cores.numa_nodes, locality.distances),
        packaged=cores.packaged,
        empty_packages=cores.numbering.empty_packages,
        hwloc_2_0_cores=cores.hwloc_2_0_cores,
        memory=installed_memory(kib),
        notes=(*cores.notes, *notes, *_memory_note(output, kib)),
    )


def _memory_note(output: ProbeOutput, kib: int) -> tuple[MachineNote, ...]:
    """Return a note if a cgroup allows less than all of the memory."""
    limits = [int(words[1]) for words in output.records if words[0] == "@memory" and words[1].isdecimal()]
    if not kib or not limits or min(limits) >= kib << 10:
        return ()
    # Rounded as in the text: MemTotal differs by some KiB between hosts whose machines are equal.
    allowed, installed = round(min(limits) / (1 << 30), 1), round(kib / (1 << 20))
    return (machine_note(MachineNoteCode.MEMORY_LIMITED, allowed=allowed, installed=installed),)


def machine_kind(text: str) -> str:
    """Return the output that equal hosts share: memory in GiB, UUIDs only if a variable restricts GPUs."""
    text = re.sub(ANNOUNCED, "", text)
    if "@env" in text:
        return text
    text = re.sub(r"MemTotal: *(\d+)", lambda size: f"MemTotal:{_gib(int(size[1]))}", text)
    return re.sub(r"(?m)^@uuid.*\n?", "", text)


def _gib(kib: int) -> str:
    """Return MemTotal without the few KiB by which it differs between equal hosts."""
    return f"{installed_memory(kib)} {kib / (1 << 20):.0f}"
