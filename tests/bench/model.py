"""Predictions of ddlrun.network.cost beside measurements of ddlrun.ddl, over hosts in network namespaces.

    nice -n -20 python -m tests.bench.model [--json FILE] [--rates 100/50,100/200,50/100] [MODE:XxYxZ | mpi ...]

2 racks x 2 hosts x 2 learners on shaped links, 16 MiB of float32, the decompositions of 8 learners into three
dimensions that differ; they take turns in one job, and the median of the slowest rank's times counts. The model is not
fitted to the measurements: rates and bursts are those of the shapers. With --smoke, one run of one of them on links of
1 and 4 Gbit/s.

tc counts 1514 bytes per 1448 of data (Ethernet 14, IP 20, TCP 20 with 12 of options), and the acknowledgements in the
other direction: 66 bytes per two segments, while as many data travel in that direction.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, AllreduceAlgorithm, MessageClass, default_algorithm
from ddlrun.network.cost import CostModel
from ddlrun.network.fabric import Fabric, Link
from ddlrun.network.message_counts import axes_of
from ddlrun.topology import parse_topology
from tests.bench.allreduce import JobFailed, busy, cluster_of, quiet, run_ranks
from tests.bench.cells import NIC_BUCKET, UPLINK_BUCKET, Cell
from tests.bench.options import bench_parser, cannot_run
from tests.cluster.cluster import why_not

SHAPES = ("8x1x1", "1x8x1", "2x4x1", "2x1x4", "2x2x2", "4x2x1", "4x1x2")
WIRING = "2x2x2"
RATES = "100/50,100/200,50/100"
MIB = 16
PAYLOAD = 2 * 1448 / (2 * 1514 + 66)


class CellResult(NamedTuple):
    """A cell: NIC and uplink in Mbit/s, `mode:shape`, the predicted seconds, and those of each run."""

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
    """Return the links of tests.cluster.cluster, which have no delay; at these rates a host's memory is no limit."""
    at_nic, at_uplink = (
        Link(rate * 1e6 / 8, payload=PAYLOAD, burst=bucket)
        for rate, bucket in ((nic, NIC_BUCKET), (uplink, UPLINK_BUCKET))
    )
    return Fabric((Link(), at_nic, at_uplink, Link()))


def predict(name: str, nic: int, uplink: int) -> float:
    mode, _, text = name.partition("=")[0].partition(":")
    shape = parse_topology(text or WIRING)
    case = MessageClass(MIB * 2**20, "float32", whole=True, blocking=True)
    algorithm = (
        AllreduceAlgorithm("flat") if mode == "mpi" else default_algorithm(mode, BETWEEN_HOSTS, shape.dims, case)
    )
    return CostModel(axes_of(shape), parse_topology(WIRING), fabric(nic, uplink)).cost(algorithm, case.size).seconds


def measure(nic: int, uplink: int, names: tuple[str, ...], rounds: int) -> Iterator[CellResult]:
    cell = Cell(f"{nic}/{uplink}", nic=nic, uplink=uplink, mib=(MIB,), names=names, rounds=rounds, budget=1e9)
    with cluster_of(cell) as cluster:
        for message in run_ranks(cell, cluster):
            for result in message.get("results", []):
                if not result["right"]:
                    sys.exit(f"{cell.name} {result['algorithm']}: wrong sums")
                yield cell_result(nic, uplink, result["algorithm"], result["seconds"])


def cell_result(nic: int, uplink: int, name: str, runs: Sequence[float]) -> CellResult:
    return CellResult(nic=nic, uplink=uplink, name=name, predicted=predict(name, nic, uplink), runs=tuple(runs))


def show(rows: list[CellResult]) -> None:
    """Print the errors of each network, and of all."""
    for nic, uplink in dict.fromkeys(row[:2] for row in rows):
        here = [row for row in rows if row[:2] == (nic, uplink)]
        chosen, best = min(here, key=lambda row: row.predicted), min(here, key=lambda row: row.measured)
        print(f"{nic}/{uplink}: predicted best {chosen.name}, measured best {best.name}; "
              f"following the prediction costs {100 * (chosen.measured / best.measured - 1):.1f} %")  # fmt: skip
    errors = sorted(100 * abs(row.error) for row in rows)
    print(f"{len(rows)} measurements: median error {statistics.median(errors):.1f} %, largest error {errors[-1]:.1f} %")


def read_options() -> argparse.Namespace:
    parser = bench_parser(__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the results, one JSON line each")
    parser.add_argument("--read", type=Path, metavar="FILE", help="print the results of --json FILE, measure nothing")
    parser.add_argument("--rates", default=RATES, help=f"NIC/uplink in Mbit/s, with commas ({RATES})")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine (60)")
    parser.add_argument("names", nargs="*", default=[f"r:{shape}" for shape in SHAPES], help="MODE:XxYxZ[=TUNING]")
    options = parser.parse_args()
    if options.smoke:
        options.rates, options.rounds, options.patience, options.names = "1000/4000", 1, 0, ["r:2x2x2"]
    return options


def read_results(file: Path) -> Iterator[CellResult]:
    """Yield earlier measurements with new predictions."""
    for line in file.read_text().splitlines():
        result = json.loads(line)
        yield cell_result(result["nic"], result["uplink"], result["name"], result["runs"])


def measure_all(options: argparse.Namespace) -> Iterator[CellResult]:
    """Measure; append and yield each row, and print the share of busy cores."""
    for word in options.rates.split(","):
        nic, uplink = map(int, word.split("/"))
        before = quiet(options.patience)
        for row in measure(nic, uplink, tuple(options.names), options.rounds):
            if options.json is not None:
                with options.json.open("a") as file:
                    file.write(json.dumps(row._asdict()) + "\n")
            yield row
        sys.stderr.write(f"{word}: {100 * before:.0f} % of the cores busy before, {100 * busy(1):.0f} % after\n")


def main() -> None:
    options = read_options()
    if why_not() and not options.read:
        cannot_run(f"{why_not()}: sudo make test-all")
    print("| NIC/uplink Mbit/s | mode:topology | predicted s | measured s | range of runs | error |")
    print("|---|---|---|---|---|---|")
    rows: list[CellResult] = []
    try:
        for row in read_results(options.read) if options.read else measure_all(options):
            rows.append(row)
            print(f"| {' | '.join(row.words)} |", flush=True)
    except JobFailed as error:
        sys.exit(str(error))
    print()
    show(rows)


if __name__ == "__main__":
    main()
