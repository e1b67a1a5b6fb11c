"""The full probe of a host: its script, the parser of the reply, and the machine that the reply describes.

Each section of a reply, between markers, is the output of one tool; the same texts are the files of a folder
that `ddlrun probe --save` writes and `--machine` reads.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ddlrun.errors import HostError
from ddlrun.machine import (
    Machine,
    MachineNote,
    MachineNoteCode,
    lscpu,
    machine_note,
    numactl,
    nvidia_smi,
    ppc64_cpu,
    text_locality,
)
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.machine.locality import Locality, distance_rows, with_locality, with_locality_of
from ddlrun.machine.sysfs import parse_sysfs
from ddlrun.machine.sysfs_devices import read_devices
from ddlrun.machine.sysfs_script import SCRIPT, split_output
from ddlrun.ranges import render_ranges

# Section -> the tool's command line. A host without a tool leaves its section out.
TOOLS = {
    "lstopo.xml": "$lstopo --of xml",
    "lscpu.txt": "lscpu -p=CPU,CORE,SOCKET,NODE,ONLINE",
    "lscpu.json": "lscpu -J",
    "numactl.txt": "numactl -H",
    "ppc64_cpu.txt": "ppc64_cpu --info",
    "nvidia-topo.txt": "nvidia-smi topo -m",
    "nvidia-gpus.csv": "nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader",
    "ip.txt": "ip -o addr",
    "uname.txt": "uname -a",
}
SYSFS = "sysfs.txt"
SECTIONS = (SYSFS, *TOOLS)


class ProbeReply(NamedTuple):
    """A host's sections, and a key that changes with a reboot or with the machine.

    `same` if the key was the one in the script: the tools were then skipped.
    """

    key: str
    same: bool
    sections: Mapping[str, str]


def full_script(known_key: str = "") -> str:
    """Return the POSIX sh script that runs all tools, or prints `same` if the host's key is `known_key`.

    No tool reads the script's own input, none runs for more than 20 s, and nothing is written.
    """
    tools = "".join(f"tool {name} {command}\n" for name, command in TOOLS.items())
    return f"""\
