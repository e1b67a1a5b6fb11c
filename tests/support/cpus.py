"""The CPUs of this machine that its tests may use, as the kernel lists them."""

import os
from pathlib import Path

SYSFS = Path("/sys/devices/system")
USABLE = sorted(os.sched_getaffinity(0))


def parse_list(text: str) -> set[int]:
    """Return the numbers of a list such as `0-3,8`."""
    ranges = [part.partition("-") for part in text.split(",") if part.strip()]
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}


def _siblings(cpu: int) -> set[int]:
    return parse_list((SYSFS / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text()) & {*USABLE}


# The usable CPUs of each core that has any.
CORES = sorted({tuple(sorted(_siblings(cpu))) for cpu in USABLE})


def package_of(cpu: int) -> set[int]:
    """Return the usable CPUs of the package that a CPU is in."""
    package = (SYSFS / f"cpu/cpu{cpu}/topology/physical_package_id").read_text()
    return {
        other for other in USABLE if (SYSFS / f"cpu/cpu{other}/topology/physical_package_id").read_text() == package
    }


def node_of(cpu: int) -> set[int]:
    """Return the usable CPUs of the NUMA node that a CPU is in; all where the kernel lists no nodes."""
    nodes = [parse_list(path.read_text()) for path in (SYSFS / "node").glob("node[0-9]*/cpulist")]
    return next((node for node in nodes if cpu in node), {*USABLE}) & {*USABLE}
