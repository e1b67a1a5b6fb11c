"""Probe of a host's cores, GPUs and NICs in /sys, /proc and /dev: its script, and the parser of the output.

Most of the output is that of `grep -s . FILE...`: `path:content`, for each line of each file. The other lines
begin with @, and have a key and values.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import HostError
from ddlrun.machine import GPU, NIC, Core, Machine, MachineNote, MachineNoteCode, machine_note
from ddlrun.machine.cpus import number_cores, parse_cpu_list
from ddlrun.machine.pci import PciDevice, allocated, attach, gpu_vendor, granted, installed_memory

# A POSIX sh script that needs only a shell and grep, and writes nothing. ROOT is empty, except to read the files
# of another machine from a folder. A device that may not be opened is not offered.
SCRIPT = r"""
cd "$ROOT/sys/devices/system" || exit 1
grep -s . cpu/online cpu/cpu[0-9]*/topology/core_siblings_list cpu/cpu[0-9]*/topology/thread_siblings_list \
  cpu/cpu[0-9]*/cache/index[2-9]/shared_cpu_list node/online node/node[0-9]*/cpulist /dev/null
grep -s -e Cpus_allowed_list: -e MemTotal: "$ROOT/proc/self/status" "$ROOT/proc/meminfo" /dev/null
cpuset=
[ ! -e "$ROOT/proc/self/cpuset" ] || read -r cpuset <"$ROOT/proc/self/cpuset"
mounts=$ROOT/proc/self/mounts
[ -e "$mounts" ] || mounts=$ROOT/proc/mounts
while read -r _ mount type options _; do
  case $type,$options, in
    cgroup2,*) files=cpuset.cpus.effective ;;
    cgroup,cpuset,*|cgroup,*,cpuset,*) files='cpuset.cpus cpus' ;;
    *) continue ;;
  esac
  path=${cpuset%/}
  while :; do  # inside a container the path may be that of the host: then the mounted one counts
    for file in $files; do
      [ -e "$ROOT$mount$path/$file" ] && read -r list <"$ROOT$mount$path/$file" && echo "cpuset$mount:$list" && break 2
    done
    [ -n "$path" ] || break
    path=${path%/*}
  done
done 2>/dev/null <"$mounts"
while IFS=: read -r _ kinds path; do
  case ,$kinds, in
    ,,) file=memory.max ;;
    *,memory,*) file=memory.limit_in_bytes ;;
    *) continue ;;
  esac
  while read -r _ mount type _; do
    case $type in cgroup*) ;; *) continue ;; esac
    at=${path%/}
    while :; do  # the limits of all parent groups apply too
      [ -e "$ROOT$mount$at/$file" ] && read -r bytes <"$ROOT$mount$at/$file" && echo "@memory $bytes"
      [ -n "$at" ] || break
      at=${at%/*}
    done
  done <"$mounts"
done 2>/dev/null <"$ROOT/proc/self/cgroup"
may() { ( : <"$1" ) 2>/dev/null && echo "@gpu $2 yes" || echo "@gpu $2 no"; }
cd "$ROOT/sys/bus/pci/devices" 2>/dev/null && for gpu in $(grep -lsE '^0x(03|12)' */class); do
  gpu=${gpu%/class}
  grep -s . "$gpu/vendor" "$gpu/device" "$gpu/class" "$gpu/numa_node" /dev/null
  echo "@bus $gpu $(cd -P "$gpu" && pwd -P)"
  [ -z "$ROOT" ] || continue
  info=/proc/driver/nvidia/gpus/$gpu/information
  if [ -e "$info" ]; then
    while IFS=: read -r key value; do
      case $key in
        "GPU UUID") echo "@uuid $gpu" $value ;;
        "Device Minor") may /dev/nvidia$((value)) "$gpu"; echo "@minor $gpu $((value))" ;;
      esac
    done <"$info"
  elif [ -d "$gpu/drm" ]; then
    for node in "$gpu"/drm/renderD*; do may "/dev/dri/${node##*/}" "$gpu"; done
    [ ! -e "$gpu/unique_id" ] || echo "@uuid $gpu GPU-$(cat "$gpu/unique_id")"
  else
    echo "@gpu $gpu no"
  fi
