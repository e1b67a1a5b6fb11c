"""What `numactl -H` prints -> the CPUs of each NUMA node."""

import re
from collections.abc import Mapping
from typing import NoReturn

from ddlrun.errors import UnreachableError
from ddlrun.machine.cpus import parse_cpu_list


def parse_numactl(text: str, host: str) -> Mapping[int, frozenset[int]]:
    """Parse `numactl -H`, also with --cpu-compress: node -> its CPUs, none for a node of memory alone.

    Long lists go on over several lines. Raises UnreachableError with the line where nodes are missing or
    listed without CPUs, as numactl before 2.0 did.
    """
    told: frozenset[int] | None = None
    nodes: dict[int, list[str]] = {}
    sized: set[int] = set()
    current: list[str] | None = None
    number = 0
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"available: *(\d+) nodes? \(([\d,-]+)\)", line)
        node = re.match(r"node (\d{1,6}) (cpus|size|free):(.*)", line)
        if head:
            told = _list(head[2], host, number)
            if len(told) != int(head[1]):
                _fail(host, number, "the number of nodes and their list differ", line)
        elif node and node[2] == "cpus":
            if int(node[1]) in nodes:
                _fail(host, number, "a node stands there twice", line)
            current = nodes[int(node[1])] = node[3].split()
        elif node:
            current = None
            sized |= {int(node[1])} if node[2] == "size" else set()
        elif line.startswith("node distances"):
            break
        elif current is not None and re.fullmatch(r"[\d ,-]+", line):
            current += line.split()
        elif line.strip():
            _fail(host, number, "not understood", line)
    return _checked(told, nodes, sized, host, number)


def _checked(
    told: frozenset[int] | None, nodes: Mapping[int, list[str]], sized: set[int], host: str, last: int
) -> Mapping[int, frozenset[int]]:
    if told is None:
        _fail(host, last, "no line says which nodes are available", "")
    if not nodes:
        _fail(host, last, "this old numactl lists no CPUs", "", "lscpu -p")
    if set(nodes) != told or sized != told:
        _fail(host, last, "nodes are missing at the end", f"{len(sized & set(nodes))} of {len(told)} are there")
    return {node: frozenset().union(*(_list(word, host, last) for word in words)) for node, words in nodes.items()}


def _list(text: str, host: str, number: int) -> frozenset[int]:
    try:
        return parse_cpu_list(text)
    except ValueError as error:
        _fail(host, number, str(error), text)


def _fail(host: str, line: int, what: str, text: str, remedy: str = "") -> NoReturn:
    advice = f"; try {remedy} there" if remedy else "; run it again, or give --machine"
    raise UnreachableError(f"host {host}: numactl -H, line {line}: {what} ({text[:60]!r}){advice}")
