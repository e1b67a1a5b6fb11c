"""Parser of `numactl -H`: the CPUs of each NUMA node."""

import re
from collections.abc import Mapping
from typing import NoReturn

from ddlrun.errors import HostError
from ddlrun.ranges import parse_ranges

_DISTANCES, _NO_DISTANCES = "node distances:", "No distance information available."


def parse_numactl(text: str, host: str) -> Mapping[int, frozenset[int]]:
    """Return the CPUs of each node in the output of `numactl -H` on `host`; a node of memory alone has none.

    Lists may continue over several lines, and may be those of --cpu-compress: `0-15, 32-47 (32)`. Raises HostError
    with the line where nodes or distances are missing, or nodes have no CPUs, as in numactl before 2.0.
    """
    available: frozenset[int] | None = None
    nodes: dict[int, str] = {}
    sized: set[int] = set()
    current: int | None = None
    number = 0
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"available: *(\d+) nodes? \(([\d,-]+)\)", line)
        node = re.match(r"node (\d{1,6}) (cpus|size|free):(.*)", line)
        if head:
            available = _list(head[2], host, number)
            if len(available) != int(head[1]):
                _fail(host, number, "the number of nodes and their list differ", line)
        elif node and node[2] == "cpus":
            current = int(node[1])
            if current in nodes:
                _fail(host, number, "a node is listed twice", line)
            nodes[current] = node[3]
        elif node:
            current = None
            sized |= {int(node[1])} if node[2] == "size" else set()
        elif line.startswith(_DISTANCES):
            break
        elif current is not None and re.fullmatch(r"[\d ,()-]+", line):
            nodes[current] += f" {line}"
        elif line.strip() and line != _NO_DISTANCES:
            _fail(host, number, "the line is not one of numactl's", line)
    _check_complete(available, nodes, sized, host, number)
    _check_end(text, len(nodes), host)
    return {node: _node_cpus(cpus, host, number) for node, cpus in nodes.items()}


def _node_cpus(text: str, host: str, number: int) -> frozenset[int]:
    """Return a node's CPUs; --cpu-compress prints their number after them."""
    match = re.fullmatch(r"([\d ,-]*)(?:\((\d+)\) *)?", text)
    if not match:
        _fail(host, number, "the CPUs of a node are not a list", text)
    cpus = _list(",".join(match[1].split()), host, number)
    if match[2] and len(cpus) != int(match[2]):
        _fail(host, number, f"a node has {match[2]} CPUs, but the list {len(cpus)}", text)
    return cpus


def _check_complete(
    available: frozenset[int] | None, nodes: Mapping[int, str], sized: set[int], host: str, number: int
) -> None:
    if available is None:
        _fail(host, number, "no line lists the available nodes", "")
    if not nodes:
        _fail(host, number, "this old numactl lists no CPUs", "", "lscpu -p")
    if set(nodes) != available or sized != available:
        complete = f"{len(sized & set(nodes))} of {len(available)} are complete"
        _fail(host, number, "nodes are missing at the end", complete)


def _check_end(text: str, nodes: int, host: str) -> None:
    """Raise HostError unless the text ends with a row of distances per node, or says that there are none."""
    rows = re.findall(r"^ *\d+:((?: +\d+)+) *\n", text, re.MULTILINE)
    lengths = [len(row.split()) for row in rows]
    if lengths != [nodes] * nodes and f"{_NO_DISTANCES}\n" not in text:
        lines = text.splitlines()
        _fail(host, len(lines), "distances are missing at the end", lines[-1])


def _list(text: str, host: str, number: int) -> frozenset[int]:
    try:
        return parse_ranges(text)
    except ValueError as error:
        _fail(host, number, str(error), text)


def _fail(host: str, line: int, problem: str, text: str, tool: str = "") -> NoReturn:
    remedy = f"try {tool} there" if tool else "run it again, or give `--machine`"
    raise HostError(host, f"numactl -H, line {line}: {problem} ({text[:60]!r}); {remedy}")