done
first_line() { line=; { read -r line <"$1"; } 2>/dev/null; }  # a shell's own read is quicker than cat
for class in net infiniband hfi1 cxi; do
  for device in "$ROOT/sys/class/$class"/*; do
    [ -e "$device" ] || continue
    case $class in
      net)
        [ -e "$device/device" ] || continue
        first_line "$device/operstate"
        [ "$line" = up ] || continue ;;
      infiniband) grep -qs ACTIVE "$device"/ports/*/state || continue ;;
    esac
    first_line "$device/device/numa_node"
    node=$line
    echo "@nic $class ${device##*/} ${node:--1} $(cd -P "$device/device" 2>/dev/null && pwd -P)"
  done
done
for name in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES; do
  eval "[ -z \"\${$name+set}\" ] || echo \"@env $name \$$name\""
done
[ -z "$DDLRUN_GPUS" ] || echo "@allotted $DDLRUN_GPUS"
echo ddlrun:end
"""


class _Output(NamedTuple):
    """The script's output: contents of files by path, and the words of the lines that begin with @."""

    files: Mapping[str, str]
    records: Sequence[Sequence[str]]

    def values(self, key: str) -> dict[str, str]:
        """Return the value of each device in the records `@key DEVICE VALUE`."""
        rows = (words for words in self.records if words[0] == key)
        return {words[1]: words[2].strip() if len(words) > 2 else "" for words in rows}


def parse_sysfs(text: str, host: str) -> Machine:
    """Parse the output of SCRIPT on `host`.

    Packages, NUMA nodes and cores are numbered as hwloc does. CPUs that are offline or outside the cgroup's
    cpuset are left out; cores outside the process's own affinity are not usable. GPUs without a driver, or
    that may not be opened, are left out with a note. Raises HostError if the text is broken or incomplete.
    """
    output = _split_output(text)
    if "ddlrun" not in output.files or not any("/topology/" in path for path in output.files):
        raise HostError(host, f"its cores could not be read (got {text[-60:]!r}); give --machine")
    try:
        machine = _machine(output)
    except (ValueError, IndexError) as error:
        raise HostError(host, f"/sys has unexpected contents ({error}); give --machine") from error
    if not any(core.usable for core in machine.cores):
        raise HostError(host, "no core is usable (affinity and cpuset exclude each other)")
    return machine


def _split_output(text: str) -> _Output:
    files: dict[str, str] = {}
    records: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("@"):
            records.append(line.split(" ", 2))
        else:
            path, _, content = line.rpartition(":")  # a PCI address has colons, no content has
            files.setdefault(path, content.strip())
    return _Output(files, records)


def _machine(output: _Output) -> Machine:
    cores = _cores(output.files)
    gpus, nics, notes = _devices(cores, output)
    kib = next((int(size.split()[0]) for path, size in output.files.items() if "MemTotal" in path), 0)
    return Machine(
        cores=cores,
        gpus=gpus,
        nics=nics,
        source="sysfs",
        measured=True,
        numa_nodes=_numa_nodes(cores, output.files),
        memory=installed_memory(kib),
        notes=(*notes, *_memory_note(output, kib)),
    )


def _devices(
    cores: Sequence[Core], output: _Output
) -> tuple[tuple[GPU, ...], tuple[NIC, ...], tuple[MachineNote, ...]]:
    """Return the GPUs that may be used, the NICs, and notes on the other GPUs."""
    gpus, nics = attach(cores, _gpus(output), _nics(output))
    denied = {words[1] for words in output.records if words[0] == "@gpu" and words[2] == "no"}
    variables = output.values("@env")
    gpus, notes = granted(gpus, denied, output.values("@uuid"), variables)
    numbers = next((words[1] for words in output.records if words[0] == "@allotted"), "")
    if numbers and not variables:  # the variables, of the scheduler or the user, are stronger
        gpus, more_notes = allocated(gpus, numbers, output.values("@minor"))
        notes += more_notes
    return gpus, nics, notes


