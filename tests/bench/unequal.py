"""The allreduce on unequal links, over hosts in network namespaces: equal blocks beside blocks sized by the links.

    python -m tests.bench.unequal [options] [CELL ...]

Every figure is a share of the lower bound of `tests.support.schedules.least_seconds` at the shaped rates x 1448/1514
(payload), less the bursts that the shapers let pass. `equal` has blocks of the same size on all hosts, `sized` has
blocks sized by the links, `measured` blocks sized by the rates that ddl measures, `launched` those of a job whose
hostfile names the racks, each over MPI and over TCP; `-torch` is the backend of PyTorch; `mpi` is MPI_Allreduce.
Algorithms take turns in one job; times are medians of the slowest rank's; every sum is checked. The exit code is 1 if a
job fails or a sum is wrong. With --smoke, one run of each algorithm on a small array.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ddlrun.block_sizing import JobLinks
from ddlrun.network.fabric import Fabric, Link
from ddlrun.network.unequal_nics import unequal_cost
from tests.bench.allreduce import PIPES, ROOT, JobFailed, messages
from tests.bench.cells import NIC_BUCKET, PAYLOAD, UPLINK_BUCKET
from tests.bench.options import bench_parser, cannot_run
from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS, launch_line
from tests.support.schedules import least_seconds

RANKS = Path(__file__).parent / "programs" / "unequal_ranks.py"
NAMES = (
    "sized equal measured launched sized-tcp equal-tcp launched-tcp sized-torch equal-torch measured-torch mpi".split()
)
HEADINGS = ("cell", "algorithm", "median s", "range", "bound s", "time / bound", "forecast s", "error", "runs")


class UnequalCell(NamedTuple):
    """Hosts with ranks, NICs and racks of their own; rates in Mbit/s; no uplinks: they are no limit."""

    name: str
    ranks: tuple[int, ...]
    nics: tuple[int, ...]
    racks: tuple[int, ...]
    uplink: int | None = None
    mib: float = 4

    @property
    def links(self) -> JobLinks:
        """The links, in bytes/s of data."""
        per_mbit = 1e6 / 8 * PAYLOAD
        uplinks = (self.uplink * per_mbit,) * len(self.racks) if self.uplink else ()
        return JobLinks(tuple(nic * per_mbit for nic in self.nics), self.racks, uplinks)

    def slowed(self, factor: int, mib: float) -> "UnequalCell":
        """Return the cell with slower links and another size."""
        uplink = self.uplink and self.uplink // factor
        return self._replace(nics=tuple(nic // factor for nic in self.nics), uplink=uplink, mib=mib)

    @property
    def text(self) -> str:
        """The value of DDLRUN_DDL_LINKS."""
        lists: dict[str, list[int]] = {"nics": [*self.nics], "racks": [*self.racks]}
        if self.uplink:
            lists["uplinks"] = [self.uplink] * len(self.racks)
        return ",".join(f"{name}={'+'.join(map(str, values))}" for name, values in lists.items())

    @property
    def bound(self) -> float:
        """The least seconds of any allreduce, less the seconds that the smallest burst saves."""
        return least_seconds(self.links) * self.mib * 2**20 - self._saved

    @property
    def forecast(self) -> float:
        """The seconds that `ddlrun network plan` predicts for an allreduce with blocks sized by the links."""
        links = self.links
        uplink = Link(min(links.uplinks), burst=int(PAYLOAD * UPLINK_BUCKET)) if links.uplinks else Link()
        fabric = Fabric((Link(), Link(max(links.nics), burst=int(PAYLOAD * NIC_BUCKET)), uplink, Link()))
        return unequal_cost(links, fabric, int(self.mib * 2**20)).seconds

    @property
    def pause(self) -> float:
        """The seconds in which the buckets of the shapers fill up, as the bound assumes."""
        uplink = UPLINK_BUCKET / self.uplink if self.uplink else 0
        return 1.2 * 8e-6 * max(NIC_BUCKET / min(self.nics), uplink)

    @property
    def _saved(self) -> float:
        links = self.links
        busiest_is_nic = least_seconds(links) == least_seconds(replace(links, uplinks=()))
        rate = min(links.nics) if busiest_is_nic else min(links.uplinks)
        return PAYLOAD * (NIC_BUCKET if busiest_is_nic else UPLINK_BUCKET) / rate


CELLS = (
    UnequalCell("one-of-four", (2,) * 4, (40, 40, 20, 40), (4,)),
    UnequalCell("one-of-four-in-two-racks", (2,) * 4, (40, 40, 20, 40), (2, 2), uplink=40),
    UnequalCell("one-of-eight", (1,) * 8, (*[40] * 7, 20), (8,)),
    UnequalCell("racks-3-2", (1,) * 5, (40,) * 5, (3, 2), uplink=20),
    UnequalCell("racks-3-2-wide", (1,) * 5, (40,) * 5, (3, 2), uplink=100),
    UnequalCell("ranks-1-2-3", (1, 2, 3), (40,) * 3, (3,)),
    UnequalCell("equal", (2,) * 4, (40,) * 4, (4,)),
)
SMOKE = (UnequalCell("smoke", (1, 1, 1), (1000, 1000, 500), (3,), mib=1 / 16),)


def make_plan(cell: UnequalCell, options: argparse.Namespace) -> dict[str, Any]:
    """Return the plan of the ranks of a cell."""
    runs = {"rounds": options.rounds, "budget": 1e9, "in_a_row": 0, "pause": cell.pause}
    return {**runs, "mib": cell.mib, "links": cell.text, "names": options.names}


def line(cell: UnequalCell, folder: Path, major: int) -> list[str]:
    """Return the launch command of ranks of the version `major` of Open MPI.

    The ranks share cores, and yield them while they wait.
    """
    argv = launch_line(MPIRUNS[major], folder, "--output", "no-tag", "--allow-run-as-root", "--checks", "none")
    racks = [number for number, hosts in enumerate(cell.racks) for _ in range(hosts)]
    hosts = [
        f"h{number} slots={ranks} rack={rack}\n"
        for number, (ranks, rack) in enumerate(zip(cell.ranks, racks, strict=True), 1)
    ]
    (folder / "hosts").write_text("".join(hosts))
    argv += ["--timeout", "1200", "--hostfile", str(folder / "hosts")]
    variables = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_mpi_yield_when_idle": "1", "PYTHONPATH": str(ROOT)}
    variables["XDG_STATE_HOME"] = str(folder)
    argv += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    return [*argv, sys.executable]


def measure(cell: UnequalCell, major: int, program: Path, plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the ranks of a cell, which are `program`; yield the result of each algorithm."""
    nics = {f"h{number}": f"{rate}mbit" for number, rate in enumerate(cell.nics, 1)}
    uplink = f"{cell.uplink}mbit" if cell.uplink else None
    with (
        Cluster(0, 0, uplink=uplink, nics=nics, rack_sizes=cell.racks) as cluster,
        tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as name,
    ):
        folder = Path(name)
        for pipe in PIPES:
            os.mkfifo(folder / pipe)
        with (folder / "out").open("w") as out:
            command = [*line(cell, folder, major), str(program), str(folder), json.dumps(plan)]
            argv = cluster.argv("h1", command)
            job = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            try:
                for message in messages(job, folder, cluster, len(cell.racks)):
                    yield from message.get("results", [])
            finally:
                job.terminate()
                job.wait()
        if job.returncode:
            raise JobFailed(f"{(folder / 'out').read_text()[-3000:]}\n{cell.name}: ended with {job.returncode}")


