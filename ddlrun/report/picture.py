"""Machines and who sits where, as a picture: for a terminal, and as SVG. One drawing for hosts that are alike."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.hosts import fold
from ddlrun.machine import GPU, NIC, Core, Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement
from ddlrun.mapping.placement import Placement

# A local rank's character; a package's cores stand in rows of at most so many.
SIGNS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
ROW = 32
LEGEND = "a character a core: the local rank on it (0-9a-zA-Z, then +); . nobody, * several, x not usable"


class BoxStyle(NamedTuple):
    """The characters that boxes are drawn with: corners, lines, and what ties a GPU to its rank."""

    top: str = "┌─┐"
    bottom: str = "└─┘"
    side: str = "│"
    tie: str = "→"


ASCII = BoxStyle("+-+", "+-+", "|", "->")


class PackageBox(NamedTuple):
    """A package: its number, its cores by NUMA node (`labelled`: worth naming), and what hangs on it."""

    package: int
    labelled: bool
    nodes: tuple[tuple[int | None, tuple[Core, ...]], ...]
    gpus: tuple[GPU, ...]
    nics: tuple[NIC, ...]


def boxes(machine: Machine) -> tuple[tuple[PackageBox, ...], tuple[GPU, ...], tuple[NIC, ...]]:
    """Return a machine's packages, and the GPUs and NICs of which nobody knows the package."""
    drawn = []
    homes = {core.numa_node for core in machine.cores}
    labelled = len(homes) > 1 and any(core.numa_node not in (None, core.package) for core in machine.cores)
    for package, cores in enumerate(machine.packages):
        nodes: dict[int | None, list[Core]] = {}
        for core in cores:
            nodes.setdefault(core.numa_node, []).append(core)
        gpus = tuple(gpu for gpu in machine.gpus if gpu.package == package)
        nics = tuple(nic for nic in machine.nics or () if nic.package == package)
        drawn.append(
            PackageBox(package, labelled, tuple((node, tuple(inside)) for node, inside in nodes.items()), gpus, nics)
        )
    lost_gpus = tuple(gpu for gpu in machine.gpus if gpu.package is None)
    lost_nics = tuple(nic for nic in machine.nics or () if nic.package is None and machine.measured)
    return tuple(drawn), lost_gpus, lost_nics


def render_placement(placement: Placement, width: int, look: BoxStyle = BoxStyle()) -> str:  # noqa: B008 - a value
    """Draw who sits where, at most `width` columns wide where boxes fit."""
    lines: list[str] = []
    for indexes, machine, seats in placement.groups():
        names = fold(placement.hosts.names[index] for index in indexes)
        lines += [f"{names}: {machine} ({machine.source})", *_machine_lines(machine, seats, width, look)]
    return "".join(f"{line}\n" for line in (*lines, LEGEND))


def render_machine(machine: Machine, width: int, look: BoxStyle = BoxStyle()) -> str:  # noqa: B008 - a value
    """Draw a machine without ranks."""
    return "".join(f"{line}\n" for line in _machine_lines(machine, (), width, look))


def owners(seats: Sequence[LocalRankPlacement]) -> Mapping[int, list[int]]:
    """Return the local ranks on each core (logical index)."""
    found: dict[int, list[int]] = {}
    for seat in seats:
        for core in seat.cores:
            found.setdefault(core.logical_index, []).append(seat.local_rank)
    return found


