"""A machine's /proc and /sys, as the kernel has them, in a folder."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from ddlrun.ranges import render_ranges
from tests.machines.cpu_groups import Cpus
from tests.machines.facts import Device, Facts

_CPU, _NODE = "sys/devices/system/cpu", "sys/devices/system/node"
# Vendor, device and class.
_GPU_IDS = {
    "nvidia": ("0x10de", "0x1db1", "0x030200"),
    "amd": ("0x1002", "0x738c", "0x038000"),
    "intel": ("0x8086", "0x0bd5", "0x038000"),
}
_RDMA_IDS, _NET_IDS = ("0x15b3", "0x1017", "0x020700"), ("0x8086", "0x1521", "0x020000")
_BRIDGE_IDS = ("0x10b5", "0x8725", "0x060400")
_CPUSET = "sys/fs/cgroup"


def write_sysfs(facts: Facts, folder: Path, *, cgroup: Literal[1, 2] = 2) -> Path:
    """Write the machine's tree, for HWLOC_FSROOT or `lscpu --sysroot`; return its root.

    `cgroup` is the version in which a cpuset forbids CPUs. hwloc before 2.2, as in Open MPI 4.1, knows only 1.
    """
    root = folder / facts.name
    files = {f"{root}/{path}": content for path, content in (*_files(facts), *_cpuset_files(facts, cgroup))}
    for parent in {os.path.dirname(path) for path in files}:
        os.makedirs(parent, exist_ok=True)
    for path, content in files.items():  # thousands, for which pathlib takes twice as long
        with open(path, "w") as file:
            file.write(f"{content}\n")
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    for device in facts.devices:
        _write_device(root, facts, device)
    return root


def mask(cpus: Cpus) -> str:
    """Return a set in the kernel's notation of masks.

    >>> mask(frozenset({0, 33}))
    '00000002,00000001'
    """
    bits = sum(1 << cpu for cpu in cpus)
    words = [f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(bits.bit_length(), 1), 32)]
    return ",".join(reversed(words))


def _files(facts: Facts) -> Iterator[tuple[str, str]]:
    yield from _cpu_files(facts)
    yield from _node_files(facts)
    total = sum(facts.memory.values()) << 10
    yield "proc/meminfo", f"MemTotal:       {total} kB\nMemFree:        {total} kB"
    yield "proc/cpuinfo", "\n\n".join(_cpuinfo(facts))
    # A folder has no uname: hwloc reads it here, and books and drawers only on IBM Z.
    yield "proc/hwloc-nofile-info", f"OSName: Linux\nArchitecture: {'s390x' if _has_books(facts) else 'x86_64'}"
    allowed = (f"Cpus_allowed:\t{mask(facts.allowed)}", f"Cpus_allowed_list:\t{render_ranges(facts.allowed)}")
    yield "proc/self/status", "\n".join(("Name:\tcat", *allowed))


def _cpuset_files(facts: Facts, version: int) -> Iterator[tuple[str, str]]:
    kind, ending = ("cgroup rw,cpuset", "") if version == 1 else ("cgroup2 rw", ".effective")
    mounts = f"proc /proc proc rw 0 0\ncgroup /{_CPUSET} {kind} 0 0"
    yield from ((path, mounts) for path in ("proc/mounts", "proc/self/mounts"))
    yield "proc/self/cpuset", "/"
    yield "proc/self/cgroup", "1:cpuset:/" if version == 1 else "0::/"
    if facts.forbidden or facts.forbidden_nodes:
        yield f"{_CPUSET}/cgroup.controllers", "cpuset"
        yield f"{_CPUSET}/cpuset.cpus{ending}", render_ranges(facts.allowed)
        yield f"{_CPUSET}/cpuset.mems{ending}", render_ranges(set(facts.nodes) - facts.forbidden_nodes)


def _cpuinfo(facts: Facts) -> Iterator[str]:
    # AMD's family 21 has modules, whose cores hwloc tells apart.
    kind = "\nvendor_id\t: AuthenticAMD\ncpu family\t: 21\nmodel\t\t: 1" if facts.modules else ""
    for cpu in sorted(facts.online):
        model = next((model for model, cpus in facts.models.items() if cpu in cpus), "-")
        yield f"processor\t: {cpu}\nmodel name\t: {model}{kind}"  # lscpu lists no CPU without a model


def _cpu_files(facts: Facts) -> Iterator[tuple[str, str]]:
    yield f"{_CPU}/online", render_ranges(facts.online)
    yield f"{_CPU}/offline", render_ranges(facts.offline)
    for name in ("possible", "present"):
        yield f"{_CPU}/{name}", render_ranges(facts.cpus)
    yield f"{_CPU}/kernel_max", "2047"
    for cpu in sorted(facts.cpus):
        yield f"{_CPU}/cpu{cpu}/online", str(int(cpu in facts.online))
    yield from _kind_files(facts)
    core_id_of = {cpu: number for number, cpus in enumerate(facts.cores) for cpu in cpus}
    siblings_of = {cpu: cpus for cpus in facts.siblings for cpu in cpus}
    package_of = {cpu: (index, cpus) for index, cpus in facts.packages.items() for cpu in cpus}
    for cpu in sorted(facts.online & core_id_of.keys()):  # an offline CPU has no such files
        package_index, package = package_of.get(cpu, (-1, facts.cpus))
        at = f"{_CPU}/cpu{cpu}/topology"
        yield f"{at}/core_id", str(core_id_of[cpu])
        yield f"{at}/physical_package_id", str(package_index)
        yield from _set_files(f"{at}/thread_siblings", siblings_of[cpu] & facts.online)
        yield from _set_files(f"{at}/core_siblings", package & facts.online)
        for kind, ending, group in _groups(facts, cpu, package):
            yield from _set_files(f"{at}/{kind}_{ending}", group & facts.online)
            yield f"{at}/{kind}_id", str(facts.groups.index(group))
        yield from _cache_files(facts, cpu)


def _kind_files(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the files that tell kinds of cores apart: Intel's list per kind, or a capacity per CPU."""
    for kind, cpus in facts.kinds.items():
        if not kind.isdecimal():
            yield f"sys/devices/cpu_{kind}/cpus", render_ranges(cpus & facts.online)
        else:
            yield from ((f"{_CPU}/cpu{cpu}/cpu_capacity", kind) for cpu in sorted(cpus & facts.online))


