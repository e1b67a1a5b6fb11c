"""L3 domains in lscpu's table, and NUMA distances in numactl's output. Texts without them are not errors."""

import re
from collections.abc import Iterator

from ddlrun.machine.locality import Cpus


def lscpu_l3_domains(text: str) -> list[Cpus]:
    r"""Return the CPUs of each L3 domain in a table of `lscpu -p`; none without a column of caches.

    >>> [sorted(domain) for domain in lscpu_l3_domains("# CPU,Core,L3\n0,0,0\n1,1,1\n2,2,1\n")]
    [[0], [1, 2]]
    """
    headers = [line[1:].strip().upper() for line in text.splitlines() if re.match(r"# *CPU,", line)]
    columns = headers[0].split(",") if headers else []
    place = next((place for place, column in enumerate(columns) if column.split(":")[-1] == "L3"), None)
    if place is None:
        return []
    domains: dict[str, set[int]] = {}
    for cells in (line.split(",") for line in text.splitlines() if line[:1].isdigit()):
        domain = cells[place].split(":")[-1].strip() if place < len(cells) else ""
        if domain.isdigit() and cells[0].isdigit():
            domains.setdefault(domain, set()).add(int(cells[0]))
    return [frozenset(cpus) for cpus in domains.values()]


def numactl_distances(text: str) -> dict[int, dict[int, int]]:
    r"""Return the distances in the output of `numactl -H` as a row per node; none if its table is incomplete.

    >>> numactl_distances("node distances:\nnode   0   8\n  0:  10  40\n  8:  40  10\n")
    {0: {0: 10, 8: 40}, 8: {0: 40, 8: 10}}
    """
    _, _, table = text.partition("node distances:\n")
    header = re.match(r"node((?: +\d+)+) *\n", table)
    nodes = list(map(int, header[1].split())) if header else []
    rows = dict(_rows(table))
    if set(rows) != set(nodes) or any(len(row) != len(nodes) for row in rows.values()):
        return {}
    return {node: dict(zip(nodes, rows[node], strict=True)) for node in nodes}


def _rows(table: str) -> Iterator[tuple[int, list[int]]]:
    for match in re.finditer(r"(?m)^ *(\d+):((?: +\d+)+) *$", table):
        yield int(match[1]), list(map(int, match[2].split()))