def _machine_lines(machine: Machine, seats: Sequence[LocalRankPlacement], width: int, look: BoxStyle) -> Iterator[str]:
    drawn, gpus, nics = boxes(machine)
    where = owners(seats)
    blocks = [list(_box_lines(box, where, seats, look)) for box in drawn]
    most = max(len(block[0]) for block in blocks)
    per_row = max(1, (width - 2) // (most + 1))
    for start in range(0, len(blocks), per_row):
        row = blocks[start : start + per_row]
        height = max(map(len, row))
        padded = [[*block[:-1], *[_blank(block, look)] * (height - len(block)), block[-1]] for block in row]
        yield from ("  " + " ".join(parts) for parts in zip(*padded, strict=True))
    if gpus:
        yield f"  GPUs whose package is not known: {', '.join(_gpu(gpu, seats, look) for gpu in gpus)}"
    if nics:
        yield f"  NICs whose package is not known: {', '.join(map(_nic, nics))}"


def _blank(block: Sequence[str], look: BoxStyle) -> str:
    return f"{look.side}{' ' * (len(block[0]) - 2)}{look.side}"


def _box_lines(
    box: PackageBox, where: Mapping[int, list[int]], seats: Sequence[LocalRankPlacement], look: BoxStyle
) -> Iterator[str]:
    content = list(_content(box, where, seats, look))
    title = f" package {box.package} "
    inner = max(len(title) + 1, *(len(line) + 2 for line in content))
    yield look.top[0] + title.ljust(inner, look.top[1]) + look.top[2]
    for line in content:
        yield f"{look.side} {line.ljust(inner - 2)} {look.side}"
    yield look.bottom[0] + look.bottom[1] * inner + look.bottom[2]


def _content(
    box: PackageBox, where: Mapping[int, list[int]], seats: Sequence[LocalRankPlacement], look: BoxStyle
) -> Iterator[str]:
    labels = [f"NUMA {node}" if box.labelled and node is not None else "" for node, _ in box.nodes]
    margin = max(map(len, labels)) + 1 if box.labelled else 0
    for label, (_, cores) in zip(labels, box.nodes, strict=True):
        signs = [_sign(core, where) for core in cores]
        for start in range(0, len(signs), ROW):
            yield (label if not start else "").ljust(margin) + _grouped(signs[start : start + ROW])
    for gpu in box.gpus:
        node = f" (NUMA {gpu.numa_node})" if box.labelled and len(box.nodes) > 1 and gpu.numa_node is not None else ""
        yield _gpu(gpu, seats, look) + node
    yield from map(_nic, box.nics)


def _grouped(signs: Sequence[str]) -> str:
    """Part the signs of different ranks by a blank."""
    text = ""
    for before, sign in zip(["", *signs], signs, strict=False):
        text += (" " if before and before != sign else "") + sign
    return text


def _sign(core: Core, where: Mapping[int, list[int]]) -> str:
    ranks = where.get(core.logical_index, [])
    if not core.usable:
        return "x"
    if len(ranks) > 1:
        return "*"
    return "." if not ranks else SIGNS[ranks[0]] if ranks[0] < len(SIGNS) else "+"


def _gpu(gpu: GPU, seats: Sequence[LocalRankPlacement], look: BoxStyle) -> str:
    ranks = ",".join(str(seat.local_rank) for seat in seats if seat.gpu == gpu)
    return f"GPU {gpu.number}" + (f" {look.tie} {ranks}" if ranks else "")


def _nic(nic: NIC) -> str:
    return f"NIC {nic.name}" + (f" ({nic.rdma})" if nic.rdma not in (None, nic.name) else "")


# SVG: sizes in pixels, one colour a local rank.
_CELL, _GAP, _TEXT = 14, 3, 13
# Okabe and Ito's, told apart by people who see colours otherwise, each with the text colour that stands out on it.
COLOURS = {
    "#56b4e9": "#000000", "#e69f00": "#000000", "#009e73": "#000000", "#f0e442": "#000000",
    "#cc79a7": "#000000", "#0072b2": "#ffffff", "#d55e00": "#000000",
}  # fmt: skip
_COLOURS = tuple(COLOURS)
_GREY, _HATCHED = "#e6e6e6", "#ffffff"


def render_svg(placement: Placement) -> str:
    """Draw who sits where as one SVG picture, a machine below the other."""
    names = placement.hosts.names
    return draw(
        (fold(names[index] for index in indexes), machine, seats) for indexes, machine, seats in placement.groups()
    )


def draw(groups: Iterable[tuple[str, Machine, Sequence[LocalRankPlacement]]]) -> str:
    """Draw hosts that look the same (their names, machine and seats) as one SVG picture.

    What a page may colour anew, or fade, has a class; a core the local ranks on it in `data-local`.
    """
    parts: list[str] = []
    top, width = 0.0, 0.0
    for names, machine, seats in groups:
        title = f"{names}: {machine} ({machine.source})"
        drawn, size = _svg_machine(machine, seats, top + 30)
        parts += ["<g>", _svg_text(10, top + 20, title, bold=True), *drawn, "</g>"]
        top += 30 + size[1] + 20
        width = max(width, size[0], 10.0 + 8 * len(title))
    about = 'role="img" aria-label="Packages, cores and devices of each host, and the local ranks on them"'
    extent = f'width="{width:.0f}" height="{top:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="placement" {about} {extent} font-family="sans-serif">'
    return "\n".join([head, '<rect class="paper" width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def _svg_machine(
    machine: Machine, seats: Sequence[LocalRankPlacement], top: float
) -> tuple[list[str], tuple[float, float]]:
    drawn, gpus, nics = boxes(machine)
    where = owners(seats)
    parts: list[str] = []
    left, height = 10.0, 0.0
    for box in drawn:
        inside, size = _svg_box(box, where, seats, left, top)
        parts += inside
        left += size[0] + 10
        height = max(height, size[1])
    loose = [*(_gpu(gpu, seats, BoxStyle()) for gpu in gpus), *map(_nic, nics)]
    if loose:
        height += 20
        parts.append(_svg_text(10, top + height - 4, "package not known: " + ", ".join(loose)))
    return parts, (left, height)


def _svg_box(
    box: PackageBox, where: Mapping[int, list[int]], seats: Sequence[LocalRankPlacement], left: float, top: float
) -> tuple[list[str], tuple[float, float]]:
    parts: list[str] = []
    step = _CELL + _GAP
    y = top + 24.0
    columns = min(ROW // 2, max(len(cores) for _, cores in box.nodes))
    for node, cores in box.nodes:
        if box.labelled and node is not None:
            parts.append(_svg_text(left + 8, y + 10, f"NUMA {node}"))
            y += 16
        for place, core in enumerate(cores):
            parts.append(_svg_core(core, where, left + 8 + place % columns * step, y + place // columns * step))
        y += -(-len(cores) // columns) * step + 4
    for text, colour in _svg_devices(box, seats):
        parts.append(f'<rect x="{left + 8:.0f}" y="{y:.0f}" width="10" height="10" fill="{colour}" stroke="#555"/>')
        parts.append(_svg_text(left + 24, y + 10, text))
        y += 17
    width = max(columns * step + 14.0, 150.0)
    at = f'x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{y - top + 4:.0f}"'
    frame = f'<rect class="frame" {at} rx="4" fill="none" stroke="#555"/>'
    title = _svg_text(left + 8, top + 16, f"package {box.package}", bold=True)
    return [frame, title, *parts], (width, y - top + 4)


def _svg_devices(box: PackageBox, seats: Sequence[LocalRankPlacement]) -> Iterator[tuple[str, str]]:
    for gpu in box.gpus:
        rank = next((seat.local_rank for seat in seats if seat.gpu == gpu), None)
        yield _gpu(gpu, seats, BoxStyle()), _GREY if rank is None else _COLOURS[rank % len(_COLOURS)]
    for nic in box.nics:
        yield _nic(nic), _HATCHED


def _svg_core(core: Core, where: Mapping[int, list[int]], x: float, y: float) -> str:
    ranks = where.get(core.logical_index, [])
    colour = _COLOURS[ranks[0] % len(_COLOURS)] if ranks and core.usable else _GREY if core.usable else _HATCHED
    said = f"core {core.logical_index}, CPUs {','.join(str(pu.os_index) for pu in core.pus)}"
    said += f", local rank {','.join(map(str, ranks))}" if ranks else "" if core.usable else ", not usable"
    sign = _svg_text(x + _CELL / 2, y + 11, _sign(core, where), ink=COLOURS.get(colour, "#000000"))
    return (
        f'<g class="core" data-local="{" ".join(map(str, ranks))}">'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_CELL}" height="{_CELL}" fill="{colour}" stroke="#999">'
        f"<title>{said}</title></rect>{sign}</g>"
    )


def _svg_text(x: float, y: float, text: str, *, bold: bool = False, ink: str = "") -> str:
    """Write a text; with `ink` the sign of a core, in the middle of x and of that colour."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    weight = ' font-weight="bold"' if bold else ""
    look = f' font-size="10" text-anchor="middle" fill="{ink}"' if ink else f' class="word" font-size="{_TEXT - 2}"'
    return f'<text x="{x:.0f}" y="{y:.0f}"{look}{weight}>{escaped}</text>'
