"""Pictures of a job on hosts: its topology, the cores and GPUs of its ranks, and the two rank orders."""

from pathlib import Path

from ddlrun.machine.preset import parse_machine
from ddlrun.mapping.local_ranks import place_local_ranks
from ddlrun.topology import RankOrder, Topology
from docs.diagrams.drawing import Box, Drawing, Point

TOPOLOGY = Topology((4, 2, 3))
MACHINE = Path(__file__).parents[2] / "configs" / "machines" / "ac922-4gpu.yaml"
CELL = 22


def draw_job() -> Drawing:
    """Draw the ranks of a job on racks and hosts, and the cores and GPUs of one host."""
    drawing = Drawing(
        "A job of topology 4x2x3",
        "Three racks with two hosts each and four ranks per host. On a host, each of the four ranks is bound to ten "
        "cores of the package to which its GPU is attached.",
        720, 396,
    )  # fmt: skip
    drawing.words(Point(14, 24), "Topology 4x2x3:", font="bold")
    drawing.words(Point(160, 24), "X = 4 ranks per host, Y = 2 hosts per rack, Z = 3 racks")
    for rack in range(3):
        left = 14 + rack * 236
        drawing.box(Box(left, 40, 220, 122), style="frame")
        drawing.words(Point(left + 10, 58), f"rack {rack}", font="muted", size=13)
        for host in range(2):
            _draw_host(drawing, Point(left + 8 + host * 104, 66), rack * 2 + host)
    first, panel = Box(22, 66, 100, 88), Box(14, 192, 692, 192)
    for corner, below in ((first.x, panel.x), (first.x + first.width, panel.x + panel.width)):
        drawing.line([Point(corner, first.y + first.height), Point(below, panel.y)], style="line dashed")
    _draw_machine(drawing, panel)
    return drawing


def _draw_host(drawing: Drawing, corner: Point, host: int) -> None:
    """Draw a host with the ranks that it has in host order."""
    drawing.box(Box(*corner, 100, 88))
    drawing.words(Point(corner.x + 50, corner.y + 22), f"n{host + 1}", anchor="middle", font="bold")
    drawing.words(Point(corner.x + 50, corner.y + 44), "ranks", anchor="middle", font="muted", size=12)
    for local_rank in range(4):
        cell = Box(corner.x + 5 + local_rank * (CELL + 1), corner.y + 54, CELL, CELL)
        number = TOPOLOGY.rank(host, local_rank, RankOrder.HOST)
        drawing.box(cell, str(number), style=f"rank rank{local_rank}", font="on", size=12)


def _draw_machine(drawing: Drawing, panel: Box) -> None:
    """Draw the packages of the host n1, with the local rank on each core."""
    machine = parse_machine(MACHINE.read_text(), MACHINE.name)
    owners = {core: place.local_rank for place in place_local_ranks(machine, 4) for core in place.cores}
    drawing.box(panel)
    drawing.words(Point(panel.x + 12, panel.y + 24), "n1:", font="bold")
    meaning = "an IBM AC922. Each digit is a core, and the local rank bound to it"
    drawing.words(Point(panel.x + 46, panel.y + 24), meaning)
    for package in range(2):
        left = panel.x + 12 + package * 338
        drawing.box(Box(left, panel.y + 38, 330, 142), style="frame")
        drawing.words(Point(left + 10, panel.y + 58), f"package {package}", font="muted", size=13)
        cores = [core for core in machine.cores if core.package == package]
        for place, core in enumerate(cores):
            cell = Box(left + 9 + place % 20 * 15.6, panel.y + 70, 15, 24)
            drawing.box(cell, str(owners[core]), style=f"rank rank{owners[core]}", font="on", size=12)
        for gpu in (2 * package, 2 * package + 1):
            box = Box(left + 9 + gpu % 2 * 156, panel.y + 120, 155, 44)
            drawing.line([Point(box.top.x, panel.y + 94), box.top])
            drawing.box(box, f"GPU {gpu}", f"local rank {gpu}", style=f"rank rank{gpu}", font="on", size=13)


def draw_rank_orders() -> Drawing:
    """Draw the numbers of the ranks of a job in host order and in ddl order."""
    drawing = Drawing(
        "Rank numbers of a 4x2x3 job in host order and in ddl order",
        "In host order, ranks 0 to 3 are on the first host, 4 to 7 on the second. In ddl order, ranks 0, 1 and 2 are "
        "on the first host of racks 0, 1 and 2, and rank 3 is on the second host of rack 0.",
        720, 280,
    )  # fmt: skip
    _draw_order(drawing, 62, RankOrder.HOST, "--rank-order host", "rank = (z*Y + y)*X + x")
    _draw_order(drawing, 412, RankOrder.DDL, "--rank-order ddl", "rank = x*Y*Z + y*Z + z")
    for local_rank in range(4):
        drawing.words(Point(54, 121 + local_rank * 36), f"x = {local_rank}", anchor="end", size=13)
        drawing.words(Point(404, 121 + local_rank * 36), f"x = {local_rank}", anchor="end", size=13)
    drawing.words(Point(14, 266), "Blue: ranks 0 to 5.", font="muted", size=13)
    return drawing


def _draw_order(drawing: Drawing, left: float, order: RankOrder, option: str, rule: str) -> None:
    """Draw a table of the ranks: a column per host, a row per local rank."""
    drawing.words(Point(left, 24), option, font="code bold")
    drawing.words(Point(left, 46), rule, font="code", size=13)
    for host in range(TOPOLOGY.hosts):
        at = left + host * 44 + host // 2 * 10
        y, z = TOPOLOGY.host_coords(host)
        if y == 0:
            drawing.words(Point(at + 42, 72), f"rack z = {z}", anchor="middle", font="muted", size=12)
        drawing.words(Point(at + 20, 92), f"y = {y}", anchor="middle", font="muted", size=12)
        for local_rank in range(4):
            rank = TOPOLOGY.rank(host, local_rank, order)
            cell = Box(at, 100 + local_rank * 36, 40, 32)
            drawing.box(cell, str(rank), style="strong" if rank < 6 else "box")