def _numa_nodes(cores: Sequence[Core], files: Mapping[str, str]) -> tuple[int, ...]:
    if "node/online" in files:
        return tuple(sorted(parse_cpu_list(files["node/online"])))
    return tuple(sorted({core.numa_node for core in cores if core.numa_node is not None}))


def _memory_note(output: _Output, kib: int) -> tuple[MachineNote, ...]:
    """Return a note if a cgroup allows less than all of the memory."""
    limits = [int(words[1]) for words in output.records if words[0] == "@memory" and words[1].isdecimal()]
    if not kib or not limits or min(limits) >= kib << 10:
        return ()
    # Rounded as in the text: MemTotal differs by some KiB between hosts whose machines are equal.
    allowed, installed = round(min(limits) / (1 << 30), 1), round(kib / (1 << 20))
    return (machine_note(MachineNoteCode.MEMORY_LIMITED, allowed=allowed, installed=installed),)


def machine_kind(text: str) -> str:
    """Return the output that equal hosts share: memory in GiB, UUIDs only if a variable restricts GPUs."""
    if "@env" in text:
        return text
    text = re.sub(r"MemTotal: *(\d+)", lambda size: f"MemTotal:{_gib(int(size[1]))}", text)
    return re.sub(r"(?m)^@uuid.*\n?", "", text)


def _gib(kib: int) -> str:
    """Return MemTotal without the few KiB by which it differs between equal hosts."""
    return f"{installed_memory(kib)} {kib / (1 << 20):.0f}"


def _cores(files: Mapping[str, str]) -> tuple[Core, ...]:
    numbers = {int(path.split("/")[1][3:]) for path in files if path.endswith("/topology/thread_siblings_list")}
    online = parse_cpu_list(files["cpu/online"]) if "cpu/online" in files else frozenset(numbers)
    for path, content in files.items():
        if path.startswith("cpuset"):
            online &= parse_cpu_list(content)
    allowed = online
    for path, content in files.items():
        if path.endswith(":Cpus_allowed_list"):
            allowed = parse_cpu_list(content) & online
    nodes = {
        int(path.split("/")[1][4:]): pus & online
        for path, content in files.items()
        if path.startswith("node/node") and (pus := parse_cpu_list(content)) & online
    }
    threads = {pu: _siblings(files, pu, "thread", str(pu)) & online | {pu} for pu in online}
    all_pus = ",".join(map(str, online))
    packages = {_siblings(files, pu, "core", all_pus) & online | {pu} for pu in online}
    caches = {parse_cpu_list(content) & online for path, content in files.items() if path.endswith("/shared_cpu_list")}
    return number_cores(set(threads.values()), packages, nodes, caches=caches, allowed=allowed)


def _siblings(files: Mapping[str, str], pu: int, kind: str, default: str) -> frozenset[int]:
    return parse_cpu_list(files.get(f"cpu/cpu{pu}/topology/{kind}_siblings_list", default))


def _gpus(output: _Output) -> Iterator[PciDevice]:
    paths = output.values("@bus")
    for path, content in output.files.items():
        address, _, name = path.partition("/")
        if name == "class":
            maker, device = (output.files.get(f"{address}/{name}", "")[2:] for name in ("vendor", "device"))
            vendor = gpu_vendor(maker, device, content[2:])
            if vendor:
                node = _node(output.files.get(f"{address}/numa_node"))
                yield PciDevice(vendor, address, node, _bus(paths.get(address, "")))


def _nics(output: _Output) -> Iterator[PciDevice]:
    for words in output.records:
        if words[0] == "@nic":
            name, node, path = words[2].split(" ", 2)
            yield PciDevice(words[1], name, _node(node), _bus(path))


def _node(text: str | None) -> int | None:
    return int(text) if text and int(text) >= 0 else None


def _bus(path: str) -> tuple[str, ...]:
    return tuple(path.rpartition("/devices/")[2].split("/")) if "/devices/" in path else ()
