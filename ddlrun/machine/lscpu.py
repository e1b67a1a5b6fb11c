"""Parsers of lscpu: the table (`lscpu -p`) and the summary (`lscpu -J`)."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import NoReturn

from ddlrun.errors import HostError
from ddlrun.machine import PU, Core, Machine
from ddlrun.machine.cpus import MOST_PUS
from ddlrun.machine.numbering import CpuSets, number_cores
from ddlrun.ranges import parse_ranges, render_ranges


def parse_lscpu(text: str, host: str) -> Machine:
    """Parse the output of `lscpu -p=CPU,CORE,SOCKET,NODE,ONLINE` on `host`; its header names the columns.

    Offline CPUs are left out. If no CPU has a socket, the machine is not `packaged`. A list that is cut off
    between two lines looks like that of a smaller machine: compare its CPUs with `parse_online_cpus`. Raises
    HostError with the line.
    """
    header: list[str] = []
    rows: list[tuple[int, dict[str, int | None]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            names = line[1:].strip().upper().split(",")
            header = names if names[0] == "CPU" else header
        elif line.strip():
            row = _row(line, header, host, number)
            if row is not None:
                rows.append((number, row))
    if not rows or not text.endswith("\n"):
        _fail(host, len(text.splitlines()), "it is cut off", text[-40:])
    return _machine(rows, host)


def _row(line: str, header: list[str], host: str, number: int) -> dict[str, int | None] | None:
    """Return a CPU's columns, None for an offline CPU."""
    cells = line.strip().split(",")
    if "CPU" not in header or "CORE" not in header:
        _fail(host, number, "no header with CPU and Core is above it", line)
    if len(cells) < len(header):
        _fail(host, number, f"{len(header)} columns are expected", line)
    row: dict[str, int | None] = {}
    for name, cell in zip(header, cells, strict=False):
        if name == "ONLINE":
            if cell not in ("Y", "N", "yes", "no"):
                _fail(host, number, "ONLINE is neither Y nor N", line)
            if cell in ("N", "no"):
                return None
        elif name in ("CPU", "CORE", "SOCKET", "NODE"):
            if not re.fullmatch(r"[0-9]{0,6}", cell):
                _fail(host, number, f"{name} is not a number", line)
            row[name] = int(cell) if cell else None
    if row["CPU"] is None or row["CPU"] >= MOST_PUS:
        _fail(host, number, "CPU is not a number", line)
    return row


def _machine(rows: list[tuple[int, dict[str, int | None]]], host: str) -> Machine:
    cores: dict[tuple[int | None, int | None, int | None], set[int]] = {}
    packages: dict[int | None, set[int]] = {}
    nodes: dict[int, set[int]] = {}
    cpus: set[int] = set()
    for number, row in rows:
        cpu = row["CPU"] or 0
        if cpu in cpus:
            _fail(host, number, "a CPU is listed twice", str(cpu))
        cpus.add(cpu)
        socket, core, node = row.get("SOCKET"), row["CORE"], row.get("NODE")
        # A CPU without a core is a core of its own.
        cores.setdefault((socket, core, cpu if core is None else None), set()).add(cpu)
        packages.setdefault(socket, set()).add(cpu)
        if node is not None:
            nodes.setdefault(node, set()).add(cpu)
    if None in packages and len(packages) > 1:
        _fail(host, rows[-1][0], "some CPUs have a socket, others have none", render_ranges(packages[None]))
    try:
        sets = CpuSets(
            cores=list(map(frozenset, cores.values())),
            packages=list(map(frozenset, packages.values())),
            nodes={node: frozenset(inside) for node, inside in nodes.items()},
        )
        numbered = number_cores(sets).cores
    except ValueError as error:
        _fail(host, rows[-1][0], str(error), f"{len(rows)} CPUs")
    return Machine(
        numbered, (), None, "lscpu", measured=True, numa_nodes=tuple(sorted(nodes)), packaged=None not in packages
    )


def parse_lscpu_summary(text: str, host: str) -> Machine:
    """Parse the output of `lscpu -J` or plain `lscpu`: counts, without the core that each CPU belongs to.

    The machine's OS indexes are invented (not `measured`). Raises HostError where the product of the counts is
    not the number of online CPUs: offline threads, cores of several kinds, virtual machines.
    """
    fields = _fields(text, host)
    online = _cpus(fields, _ONLINE, host)
    threads, cores, packages = (_count(fields, names, host) for names in _COUNTS)
    groups = 1
    for name in ("Book(s) per drawer", "Drawer(s)"):
        groups *= int(fields[name]) if fields.get(name, "").isdigit() else 1
    packages *= groups
    check_one_kind(text, host)
    if threads * cores * packages != len(online):
        product = f"{packages} x {cores} x {threads}"
        _fail(host, 1, f"packages x cores x threads are not the {len(online)} online CPUs", product, "lscpu -p")
    nodes = {int(match[1]): _cpus(fields, key, host) for key in fields if (match := re.fullmatch(_NODE, key))}
    if fields.get(_NODES, str(len(nodes))) != str(len(nodes)):
        _fail(host, 1, f"it has the CPUs of {len(nodes)} NUMA nodes", f"{_NODES}: {fields[_NODES]}")
    sizes = {len(cpus) for cpus in nodes.values() if cpus}
    equal = sum(map(len, nodes.values())) == len(online) and len(sizes) == 1  # else the cores of a node are unknown
    filled = sorted((node for node, cpus in nodes.items() if cpus), key=lambda node: min(nodes[node])) if equal else []
    return Machine(
        tuple(_invented(packages, cores, threads, filled)), (), None, "lscpu -J", measured=False,
        numa_nodes=tuple(sorted(nodes)),
    )  # fmt: skip


