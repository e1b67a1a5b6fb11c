"""The table (`lscpu -p`) and the summary (`lscpu`, `lscpu -J`) of a machine."""

import json
from collections.abc import Iterable, Iterator

from ddlrun.ranges import render_ranges
from tests.machines.cpu_groups import Cpus
from tests.machines.facts import Facts


def render_table(facts: Facts) -> str:
    """Return the output of `lscpu -p=CPU,CORE,SOCKET,NODE,ONLINE`: sockets and cores count from 0."""
    kinds = facts.models.values() or (facts.cpus,)  # lscpu numbers the cores of each kind from 0
    cores = {cpu: number for kind in kinds for cpu, number in _numbers(facts.siblings, facts.online & kind).items()}
    sockets = _numbers(facts.packages.values(), facts.online)
    nodes = {cpu: node for node, cpus in sorted(facts.nodes.items(), reverse=True) for cpu in cpus}
    rows = (
        f"{cpu},{cores.get(cpu, '')},{sockets.get(cpu, '')},{nodes.get(cpu, '')},Y\n" for cpu in sorted(facts.online)
    )
    return "# CPU,Core,Socket,Node,Online\n" + "".join(rows)


def render_summary(facts: Facts) -> str:
    """Return the output of `lscpu`, with the fields that describe cores, sockets and nodes."""
    return "".join(f"{f'{key}:':<24}{value}\n" for key, value in fields(facts))


def render_json(facts: Facts) -> str:
    """Return the output of `lscpu -J`."""
    return json.dumps({"lscpu": [{"field": f"{key}:", "data": value} for key, value in fields(facts)]}, indent=3)


def fields(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the summary's fields and values in order."""
    yield "CPU(s)", str(len(facts.cpus))
    yield "On-line CPU(s) list", render_ranges(facts.online)
    if facts.offline:
        yield "Off-line CPU(s) list", render_ranges(facts.offline)
    for model, cpus in (facts.models or {"-": facts.cpus}).items():
        yield "Model name", model
        yield from ((key, str(facts.lscpu.get(key, count))) for key, count in _counts(facts, cpus & facts.online))
        yield from ((key, str(count)) for key, count in facts.lscpu.items() if not key.startswith("Core"))
    if facts.nodes:
        yield "NUMA node(s)", str(len(facts.nodes))
    yield from ((f"NUMA node{node} CPU(s)", render_ranges(cpus & facts.online)) for node, cpus in facts.nodes.items())


def _counts(facts: Facts, cpus: Cpus) -> Iterator[tuple[str, int]]:
    """Yield what lscpu counts among the online CPUs of one kind; the cores of a socket are an average."""
    cores = [core & cpus for core in facts.siblings if core & cpus]
    sockets = sum(bool(package & cpus) for package in facts.packages.values())
    yield "Thread(s) per core", max(map(len, cores), default=1)
    yield "Core(s) per socket", len(cores) // max(sockets, 1)
    if not any(key.startswith("Socket") for key in facts.lscpu):
        yield "Socket(s)", sockets


def _numbers(groups: Iterable[Cpus], online: Cpus) -> dict[int, int]:
    """Return the number of each CPU's group, in the order of their first online CPUs."""
    present = sorted((group & online for group in groups if group & online), key=min)
    return {cpu: number for number, group in enumerate(present) for cpu in group}
