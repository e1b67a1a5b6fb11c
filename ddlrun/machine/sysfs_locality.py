"""L3 domains, kinds of cores and NUMA distances in the output of the /sys probe."""

import re
from collections.abc import Iterator, Mapping

from ddlrun.machine.cpus import parse_cpu_mask
from ddlrun.machine.locality import Cpus, Locality
from ddlrun.ranges import parse_ranges

# The performance counters of Intel's kinds of cores, from the slowest kind.
_INTEL_KINDS = ("cpu_lowpower", "cpu_atom", "cpu_core")


def read_locality(files: Mapping[str, str]) -> Locality:
    """Return the locality in the files of the probe, by their paths. Raises ValueError for unexpected contents."""
    return Locality(l3_domains=frozenset(_l3_domains(files)), speeds=dict(_speeds(files)), distances=_distances(files))


def _l3_domains(files: Mapping[str, str]) -> Iterator[Cpus]:
    for path, content in files.items():
        if path.endswith("/level") and content == "3":
            cache = path.removesuffix("/level")
            if f"{cache}/shared_cpu_list" in files:
                yield parse_ranges(files[f"{cache}/shared_cpu_list"])
            else:
                yield parse_cpu_mask(files.get(f"{cache}/shared_cpu_map", ""))


def _speeds(files: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Yield each CPU and a number that is larger for a faster kind: its capacity on ARM, the kind on Intel."""
    for path, content in files.items():
        if match := re.fullmatch(r"cpu/cpu(\d+)/cpu_capacity", path):
            yield int(match[1]), int(content)
        elif match := re.fullmatch(r"\.\./(cpu_[a-z]+)/cpus", path):
            yield from ((cpu, _INTEL_KINDS.index(match[1])) for cpu in parse_ranges(content))


def _distances(files: Mapping[str, str]) -> dict[int, dict[int, int]]:
    """Return the rows of distances; a row has a number for each node that is online."""
    rows = {
        int(path.split("/")[1][4:]): [int(word) for word in content.split()]
        for path, content in files.items()
        if path.startswith("node/node") and path.endswith("/distance")
    }
    nodes = sorted(parse_ranges(files["node/online"]) if "node/online" in files else rows)
    return {node: dict(zip(nodes, row, strict=True)) for node, row in rows.items() if len(row) == len(nodes)}