def check_one_kind(text: str, host: str) -> None:
    """Raise HostError for a summary of cores of several kinds: lscpu, also its table, numbers each kind from 0."""
    kinds = sum(key.startswith("Model name") for key, _ in _pairs(text, host))
    if kinds > 1:
        _fail(host, 1, "its cores are of several kinds", f"{kinds} model names", "lstopo --of xml")


_COUNTS = (
    ("Thread(s) per core",),
    ("Core(s) per socket", "Core(s) per cluster"),
    ("Socket(s)", "Socket(s) per book", "Cluster(s)", "CPU socket(s)"),
)
_ONLINE = "On-line CPU(s) list"
_NODES = "NUMA node(s)"
_NODE = r"NUMA node(\d{1,6}) CPU\(s\)"


def parse_online_cpus(text: str, host: str) -> frozenset[int]:
    """Return the online CPUs in the output of `lscpu -J` or plain `lscpu`. Raises HostError where it is broken."""
    return _cpus(_fields(text, host), _ONLINE, host)


def lists_nodes(text: str) -> bool:
    """Return True unless NUMA nodes could be cut off the end of `lscpu`; JSON that is cut off is broken."""
    return text.lstrip().startswith("{") or f"\n{_NODES}:" in text


def _invented(packages: int, cores: int, threads: int, nodes: list[int]) -> Iterator[Core]:
    """Yield cores in order, in equal shares per NUMA node if the nodes do not cross packages."""
    total = packages * cores
    share = total // len(nodes) if nodes and total % len(nodes) == 0 else 0
    if share and cores % share and share % cores:
        share = 0  # a node would cross packages
    for number in range(total):
        node = nodes[number // share] if share else None
        pus = tuple(PU(number * threads + thread) for thread in range(threads))
        yield Core(number, number // cores, number % cores, node, pus)


def _fields(text: str, host: str) -> Mapping[str, str]:
    fields: dict[str, str] = {}
    for key, value in _pairs(text, host):
        fields.setdefault(key, value)
    return fields


def _pairs(text: str, host: str) -> list[tuple[str, str]]:
    if not text.lstrip().startswith("{"):
        if not text.endswith("\n"):
            _fail(host, len(text.splitlines()), "it is cut off", text[-40:])
        split = (line.partition(":") for line in text.splitlines())
        return [(key.strip(), value.strip()) for key, colon, value in split if colon]
    try:
        items = json.loads(text)["lscpu"]
        return [(str(item["field"]).rstrip(":"), str(item["data"])) for item in _flat(items)]
    except json.JSONDecodeError as error:
        _fail(host, error.lineno, error.msg, error.doc[error.pos : error.pos + 20], "lscpu -J")
    except (AttributeError, KeyError, TypeError, RecursionError, ValueError) as error:
        _fail(host, 1, "it is not a list of fields", repr(error)[:40], "lscpu -J")


def _flat(items: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    for item in items:
        if item.get("data") is not None:
            yield item
        children = item.get("children", [])
        if not isinstance(children, list):
            raise TypeError("children")
        yield from _flat(children)


def _count(fields: Mapping[str, str], names: tuple[str, ...], host: str) -> int:
    for name in names:
        if re.fullmatch(r"[0-9]{1,5}", fields.get(name, "")) and int(fields[name]):
            return int(fields[name])
    return _fail(host, 1, f"it has no number of {names[0]}", fields.get(names[0], ""), "lscpu -p")


def _cpus(fields: Mapping[str, str], name: str, host: str) -> frozenset[int]:
    if name not in fields:
        _fail(host, 1, "it does not list the online CPUs in English", "", "LC_ALL=C lscpu")
    try:
        return parse_ranges(fields[name])
    except ValueError as error:
        _fail(host, 1, str(error), fields[name])


def _fail(host: str, line: int, problem: str, text: str, tool: str = "") -> NoReturn:
    remedy = f"try {tool} there" if tool else "run it again, or give `--machine`"
    raise HostError(host, f"lscpu, line {line}: {problem} ({text!r}); {remedy}")