def row(cell: UnequalCell, result: dict[str, Any]) -> list[str]:
    """Return a row of the table; the forecast is that of sized blocks."""
    seconds = result["seconds"]
    median = statistics.median(seconds)
    forecast = ["", ""]
    if result["algorithm"].startswith("sized"):
        forecast = [f"{cell.forecast:.3f}", f"{100 * (median / cell.forecast - 1):+.1f} %"]
    words = [cell.name, result["algorithm"], f"{median:.3f}", f"{min(seconds):.3f}-{max(seconds):.3f}"]
    words += [f"{cell.bound:.3f}", f"{median / cell.bound:.2f}", *forecast]
    return [*words, f"{len(seconds)}{'' if result['right'] else ' WRONG SUMS'}"]


def cell_parser(description: str | None, names: Sequence[str], cells: Sequence[UnequalCell]) -> argparse.ArgumentParser:
    """Return a parser of the options that benchmarks of cells share."""
    parser = bench_parser(description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the results, one JSON line each")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each (%(default)s)")
    parser.add_argument("--slower", type=int, default=1, metavar="N", help="divide the rates of all links by N (1)")
    parser.add_argument("--mib", type=float, default=4, help="MiB of the array (%(default)g)")
    parser.add_argument("--major", type=int, choices=[4, 5], default=4)
    parser.add_argument("--names", default=",".join(names), help="algorithms (%(default)s)")
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"{', '.join(cell.name for cell in cells)} (all)")
    return parser


def parse_cells(
    parser: argparse.ArgumentParser, cells: Sequence[UnequalCell], smoke: Sequence[UnequalCell]
) -> tuple[argparse.Namespace, Sequence[UnequalCell]]:
    """Return the options and the cells to measure: `smoke` with --smoke. Exits where there are no namespaces."""
    options = parser.parse_args()
    options.names = options.names.split(",")
    if why_not():
        cannot_run(f"{why_not()}: sudo make test-all")
    if options.smoke:
        options.rounds = 1
        return options, smoke
    selected = [cell for cell in cells if cell.name in options.cells or not options.cells]
    return options, [cell.slowed(options.slower, options.mib) for cell in selected]


def main() -> None:
    options, cells = parse_cells(cell_parser(__doc__, NAMES, CELLS), CELLS, SMOKE)
    failed = []
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}", flush=True)
    for cell in cells:
        try:
            for result in measure(cell, options.major, RANKS, make_plan(cell, options)):
                print(f"| {' | '.join(row(cell, result))} |", flush=True)
                failed += [] if result["right"] else [cell.name]
                if options.json is not None:
                    with options.json.open("a") as file:
                        file.write(json.dumps({"cell": cell.name, "bound": cell.bound, **result}) + "\n")
        except JobFailed as error:
            sys.stderr.write(f"{error}\n")
            failed.append(cell.name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