LC_ALL=C; export LC_ALL
PATH=$PATH:/usr/sbin:/sbin:/usr/local/bin:/usr/local/cuda/bin
limit=; command -v timeout >/dev/null 2>&1 && limit='timeout 20'
tool() {{
  name=$1; shift
  command -v "$1" >/dev/null 2>&1 || return 0
  echo "@ddlrun begin $name"; $limit "$@" 2>/dev/null </dev/null; code=$?; echo; echo "@ddlrun end $name $code"
}}
lstopo=lstopo-no-graphics; command -v $lstopo >/dev/null 2>&1 || lstopo=lstopo
text=$({SCRIPT})
key=$(printf '%s\\n' "$text" "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)" | cksum)
echo "@ddlrun key ${{key% *}}"
printf '@ddlrun begin {SYSFS}\\n%s\\n@ddlrun end {SYSFS} 0\\n' "$text"
if [ "${{key% *}}" = '{known_key}' ]; then echo '@ddlrun same'; else
{tools}fi
echo '@ddlrun done'
"""


def parse_answer(text: str, host: str) -> ProbeReply:
    """Parse the output of `full_script`. Raises HostError if its end is missing."""
    sections: dict[str, list[str]] = {}
    key, same, done = "", False, False
    current: list[str] | None = None
    for line in text.splitlines(keepends=True):
        match line.split():
            case ["@ddlrun", "key", word] if word.isascii() and word.isdecimal():
                key = word  # it becomes a part of the next script
            case ["@ddlrun", "begin", name] if name in SECTIONS:  # it becomes the name of a file
                current = sections.setdefault(name, [])
            case ["@ddlrun", "end", name, code]:
                if code != "0":  # the output of a tool that failed is not used
                    sections.pop(name, None)
                current = None
            case ["@ddlrun", "same"]:
                same = True
            case ["@ddlrun", "done"]:
                done = True
            case _ if current is not None:
                current.append(line)
    if not done or current is not None:
        raise HostError(host, f"its answer stops after {len(text)} characters ({text[-60:]!r}); try again")
    return ProbeReply(key, same, {name: "".join(lines).rstrip("\n") + "\n" for name, lines in sections.items()})


def machine_of(sections: Mapping[str, str], host: str, *, complete: bool = True) -> Machine:
    """Return a host's machine from the output of its tools.

    Cores come from the first of hwloc, /sys, lscpu, and numactl with ppc64_cpu that the host has. /sys has
    what the cpuset and the drivers allow, nvidia-smi the location of GPUs. Where hwloc and /sys disagree, the
    machine has a note, and where an output that is not known to be `complete` could be cut off without a sign
    of it. Raises HostError with tool and line if an output cannot be parsed, or if the host has none of the
    tools.
    """
    source = next((section for section in _CORES if section in sections), None)
    if source is None:
        raise HostError(host, f"none of its tools lists its cores ({', '.join(_CORES)}); give `--machine`")
    machine = _CORES[source](sections, host)
    notes = () if complete else tuple(_unchecked(source, sections, machine))
    if "nvidia-topo.txt" in sections or "nvidia-gpus.csv" in sections:
        machine = _with_nvidia(machine, sections, host)
    return machine._replace(notes=(*machine.notes, *notes))


def _unchecked(source: str, sections: Mapping[str, str], machine: Machine) -> Iterator[MachineNote]:
    """Yield notes on outputs that print no end, and whose numbers no other output confirms."""
    if source == "lscpu.txt" and "lscpu.json" not in sections:
        yield machine_note(MachineNoteCode.TABLE_UNCHECKED)
    if source == "lscpu.json" and not lscpu.lists_nodes(sections["lscpu.json"]):
        yield machine_note(MachineNoteCode.NODES_UNCHECKED)
    if not machine.gpus and "nvidia-gpus.csv" in sections and "nvidia-topo.txt" not in sections:
        yield machine_note(MachineNoteCode.GPUS_UNCHECKED)


def _hwloc(sections: Mapping[str, str], host: str) -> Machine:
    if SYSFS not in sections:
        return parse_hwloc(sections["lstopo.xml"], host)
    kernel = parse_sysfs(sections[SYSFS], host)
    allowed = frozenset(pu.os_index for core in kernel.cores if core.usable for pu in core.pus)
    machine = with_locality_of(parse_hwloc(sections["lstopo.xml"], host, allowed), kernel)
    notes = tuple(dict.fromkeys((*machine.notes, *kernel.notes)))
    if [core.numbers for core in machine.cores] != [core.numbers for core in kernel.cores]:
        notes = (*notes, machine_note(MachineNoteCode.CORES_DIFFER))
    # /sys shows which devices are up, have a driver, and may be opened.
    gpus, nics, _ = read_devices(split_output(sections[SYSFS]), machine.cores)
    return machine._replace(
        gpus=gpus, nics=nics, memory=kernel.memory, notes=notes, hwloc_2_0_cores=kernel.hwloc_2_0_cores
    )


def _numactl(sections: Mapping[str, str], host: str) -> Machine:
    if "ppc64_cpu.txt" not in sections:
        raise HostError(host, "numactl alone does not list which CPUs share a core; give `--machine`")
    nodes = numactl.parse_numactl(sections["numactl.txt"], host)
    cores = ppc64_cpu.parse_ppc64_cpu(sections["ppc64_cpu.txt"], host)
    return _with_text_locality(ppc64_cpu.machine_of(nodes, cores, host), sections, host)


def _lscpu(sections: Mapping[str, str], host: str) -> Machine:
    if "lscpu.txt" not in sections:
        return lscpu.parse_lscpu_summary(sections["lscpu.json"], host)
    machine = lscpu.parse_lscpu(sections["lscpu.txt"], host)
    if "lscpu.json" in sections:
        lscpu.check_one_kind(sections["lscpu.json"], host)
        online = lscpu.parse_online_cpus(sections["lscpu.json"], host)
        listed = frozenset(pu.os_index for core in machine.cores for pu in core.pus)
        if listed != online:
            problem = f"lscpu -p lists the CPUs {render_ranges(listed)}, lscpu -J has {render_ranges(online)} online"
            raise HostError(host, f"{problem}; run both again, or give `--machine`")
    return _with_text_locality(machine, sections, host)


def _with_text_locality(machine: Machine, sections: Mapping[str, str], host: str) -> Machine:
    """Return the machine with its L3 domains and distances, as far as the texts have them."""
    domains = text_locality.lscpu_l3_domains(sections.get("lscpu.txt", ""))
    machine = machine._replace(cores=with_locality(machine.cores, Locality(l3_domains=domains)))
    if "numactl.txt" not in sections:
        return machine
    try:
        numactl.parse_numactl(sections["numactl.txt"], host)
    except HostError:
        return machine._replace(notes=(*machine.notes, machine_note(MachineNoteCode.DISTANCES_UNREAD)))
    distances = text_locality.numactl_distances(sections["numactl.txt"])
    return machine._replace(numa_distances=distance_rows(machine.numa_nodes, distances))


# Section -> parser of its cores, the most trusted first.
_CORES: dict[str, Callable[[Mapping[str, str], str], Machine]] = {
    "lstopo.xml": _hwloc,
    SYSFS: lambda sections, host: parse_sysfs(sections[SYSFS], host),
    "lscpu.txt": _lscpu,
    "lscpu.json": _lscpu,
    "numactl.txt": _numactl,
}


def _with_nvidia(machine: Machine, sections: Mapping[str, str], host: str) -> Machine:
    topo = nvidia_smi.parse_topo(sections["nvidia-topo.txt"], host) if "nvidia-topo.txt" in sections else None
    query = nvidia_smi.parse_query(sections["nvidia-gpus.csv"], host) if "nvidia-gpus.csv" in sections else ()
    return nvidia_smi.with_topology(machine, topo, query)
