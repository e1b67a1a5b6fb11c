"""Placement as a picture for a terminal: machines as boxes, one drawing for hosts that are alike."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddlrun.hosts import fold
from ddlrun.machine import Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement
from ddlrun.mapping.placement import Placement
from ddlrun.report.boxes import MARKS, ROW, MachineBoxes, PackageBox, boxes_of, gpu_label, nic_label, sign

LEGEND = f"one character per core: {MARKS}"


class BoxStyle(NamedTuple):
    """The characters of a box: top and bottom with their corners, sides, and the arrow from a GPU to its rank."""

    top: str = "┌─┐"
    bottom: str = "└─┘"
    side: str = "│"
    arrow: str = "→"


UNICODE = BoxStyle()
ASCII = BoxStyle("+-+", "+-+", "|", "->")


class Canvas(NamedTuple):
    """The columns and the characters for a picture, which is wider only where a box is."""

    width: int = 100
    style: BoxStyle = UNICODE


def render_placement(placement: Placement, canvas: Canvas) -> str:
    """Draw the local ranks on their cores."""
    lines: list[str] = []
    for indexes, machine, local_ranks in placement.groups():
        names = fold(placement.hosts.names[index] for index in indexes)
        lines += [f"{names}: {machine} ({machine.source})", *_machine_lines(machine, local_ranks, canvas)]
    return "".join(f"{line}\n" for line in (*lines, LEGEND))


def draw_machine(machine: Machine, canvas: Canvas) -> list[str]:
    """Return the lines of a drawing of a machine without ranks."""
    return list(_machine_lines(machine, (), canvas))


def _machine_lines(machine: Machine, local_ranks: Sequence[LocalRankPlacement], canvas: Canvas) -> Iterator[str]:
    width, style = canvas.width, canvas.style
    boxes = boxes_of(machine, local_ranks)
    blocks = [list(_box_lines(box, boxes, style)) for box in boxes.packages]
    widest = max(len(block[0]) for block in blocks)
    per_row = max(1, (width - 2) // (widest + 1))
    for start in range(0, len(blocks), per_row):
        row = blocks[start : start + per_row]
        height = max(map(len, row))
        padded = [[*block[:-1], *[_blank(block, style)] * (height - len(block)), block[-1]] for block in row]
        yield from ("  " + " ".join(parts) for parts in zip(*padded, strict=True))
    if boxes.gpus:
        labels = (gpu_label(gpu, local_ranks, style.arrow) for gpu in boxes.gpus)
        yield f"  GPUs whose package is not known: {', '.join(labels)}"
    if boxes.nics:
        yield f"  NICs whose package is not known: {', '.join(map(nic_label, boxes.nics))}"


def _blank(block: Sequence[str], style: BoxStyle) -> str:
    return f"{style.side}{' ' * (len(block[0]) - 2)}{style.side}"


def _box_lines(box: PackageBox, boxes: MachineBoxes, style: BoxStyle) -> Iterator[str]:
    content = list(_content(box, boxes, style.arrow))
    title = f" package {box.package} "
    inner = max(len(title) + 1, *(len(line) + 2 for line in content))
    yield style.top[0] + title.ljust(inner, style.top[1]) + style.top[2]
    for line in content:
        yield f"{style.side} {line.ljust(inner - 2)} {style.side}"
    yield style.bottom[0] + style.bottom[1] * inner + style.bottom[2]


def _content(box: PackageBox, boxes: MachineBoxes, arrow: str) -> Iterator[str]:
    if not box.nodes:
        yield "no cores"
    labels = [f"NUMA {node}" if box.labelled and node is not None else "" for node, _ in box.nodes]
    margin = max(map(len, labels), default=0) + 1 if box.labelled else 0
    for label, (_, cores) in zip(labels, box.nodes, strict=True):
        signs = [sign(core, boxes.owners) for core in cores]
        for start in range(0, len(signs), ROW):
            yield (label if not start else "").ljust(margin) + _grouped(signs[start : start + ROW])
    for gpu in box.gpus:
        node = f" (NUMA {gpu.numa_node})" if box.labelled and len(box.nodes) > 1 and gpu.numa_node is not None else ""
        yield gpu_label(gpu, boxes.local_ranks, arrow) + node
    yield from map(nic_label, box.nics)


def _grouped(signs: Sequence[str]) -> str:
    """Join signs, with a blank between different ones."""
    text = ""
    for before, current in zip(["", *signs], signs, strict=False):
        text += (" " if before and before != current else "") + current
    return text