def _groups(facts: Facts, cpu: int, package: Cpus) -> Iterator[tuple[str, str, Cpus]]:
    """Yield the groups around a CPU: a cluster inside its package, or IBM Z's book and drawer around it."""
    groups = sorted((cpus for cpus in facts.groups if cpu in cpus), key=len)
    yield from (("cluster", "cpus", group) for group in groups if group < package)
    around = (group for group in groups if group >= package)
    yield from ((kind, "siblings", group) for kind, group in zip(("book", "drawer"), around, strict=False))


def _has_books(facts: Facts) -> bool:
    return any(group > package for group in facts.groups for package in facts.packages.values())


def _set_files(path: str, cpus: Cpus) -> Iterator[tuple[str, str]]:
    """Yield a set's two files: a mask, and a list (`cluster_cpus`, `cluster_cpus_list`)."""
    yield path, mask(cpus)
    yield f"{path}_list", render_ranges(cpus)


def _cache_files(facts: Facts, cpu: int) -> Iterator[tuple[str, str]]:
    for level, caches in facts.caches.items():
        for shared in (cpus for cpus in caches if cpu in cpus):
            at = f"{_CPU}/cpu{cpu}/cache/index{level}"
            values = {"level": level, "type": "Unified", "size": f"{1 << (3 + 2 * level)}K", "coherency_line_size": 64}
            yield from ((f"{at}/{name}", str(value)) for name, value in values.items())
            yield f"{at}/shared_cpu_map", mask(shared & facts.online)
            yield f"{at}/shared_cpu_list", render_ranges(shared & facts.online)


