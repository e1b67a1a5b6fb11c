"""The output of `numactl -H` for a machine."""

import textwrap
from collections.abc import Iterator
from typing import Literal

from ddlrun.ranges import render_ranges
from tests.machines.facts import Facts
from tests.machines.render_sysfs import distances


def render_numactl(facts: Facts, *, width: int = 0, style: Literal["listed", "compressed", "old"] = "listed") -> str:
    """Return numactl's report. Lines wrap at `width` if it is not 0.

    `style` is that of the lists of CPUs: each number, ranges as with --cpu-compress, or none as before 2.0.
    """
    lines = (line for node in facts.nodes for line in _node(facts, node, style))
    wrapped = (part for line in lines for part in (textwrap.wrap(line, width) if width else [line]))
    head = f"available: {len(facts.nodes)} nodes ({render_ranges(facts.nodes)})"
    return "\n".join([head, *wrapped, *_distances(facts)]) + "\n"


def _node(facts: Facts, node: int, style: str) -> Iterator[str]:
    cpus = facts.nodes[node] & facts.online
    if style == "listed":
        yield " ".join([f"node {node} cpus:", *map(str, sorted(cpus))])
    elif style == "compressed":
        ranges = render_ranges(cpus).replace(",", ", ")
        yield f"node {node} cpus: {ranges} ({len(cpus)})" if cpus else f"node {node} cpus: (0)"
    for name in ("size", "free"):
        yield f"node {node} {name}: {facts.memory.get(node, 0)} MB"


def _distances(facts: Facts) -> Iterator[str]:
    yield "node distances:"
    yield " ".join(["node", *(f"{node:>3}" for node in facts.nodes)])
    for place, node in enumerate(facts.nodes):
        yield " ".join([f"{node:>3}:", *(f"{distance:>3}" for distance in distances(facts, place))])
