"""Write the golden rank files anew: `make goldens`. Look at the difference before you commit it."""

from pathlib import Path

from ddlrun.rankfile import render
from ddlrun.topology import RankOrder
from tests.shapes import machine, placement

FOLDER = Path(__file__).parent

# File -> (topology, hosts, machine, order)
GOLDENS: dict[str, tuple[str, list[str], str, RankOrder]] = {
    "4x2x3-minsky-ddl.rf": ("4x2x3", [f"n{i}" for i in range(1, 7)], "minsky", RankOrder.DDL),
    "4x2x3-minsky-host.rf": ("4x2x3", [f"n{i}" for i in range(1, 7)], "minsky", RankOrder.HOST),
    "2x2x2x2-2x22-ddl.rf": ("2x2x2x2", [f"n{i}" for i in range(1, 9)], "2x22", RankOrder.DDL),
    "1x2-4x6.rf": ("1x2", ["a", "b"], "4x6", RankOrder.DDL),
    "3x1-4x6.rf": ("3", ["a"], "4x6", RankOrder.DDL),
    "3x1-8+10.rf": ("3", ["a"], "8+10", RankOrder.DDL),
    "2x1-1x2.rf": ("2", ["10.0.0.1"], "1x2", RankOrder.DDL),
}


def text(name: str) -> str:
    topology, hosts, described, order = GOLDENS[name]
    return "".join(render(placement(topology, hosts, machine(described), order), f"golden {name}"))


if __name__ == "__main__":
    for name in GOLDENS:
        (FOLDER / name).write_text(text(name))