def _node_files(facts: Facts) -> Iterator[tuple[str, str]]:
    online = {index for index, cpus in facts.nodes.items() if cpus & facts.online or not cpus}
    if not facts.nodes:
        return
    for name in ("online", "possible", "has_memory", "has_normal_memory"):
        yield f"{_NODE}/{name}", render_ranges(online)
    for place, (index, cpus) in enumerate(facts.nodes.items()):
        if index not in online:
            continue
        at, kib = f"{_NODE}/node{index}", facts.memory.get(index, 0) << 10
        yield f"{at}/cpumap", mask(cpus & facts.online)
        yield f"{at}/cpulist", render_ranges(cpus & facts.online)
        yield f"{at}/meminfo", f"Node {index} MemTotal:       {kib} kB\nNode {index} MemFree:        {kib} kB"
        row = zip(facts.nodes, distances(facts, place), strict=True)
        yield f"{at}/distance", " ".join(str(distance) for other, distance in row if other in online)


def distances(facts: Facts, place: int) -> Sequence[int]:
    """Return the distances of a node; 10 and 20 where they are not described."""
    if facts.distances:
        return facts.distances[place]
    return [10 if other == place else 20 for other in range(len(facts.nodes))]


def _write_device(root: Path, facts: Facts, device: Device) -> None:
    folder = root / "sys/devices" / device.path[0]
    for depth, address in enumerate(device.path[1:], 1):
        folder = folder / address
        leaf = depth == len(device.path) - 1
        ids = _ids(device) if leaf else _BRIDGE_IDS
        if not folder.exists():
            _write_pci(folder, facts, device, ids)
            _link(root / "sys/bus/pci/devices" / address, folder)
    for kind, names in (("net", device.nets), ("infiniband", [device.rdma] if device.rdma else [])):
        for name in names:
            _write_os_device(root, folder, kind, name)


def _ids(device: Device) -> tuple[str, str, str]:
    if device.gpu:
        return _GPU_IDS[device.gpu]
    return _RDMA_IDS if device.rdma else _NET_IDS


def _write_pci(folder: Path, facts: Facts, device: Device, ids: tuple[str, str, str]) -> None:
    folder.mkdir(parents=True)
    near = device.near & facts.online
    files = {
        "vendor": ids[0], "device": ids[1], "class": ids[2], "numa_node": str(node_near(facts, device.near)),
        "local_cpus": mask(near), "local_cpulist": render_ranges(near),
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")
    (folder / "config").write_bytes(_config(folder, device, ids))


def node_near(facts: Facts, near: Cpus) -> int:
    """Return the NUMA node that has a device, as the kernel knows it; -1 if several could."""
    around = [index for index, cpus in facts.nodes.items() if cpus and near <= cpus]
    return around[0] if around and (len(facts.nodes) == 1 or near != facts.cpus) else -1


def _config(folder: Path, device: Device, ids: tuple[str, str, str]) -> bytes:
    """Return the beginning of the configuration space; a bridge's has the numbers of the buses behind it."""
    config = bytearray(64)
    config[0:2], config[2:4] = (int(text, 16).to_bytes(2, "little") for text in ids[:2])
    config[9:12] = int(ids[2], 16).to_bytes(3, "little")
    if ids is _BRIDGE_IDS:
        behind = device.path[device.path.index(folder.name) + 1 :]
        buses = [int(address.split(":")[1], 16) for address in behind]
        config[0x0E] = 1
        config[0x18:0x1B] = bytes([int(folder.name.split(":")[1], 16), buses[0], max(buses)])
    return bytes(config)


def _write_os_device(root: Path, folder: Path, kind: str, name: str) -> None:
    at = folder / kind / name
    at.mkdir(parents=True)
    (at / "device").symlink_to("../..")
    (at / "address").write_text("00:00:00:00:00:01\n")
    (at / "operstate").write_text("up\n")
    (at / "ports/1").mkdir(parents=True)
    (at / "ports/1/state").write_text("4: ACTIVE\n")
    _link(root / "sys/class" / kind / name, at)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
