"""What ddlrun.network.cost predicts, beside what ddlrun.ddl takes, over hosts in network namespaces.

    nice -n -20 python -m tests.bench.model [--json FILE] [--rates 200/100,200/400,100/200] [MODE:XxYxZ ...]

2 racks x 2 hosts x 2 learners on shaped links, 16 MiB of float32, every way to part 8 learners into three dimensions
that is worth a look; they take turns in one job, and the median of the slowest rank's times is what counts. Nothing of
the model is fitted to them: rates are those that the shapers were told, and what the shapers count is known.

tc counts 1514 bytes for 1448 of data (Ethernet 14, IP 20, TCP 20 with 12 of options), and what comes back: 66 bytes of
acknowledgement for two segments, while as many data go the same way. Each bucket lets pass at once what it holds.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ddlrun.network.cost import Model, axes_of
from ddlrun.network.fabric import Fabric, Link
from ddlrun.topology import parse_topology
from ddlrun.ways import BETWEEN_HOSTS, Case, Way, usual_way
from tests.bench.allreduce import busy, cluster_of, quiet, told
from tests.bench.cells import NIC_BUCKET, UPLINK_BUCKET, Cell
from tests.hosts.cluster import why_not

SHAPES = ("8x1x1", "1x8x1", "2x4x1", "2x1x4", "2x2x2", "4x2x1", "4x1x2")
RATES = "200/100,200/400,100/200"
MIB = 16
PAYLOAD = 2 * 1448 / (2 * 1514 + 66)
# A message between two Python processes that share a core with others: measured by a ping-pong, 64 bytes.
LATENCY = 60e-6


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
    """Return the links of tests.hosts.cluster; memory limits nothing at these rates."""
    links = (Link(latency=LATENCY), *(
        Link(rate * 1e6 / 8, LATENCY, PAYLOAD, burst=bucket)
        for rate, bucket in ((nic, NIC_BUCKET), (uplink, UPLINK_BUCKET))
    ), Link())  # fmt: skip
    return Fabric(links)


def predicted(name: str, nic: int, uplink: int) -> float:
    mode, _, text = name.partition("=")[0].partition(":")
    shape = parse_topology(text)
    case = Case(MIB * 2**20, "float32", whole=True, blocking=True)
    way = Way("flat") if mode == "mpi" else usual_way(mode, BETWEEN_HOSTS, shape.dims, case)
    return Model(axes_of(shape), parse_topology("2x2x2"), fabric(nic, uplink)).cost(way, case.size).seconds


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
        print(f"{nic}/{uplink}: predicted best {chosen.name}, measured best {best.name}: "
              f"{100 * (chosen.measured / best.measured - 1):.1f} % slower")  # fmt: skip
    errors = sorted(100 * abs(row.error) for row in rows)
    print(f"{len(rows)} cells: error {statistics.median(errors):.1f} % in the middle, {errors[-1]:.1f} % at most")


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append what was measured, a JSON line each")
    parser.add_argument("--rates", default=RATES, help=f"NIC/uplink in Mbit/s, with commas ({RATES})")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine (60)")
    parser.add_argument("names", nargs="*", default=[f"r:{shape}" for shape in SHAPES], help="MODE:XxYxZ[=TUNING]")
    return parser.parse_args()


def main() -> None:
    options = asked()
    if why_not():
        sys.exit(why_not())
    print(
        f"{os.cpu_count()} cores, {platform.release()}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )
    print(
        "\n| NIC/uplink Mbit/s | mode:shape | predicted s | measured s | of runs | error |\n|---|---|---|---|---|---|"
    )
    rows: list[Row] = []
    shares: list[Any] = []
    for word in options.rates.split(","):
        nic, uplink = map(int, word.split("/"))
        shares.append(quiet(options.patience))
        for row in measured(nic, uplink, tuple(options.names), options.rounds):
            rows.append(row)
            print(f"| {' | '.join(row.words)} |", flush=True)
            if options.json is not None:
                with options.json.open("a") as file:
                    file.write(json.dumps(row._asdict() | {"busy": shares[-1]}) + "\n")
        shares.append(busy(1))
    print()
    show(rows)
    print(f"cores busy with other work before and after: {', '.join(f'{100 * share:.0f} %' for share in shares)}")


if __name__ == "__main__":
    main()
