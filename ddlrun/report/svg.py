"""Placement as an SVG picture: machines as boxes, one occupancy for hosts that are alike."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddlrun.hosts import fold
from ddlrun.machine import Core, Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement
from ddlrun.mapping.placement import Placement
from ddlrun.report.boxes import ROW, MachineBoxes, PackageBox, boxes_of, gpu_label, nic_label, sign

# Pixels.
_CELL, _GAP, _TEXT = 14, 3, 13
_STEP = _CELL + _GAP
# One colour per local rank, from the palette of Okabe and Ito for colour-blind readers, with a readable text colour.
COLOURS = {
    "#56b4e9": "#000000", "#e69f00": "#000000", "#009e73": "#000000", "#f0e442": "#000000",
    "#cc79a7": "#000000", "#0072b2": "#ffffff", "#d55e00": "#000000",
}  # fmt: skip
_COLOURS = tuple(COLOURS)
_FREE, _UNUSABLE = "#e6e6e6", "#ffffff"


@dataclass(frozen=True, slots=True)
class _Part:
    """Elements of SVG, and the size that they take, in pixels."""

    elements: list[str]
    width: float
    height: float


def render_svg(placement: Placement) -> str:
    """Draw the local ranks on their cores as one SVG picture, machines one below the other."""
    elements: list[str] = []
    top, width = 0.0, 0.0
    for indexes, machine, local_ranks in placement.groups():
        names = fold(placement.hosts.names[index] for index in indexes)
        title = f"{names}: {machine} ({machine.source})"
        drawn = _machine(machine, local_ranks, top + 30)
        elements += ["<g>", _text(10, top + 20, title, bold=True), *drawn.elements, "</g>"]
        top += 30 + drawn.height + 20
        width = max(width, drawn.width, 10.0 + 8 * len(title))
    label = 'role="img" aria-label="Packages, cores and devices of each host, and the local ranks on them"'
    extent = f'width="{width:.0f}" height="{top:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {label} {extent} font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *elements, "</svg>", ""])


def _machine(machine: Machine, local_ranks: Sequence[LocalRankPlacement], top: float) -> _Part:
    boxes = boxes_of(machine, local_ranks)
    elements: list[str] = []
    left, height = 10.0, 0.0
    for box in boxes.packages:
        drawn = _box(box, boxes, left, top)
        elements += drawn.elements
        left += drawn.width + 10
        height = max(height, drawn.height)
    loose = [*(gpu_label(gpu, local_ranks) for gpu in boxes.gpus), *map(nic_label, boxes.nics)]
    if loose:
        height += 20
        elements.append(_text(10, top + height - 4, "package not known: " + ", ".join(loose)))
    return _Part(elements, left, height)


def _box(box: PackageBox, boxes: MachineBoxes, left: float, top: float) -> _Part:
    elements: list[str] = []
    y = top + 24.0
    columns = min(ROW // 2, max((len(cores) for _, cores in box.nodes), default=0))
    for node, cores in box.nodes:
        if box.labelled and node is not None:
            elements.append(_text(left + 8, y + 10, f"NUMA {node}"))
            y += 16
        for place, core in enumerate(cores):
            x = left + 8 + place % columns * _STEP
            elements.append(_core(core, boxes.owners, x, y + place // columns * _STEP))
        y += -(-len(cores) // columns) * _STEP + 4
    for label, colour in _devices(box, boxes.local_ranks):
        elements.append(f'<rect x="{left + 8:.0f}" y="{y:.0f}" width="10" height="10" fill="{colour}" stroke="#555"/>')
        elements.append(_text(left + 24, y + 10, label))
        y += 17
    width, height = max(columns * _STEP + 14.0, 150.0), y - top + 4
    extent = f'x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}"'
    frame = f'<rect {extent} rx="4" fill="none" stroke="#555"/>'
    title = _text(left + 8, top + 16, f"package {box.package}", bold=True)
    return _Part([frame, title, *elements], width, height)


def _devices(box: PackageBox, local_ranks: Sequence[LocalRankPlacement]) -> Iterator[tuple[str, str]]:
    """Yield the label and the colour of each GPU and NIC."""
    for gpu in box.gpus:
        rank = next((placed.local_rank for placed in local_ranks if placed.gpu == gpu), None)
        yield gpu_label(gpu, local_ranks), _FREE if rank is None else _COLOURS[rank % len(_COLOURS)]
    for nic in box.nics:
        yield nic_label(nic), _UNUSABLE


def _core(core: Core, owners: Mapping[int, list[int]], x: float, y: float) -> str:
    ranks = owners.get(core.logical_index, [])
    title = f"core {core.logical_index}, CPUs {','.join(str(pu.os_index) for pu in core.pus)}"
    colour = _FREE
    if ranks:
        title += f", local rank {','.join(map(str, ranks))}"
        colour = _COLOURS[ranks[0] % len(_COLOURS)]
    elif not core.usable:
        title += ", not usable"
    if not core.usable:
        colour = _UNUSABLE
    mark = _text(x + _CELL / 2, y + 11, sign(core, owners), ink=COLOURS.get(colour, "#000000"))
    return (
        f'<g><rect x="{x:.0f}" y="{y:.0f}" width="{_CELL}" height="{_CELL}" fill="{colour}" stroke="#999">'
        f"<title>{title}</title></rect>{mark}</g>"
    )


def _text(x: float, y: float, text: str, *, bold: bool = False, ink: str = "") -> str:
    """Render a text; with `ink` the mark of a core, centred at x in that colour."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    weight = ' font-weight="bold"' if bold else ""
    look = f' font-size="10" text-anchor="middle" fill="{ink}"' if ink else f' font-size="{_TEXT - 2}"'
    return f'<text x="{x:.0f}" y="{y:.0f}"{look}{weight}>{escaped}</text>'
