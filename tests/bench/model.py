"""What ddlrun.network.cost predicts, beside what ddlrun.ddl takes, over hosts in network namespaces.

    nice -n -20 python -m tests.bench.model [--json FILE] [--rates 100/50,100/200,50/100] [MODE:XxYxZ | mpi ...]

2 racks x 2 hosts x 2 learners on shaped links, 16 MiB of float32, every way to part 8 learners into three dimensions
that is worth a look; they take turns in one job, and the median of the slowest rank's times is what counts. Nothing of
the model is fitted to them: rates are those that the shapers were told, and what the shapers count is known.

tc counts 1514 bytes for 1448 of data (Ethernet 14, IP 20, TCP 20 with 12 of options), and what comes back: 66 bytes of
acknowledgement for two segments, while as many data go the same way. Each bucket lets pass at once what it holds.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, AllreduceAlgorithm, MessageClass, default_algorithm
from ddlrun.network.cost import CostModel
from ddlrun.network.fabric import Fabric, Link
from ddlrun.network.message_counts import axes_of
from ddlrun.topology import parse_topology
from tests.bench.allreduce import busy, cluster_of, quiet, told
from tests.bench.cells import NIC_BUCKET, UPLINK_BUCKET, Cell
from tests.cluster.cluster import why_not

SHAPES = ("8x1x1", "1x8x1", "2x4x1", "2x1x4", "2x2x2", "4x2x1", "4x1x2")
WIRING = "2x2x2"
RATES = "100/50,100/200,50/100"
MIB = 16
PAYLOAD = 2 * 1448 / (2 * 1514 + 66)


class Row(NamedTuple):
    """One cell: NIC and uplink in Mbit/s, `mode:shape`, predicted and measured seconds, each run's."""

    nic: int
    uplink: int
    name: str
    predicted: float
    runs: tuple[float, ...]

    @property
    def measured(self) -> float:
        return statistics.median(self.runs)

    @property
    def error(self) -> float:
        return self.measured / self.predicted - 1

    @property
    def words(self) -> tuple[str, ...]:
        low, high = min(self.runs), max(self.runs)
        return (
            f"{self.nic}/{self.uplink}", self.name, f"{self.predicted:.3f}", f"{self.measured:.3f}",
            f"{low:.3f}-{high:.3f}", f"{100 * self.error:+.1f} %",
        )  # fmt: skip


def fabric(nic: int, uplink: int) -> Fabric:
    """Return the links of tests.cluster.cluster, which have no delay; a host's memory limits nothing at these rates."""
    at_nic, at_uplink = (
        Link(rate * 1e6 / 8, payload=PAYLOAD, burst=bucket)
        for rate, bucket in ((nic, NIC_BUCKET), (uplink, UPLINK_BUCKET))
    )
    return Fabric((Link(), at_nic, at_uplink, Link()))


def predicted(name: str, nic: int, uplink: int) -> float:
    mode, _, text = name.partition("=")[0].partition(":")
    shape = parse_topology(text or WIRING)
    case = MessageClass(MIB * 2**20, "float32", whole=True, blocking=True)
    way = AllreduceAlgorithm("flat") if mode == "mpi" else default_algorithm(mode, BETWEEN_HOSTS, shape.dims, case)
    return CostModel(axes_of(shape), parse_topology(WIRING), fabric(nic, uplink)).cost(way, case.size).seconds


def measured(nic: int, uplink: int, names: tuple[str, ...], rounds: int) -> Iterator[Row]:
    cell = Cell(f"{nic}/{uplink}", nic=nic, uplink=uplink, mib=(MIB,), names=names, rounds=rounds, budget=1e9)
    with cluster_of(cell) as cluster:
        for message in told(cell, cluster):
            for found in message.get("results", []):
                if not found["right"]:
                    sys.exit(f"{cell.name} {found['algorithm']}: wrong sums")
                name = found["algorithm"]
                yield Row(nic, uplink, name, predicted(name, nic, uplink), tuple(found["seconds"]))


def show(rows: list[Row]) -> None:
    """Print what was found of each network, and of all."""
    for nic, uplink in dict.fromkeys(row[:2] for row in rows):
        here = [row for row in rows if row[:2] == (nic, uplink)]
        chosen, best = min(here, key=lambda row: row.predicted), min(here, key=lambda row: row.measured)
        print(f"{nic}/{uplink}: predicted best {chosen.name}, measured best {best.name}; "
              f"following the prediction costs {100 * (chosen.measured / best.measured - 1):.1f} %")  # fmt: skip
    errors = sorted(100 * abs(row.error) for row in rows)
    print(f"{len(rows)} cells: median error {statistics.median(errors):.1f} %, largest error {errors[-1]:.1f} %")


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append what was measured, a JSON line each")
    parser.add_argument("--read", type=Path, metavar="FILE", help="measure nothing, print what --json has kept")
    parser.add_argument("--rates", default=RATES, help=f"NIC/uplink in Mbit/s, with commas ({RATES})")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine (60)")
    parser.add_argument("names", nargs="*", default=[f"r:{shape}" for shape in SHAPES], help="MODE:XxYxZ[=TUNING]")
    return parser.parse_args()


def kept(file: Path) -> Iterator[Row]:
    """Yield what was measured before, predicted anew."""
    for line in file.read_text().splitlines():
        found = json.loads(line)
        nic, uplink, name = (found[field] for field in ("nic", "uplink", "name"))
        yield Row(nic, uplink, name, predicted(name, nic, uplink), tuple(found["runs"]))


def taken(options: argparse.Namespace) -> Iterator[Row]:
    """Measure; keep and yield each row, and say how busy the cores were."""
    for word in options.rates.split(","):
        nic, uplink = map(int, word.split("/"))
        before = quiet(options.patience)
        for row in measured(nic, uplink, tuple(options.names), options.rounds):
            if options.json is not None:
                with options.json.open("a") as file:
                    file.write(json.dumps(row._asdict()) + "\n")
            yield row
        sys.stderr.write(f"{word}: {100 * before:.0f} % of the cores busy before, {100 * busy(1):.0f} % after\n")


def main() -> None:
    options = asked()
    if why_not() and not options.read:
        sys.exit(why_not())
    print("| NIC/uplink Mbit/s | mode:shape | predicted s | measured s | range of runs | error |")
    print("|---|---|---|---|---|---|")
    rows: list[Row] = []
    for row in kept(options.read) if options.read else taken(options):
        rows.append(row)
        print(f"| {' | '.join(row.words)} |", flush=True)
    print()
    show(rows)


if __name__ == "__main__":
    main()
