"""What Linux says of a host's cores, GPUs and NICs in /sys, /proc and /dev -> Machine.

Most of the text is what `grep -s . FILE...` prints: `path:content`, one line a line of each file. The
rest are lines of words that begin with @.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ddlrun.errors import UnreachableError
from ddlrun.machine import Core, Machine
from ddlrun.machine.cpus import number_cores, parse_cpu_list
from ddlrun.machine.pci import PciDevice, allotted, attach, gpu_vendor, granted, installed_memory

# One POSIX sh script that needs nothing but a shell and grep, and writes nothing. ROOT is empty but
# where the files of another machine lie in a folder. A device that may not be opened is not offered.
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
  while :; do  # inside a container the path may be that of the host: then what is mounted counts
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
    while :; do  # the limits of all groups above count too
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
for class in net infiniband hfi1 cxi; do
  for device in "$ROOT/sys/class/$class"/*; do
    case $class in
      net) [ -e "$device/device" ] && grep -qs up "$device/operstate" || continue ;;
      infiniband) grep -qs ACTIVE "$device"/ports/*/state || continue ;;
      *) [ -e "$device" ] || continue ;;
    esac
    node=$(cat "$device/device/numa_node" 2>/dev/null)
    echo "@nic $class ${device##*/} ${node:--1} $(cd -P "$device/device" 2>/dev/null && pwd -P)"
  done
done
for name in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES; do
  eval "[ -z \"\${$name+set}\" ] || echo \"@env $name \$$name\""
done
[ -z "$DDLRUN_GPUS" ] || echo "@allotted $DDLRUN_GPUS"
echo ddlrun:end
"""


def parse_sysfs(text: str, host: str) -> Machine:
    """Parse what SCRIPT printed on `host`.

    Packages, NUMA nodes and cores are numbered as hwloc does. CPUs that are off line or outside of the
    cgroup's cpuset do not exist; cores outside of the process's own affinity do, but are not usable.
    GPUs without a driver, or that may not be opened, are left out with a note.
    Raises UnreachableError with the host and the line on broken or short text.
    """
    found: dict[str, str] = {}
    said: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("@"):
            said.append(line.split(" ", 2))
        else:
            path, _, content = line.rpartition(":")  # a PCI address has colons, no content has
            found.setdefault(path, content.strip())
    if "ddlrun" not in found or not any("/topology/" in path for path in found):
        raise UnreachableError(f"host {host}: its cores could not be read (got {text[-60:]!r}); give --machine")
    try:
        cores = _cores(found)
        gpus, nics = attach(cores, _gpus(found, said), _nics(said))
        denied = {words[1] for words in said if words[0] == "@gpu" and words[2] == "no"}
        gpus, notes = granted(gpus, denied, _pairs(said, "@uuid"), _pairs(said, "@env"))
        numbers = next((words[1] for words in said if words[0] == "@allotted"), "")
        if numbers and "@env" not in text:  # else the scheduler, or the user, has said it in the tools' own way
            gpus, more = allotted(gpus, numbers, _pairs(said, "@minor"))
            notes += more
        kib = next((int(size.split()[0]) for path, size in found.items() if "MemTotal" in path), 0)
        memory = installed_memory(kib)
        notes += _memory_note(said, kib)
        nodes = parse_cpu_list(found["node/online"]) if "node/online" in found else {c.numa_node for c in cores}
    except (ValueError, IndexError) as error:
        raise UnreachableError(f"host {host}: /sys reads strangely ({error}); give --machine") from error
    if not any(core.usable for core in cores):
        raise UnreachableError(f"host {host}: no core is usable (affinity and cpuset exclude each other)")
    numa_nodes = tuple(sorted(node for node in nodes if node is not None))
    return Machine(cores, gpus, nics, "sysfs", measured=True, numa_nodes=numa_nodes, memory=memory, notes=notes)


def _memory_note(said: Sequence[Sequence[str]], kib: int) -> tuple[str, ...]:
    """Say how much of the memory a cgroup allows, where that is less than all."""
    limits = [int(words[1]) for words in said if words[0] == "@memory" and words[1].isdecimal()]
    if not kib or not limits or min(limits) >= kib << 10:
        return ()
    return (f"a cgroup allows {min(limits) / (1 << 30):.1f} of {kib / (1 << 20):.0f} GiB of memory",)


def machine_kind(text: str) -> str:
    """Return what hosts that are alike say alike: UUIDs count where GPUs are restricted by them, memory in GiB."""
    if "@env" in text:
        return text
    text = re.sub(r"MemTotal: *(\d+)", lambda size: f"MemTotal:{_gib(int(size[1]))}", text)
    return re.sub(r"(?m)^@uuid.*\n?", "", text)


def _gib(kib: int) -> str:
    """Return what becomes of MemTotal, which differs by some KiB between hosts that are alike."""
    return f"{installed_memory(kib)} {kib / (1 << 20):.0f}"


def _cores(found: Mapping[str, str]) -> tuple[Core, ...]:
    known = {int(path.split("/")[1][3:]) for path in found if path.endswith("/topology/thread_siblings_list")}
    there = parse_cpu_list(found["cpu/online"]) if "cpu/online" in found else frozenset(known)
    for path, content in found.items():
        if path.startswith("cpuset"):
            there &= parse_cpu_list(content)
    allowed = there
    for path, content in found.items():
        if path.endswith(":Cpus_allowed_list"):
            allowed = parse_cpu_list(content) & there
    nodes = {
        int(path.split("/")[1][4:]): pus & there
        for path, content in found.items()
        if path.startswith("node/node") and (pus := parse_cpu_list(content)) & there
    }
    threads = {pu: _siblings(found, pu, "thread", str(pu)) & there | {pu} for pu in there}
    whole = ",".join(map(str, there))
    packages = {_siblings(found, pu, "core", whole) & there | {pu} for pu in there}
    caches = {parse_cpu_list(content) & there for path, content in found.items() if path.endswith("/shared_cpu_list")}
    return number_cores(set(threads.values()), packages, nodes, caches=caches, allowed=allowed)


def _siblings(found: Mapping[str, str], pu: int, kind: str, default: str) -> frozenset[int]:
    return parse_cpu_list(found.get(f"cpu/cpu{pu}/topology/{kind}_siblings_list", default))


def _pairs(said: Sequence[Sequence[str]], kind: str) -> dict[str, str]:
    return {words[1]: words[2].strip() if len(words) > 2 else "" for words in said if words[0] == kind}


def _gpus(found: Mapping[str, str], said: Sequence[Sequence[str]]) -> Iterator[PciDevice]:
    paths = _pairs(said, "@bus")
    for path, content in found.items():
        address, _, name = path.partition("/")
        if name == "class":
            maker, device = (found.get(f"{address}/{name}", "")[2:] for name in ("vendor", "device"))
            vendor = gpu_vendor(maker, device, content[2:])
            if vendor:
                yield PciDevice(vendor, address, _node(found.get(f"{address}/numa_node")), _bus(paths.get(address, "")))


def _nics(said: Sequence[Sequence[str]]) -> Iterator[PciDevice]:
    for words in said:
        if words[0] == "@nic":
            name, node, path = words[2].split(" ", 2)
            yield PciDevice(words[1], name, _node(node), _bus(path))


def _node(text: str | None) -> int | None:
    return int(text) if text and int(text) >= 0 else None


def _bus(path: str) -> tuple[str, ...]:
    return tuple(path.rpartition("/devices/")[2].split("/")) if "/devices/" in path else ()
