"""Trees of /proc and /sys of random machines."""

from collections.abc import Iterator
from pathlib import Path

from ddlrun.ranges import render_ranges
from tests.machines.facts import Facts, parse_facts
from tests.machines.random_descriptions import affinity, describe, dies
from tests.machines.random_shapes import Cgroup, Shape
from tests.machines.render_sysfs import mask, write_sysfs


def facts_of(shape: Shape) -> Facts:
    """Return the facts of a random machine."""
    return parse_facts(describe(shape, "random"), "random")


def write_tree(shape: Shape, folder: Path) -> Path:
    """Write the tree of a random machine; return its root."""
    facts = facts_of(shape)
    root = write_sysfs(facts, folder, cgroup=2 if shape.cgroup is Cgroup.VERSION_2 else 1)
    if shape.cgroup is Cgroup.CPUSET:
        _write_cpuset(root, facts)
    if shape.cpuset != "/" and shape.cgroup is not Cgroup.CPUSET:
        _move_cpuset(root, shape.cpuset)
    if not shape.modules:
        write_core_ids(root, facts)
    if shape.has_dies:
        _write_dies(root, shape, facts)
    if shape.cache_indexes:
        number_caches(root)
    bound = affinity(shape)
    if bound is not None:
        text = f"Name:\tcat\nCpus_allowed:\t{mask(bound)}\nCpus_allowed_list:\t{render_ranges(bound)}\n"
        (root / "proc/self/status").write_text(text)
    for pattern in shape.without:
        for path in root.glob(pattern):
            path.unlink()
    return root


def _write_cpuset(root: Path, facts: Facts) -> None:
    """Write a cpuset that is mounted without a cgroup."""
    at = root / "dev/cpuset"
    at.mkdir(parents=True)
    (at / "cpus").write_text(f"{render_ranges(facts.allowed)}\n")
    (at / "mems").write_text(f"{render_ranges(set(facts.nodes) - facts.forbidden_nodes)}\n")
    for path in ("proc/mounts", "proc/self/mounts"):
        (root / path).write_text("proc /proc proc rw 0 0\nnone /dev/cpuset cpuset rw 0 0\n")


def _move_cpuset(root: Path, path: str) -> None:
    """Put the process into a cpuset below that of the mount."""
    at = root / "sys/fs/cgroup"
    (at / path[1:]).mkdir(parents=True)
    for file in at.glob("cpuset.*"):
        file.rename(at / path[1:] / file.name)
    (root / "proc/self/cpuset").write_text(f"{path}\n")
    cgroup = root / "proc/self/cgroup"
    cgroup.write_text(cgroup.read_text().replace(":/", f":{path}"))


def number_caches(root: Path) -> None:
    """Number the folders of each CPU's caches from 0 on, as kernels do."""
    for cpu in root.glob("sys/devices/system/cpu/cpu*/cache"):
        for number, folder in enumerate(sorted(cpu.iterdir())):
            folder.rename(cpu / f"index{number}")


def _write_dies(root: Path, shape: Shape, facts: Facts) -> None:
    for number, cpus in enumerate(dies(shape)):
        for cpu in cpus & facts.online:
            at = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
            (at / "die_id").write_text(f"{number}\n")
            (at / "die_cpus").write_text(f"{mask(cpus & facts.online)}\n")
            (at / "die_cpus_list").write_text(f"{render_ranges(cpus & facts.online)}\n")


def write_core_ids(root: Path, facts: Facts) -> None:
    """Write the /proc/cpuinfo of an x86 machine, from which hwloc 2.0 takes the cores where CPU 0 is offline."""
    (root / "proc/cpuinfo").write_text("\n\n".join(_cpuinfo(facts)) + "\n")


def _cpuinfo(facts: Facts) -> Iterator[str]:
    """Yield the text of each CPU."""
    package_of = {cpu: index for index, cpus in facts.packages.items() for cpu in cpus}
    core_of = {cpu: index for index, cpus in enumerate(facts.cores) for cpu in cpus}
    for cpu in sorted(facts.online):
        lines = [f"processor\t: {cpu}", "vendor_id\t: GenuineIntel", "model name\t: -"]
        if cpu in package_of:
            lines += [f"physical id\t: {package_of[cpu]}", f"core id\t\t: {core_of[cpu]}"]
        yield "\n".join(lines)
