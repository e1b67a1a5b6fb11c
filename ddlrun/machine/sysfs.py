"""What Linux says of a host's cores, GPUs and RDMA devices in /sys and /proc -> Machine.

The text is what `grep -s . FILE...` prints: `path:content`, one line a line of each file.
"""

import re
from collections.abc import Iterable

from ddlrun.errors import UnreachableError
from ddlrun.machine import GPU, PU, Core, Machine

# One POSIX sh script that needs nothing but a shell and grep, and writes nothing. ROOT is empty but
# where the files of another machine lie in a folder.
SCRIPT = r"""
cd "$ROOT/sys/devices/system" || exit 1
grep -s . cpu/online cpu/cpu[0-9]*/topology/core_siblings_list cpu/cpu[0-9]*/topology/thread_siblings_list \
  cpu/cpu[0-9]*/cache/index[2-9]/shared_cpu_list node/node[0-9]*/cpulist /dev/null
grep -s Cpus_allowed_list: "$ROOT/proc/self/status" /dev/null
cgroup=/proc/self/cgroup
[ -z "$ROOT" ] || cgroup=/dev/null
while IFS=: read -r id controllers path; do
  case $id:$controllers in
    0:*) while [ -n "$path" ] && [ ! -e "/sys/fs/cgroup$path/cpuset.cpus.effective" ]; do path=${path%/*}; done
      list=/sys/fs/cgroup$path/cpuset.cpus.effective ;;
    *cpuset*) list=/sys/fs/cgroup/cpuset$path/cpuset.cpus
      [ -e "$list" ] || list=/sys/fs/cgroup/cpuset/cpuset.cpus ;;
    *) continue ;;
  esac
  [ -e "$list" ] && read -r list <"$list" && echo "cpuset$id:$list"
done <"$cgroup"
cd "$ROOT/sys/bus/pci/devices" 2>/dev/null && for gpu in $(grep -lsE '^0x03' */class); do
  grep -s . "${gpu%/class}/vendor" "${gpu%/class}/class" "${gpu%/class}/numa_node" /dev/null
done
for class in infiniband hfi1 cxi; do
  for device in "$ROOT/sys/class/$class"/*; do [ -e "$device" ] && echo "rdma/${device##*/}:1"; done
done
echo ddlrun:end
"""

_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"
_DISPLAY = "0x0300"


def parse_sysfs(text: str, host: str) -> Machine:
    """Parse what SCRIPT printed on `host`.

    Packages, NUMA nodes and cores are numbered as hwloc does: by their first PU, from the outside in.
    CPUs that are off line or outside of the cgroup's cpuset do not exist; cores outside of the
    process's own affinity do, but are not usable. Raises UnreachableError on broken or short text.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        path, _, content = line.rpartition(":")  # a PCI address has colons, no content has
        found.setdefault(path, content.strip())
    if "ddlrun" not in found or not any("/topology/" in path for path in found):
        raise UnreachableError(f"host {host}: its cores could not be read (got {text[-60:]!r}); give --machine")
    try:
        cores = _cores(found)
    except ValueError as error:
        raise UnreachableError(f"host {host}: /sys reads strangely ({error}); give --machine") from error
    if not any(core.usable for core in cores):
        raise UnreachableError(f"host {host}: no core is usable (affinity and cpuset exclude each other)")
    return Machine(cores, _gpus(found, cores), _rdma(found), "sysfs", measured=True)


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse the kernel's list format.

    >>> sorted(parse_cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    pus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        pus.update(range(int(low), int(high or low) + 1))
    return frozenset(pus)


def _cores(found: dict[str, str]) -> tuple[Core, ...]:
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
        if path.startswith("node/") and (pus := parse_cpu_list(content)) & there
    }
    packages = _packages(found, there)
    outer = {pus for pus in (*packages, *nodes.values(), *_caches(found, there)) if pus}
    threads = {pu: _siblings(found, pu) & there | {pu} for pu in there}
    order = sorted({min(pus): pus for pus in threads.values()}.values(), key=lambda pus: _path(pus, outer))
    return tuple(_number(order, packages, nodes, allowed))


def _number(
    order: list[frozenset[int]],
    packages: list[frozenset[int]],
    nodes: dict[int, frozenset[int]],
    allowed: frozenset[int],
) -> Iterable[Core]:
    inside = [0] * len(packages)
    ranked = sorted(packages, key=lambda pus: next(i for i, core in enumerate(order) if core & pus))
    for number, pus in enumerate(order):
        package = next(i for i, group in enumerate(ranked) if pus & group)
        node = next((name for name, group in sorted(nodes.items()) if pus & group), None)
        yield Core(number, package, inside[package], node, tuple(map(PU, sorted(pus))), usable=bool(pus & allowed))
        inside[package] += 1


def _path(pus: frozenset[int], groups: set[frozenset[int]]) -> list[int]:
    """Return the first PU of each group around a core, largest group first: hwloc's depth-first order."""
    around = sorted((-len(group), min(group)) for group in groups if pus <= group)
    return [*(first for _, first in around), min(pus)]


def _packages(found: dict[str, str], there: frozenset[int]) -> list[frozenset[int]]:
    whole = ",".join(map(str, there))
    lists = {found.get(f"cpu/cpu{pu}/topology/core_siblings_list", whole) for pu in there}
    return [pus for content in lists if (pus := parse_cpu_list(content) & there)]


def _siblings(found: dict[str, str], pu: int) -> frozenset[int]:
    return parse_cpu_list(found.get(f"cpu/cpu{pu}/topology/thread_siblings_list", str(pu)))


def _caches(found: dict[str, str], there: frozenset[int]) -> set[frozenset[int]]:
    lists = {content for path, content in found.items() if path.endswith("/shared_cpu_list")}
    return {parse_cpu_list(content) & there for content in lists}


def _gpus(found: dict[str, str], cores: tuple[Core, ...]) -> tuple[GPU, ...]:
    package_of = {core.numa_node: core.package for core in reversed(cores)}
    gpus: list[GPU] = []
    for path in sorted(found):
        address, _, name = path.partition("/")
        if name == "class" and _computes(found.get(f"{address}/vendor", ""), found[path]):
            node = int(found.get(f"{address}/numa_node", "-1"))
            home = node if node in package_of else None
            gpus.append(GPU(len(gpus), package_of.get(node), home, address))
    return tuple(gpus)


def _computes(vendor: str, pci_class: str) -> bool:
    """Tell accelerators from a server's display chip: NVIDIA's and AMD's 3D and compute classes."""
    if vendor == _NVIDIA:
        return True
    return vendor in (_AMD, _INTEL) and not pci_class.startswith(_DISPLAY)


def _rdma(found: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted(match[1] for path in found if (match := re.fullmatch(r"rdma/(.+)", path))))
