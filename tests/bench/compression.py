"""Gradients sent whole and compressed: docs/examples/digits_torch.py over hosts in network namespaces.

    python -m tests.bench.compression [options]

The job is 2x2x2 over TCP, without MPI, with --smoke 1x1x2. bfloat16 and int8 are used between hosts (Y and Z);
power-sgd is a hook of DistributedDataParallel over the backend "ddl". The programs take turns. Figures are medians: the
bytes that an uplink carries per step in both directions, the time per step, and the final accuracy on held-out images.
The exit code is 1 if a job fails, or an accuracy is below the goal of the example.
"""

import argparse
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ddlrun.topology import Topology
from tests.bench.options import bench_parser, cannot_run
from tests.cluster.cluster import Cluster, why_not

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "digits_torch.py"
HOOK = "power-sgd"
WIRES = ("float32", "bfloat16", "int8", HOOK)
FULL, SMOKE = Topology((2, 2, 2)), Topology((1, 1, 2))
# Of the example: steps per epoch, and images per step.
STEPS, BATCH = 22, 64
# Wires whose time differs by less are equally fast.
CLOSE = 0.05


class Result(NamedTuple):
    """Of a job: the bytes per step on the busiest uplink, the seconds per step, and the accuracy in percent."""

    nbytes: float
    seconds: float
    accuracy: float


@contextmanager
def started(cluster: Cluster, topology: Topology, wire: str, epochs: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the ranks of a job; end those that are left."""
    per_host, world = topology.ranks_per_host, math.prod(topology.dims)
    common = {
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": per_host, "MASTER_ADDR": cluster.hosts[0].address,
        "MASTER_PORT": 29500, "DDL_OPTIONS": f"-mode r:{topology}", "DDLRUN_RANK_ORDER": "host", "OMP_NUM_THREADS": 1,
        "DDLRUN_DDL_TUNING": f"flat=0,wire={'float32' if wire == HOOK else wire}", "PYTHONPATH": EXAMPLE.parents[2],
    }  # fmt: skip
    ranks = []
    for rank in range(world):
        variables = common | {"RANK": rank, "LOCAL_RANK": rank % per_host}
        argv = ["env", *(f"{name}={value}" for name, value in variables.items())]
        argv += [sys.executable, str(EXAMPLE), "--epochs", str(epochs), *(["--hook", wire] if wire == HOOK else ())]
        argv = cluster.argv(cluster.hosts[rank // per_host].name, argv)
        ranks.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
    try:
        yield ranks
    finally:
        for process in ranks:
            process.terminate()
            process.wait()


def measure(cluster: Cluster, topology: Topology, wire: str, epochs: int) -> Result:
    """Run the example once. Exits if a rank fails."""
    before = [sum(cluster.uplink_bytes(rack)) for rack in range(topology.dims[2])]
    with started(cluster, topology, wire, epochs) as ranks:
        texts = [process.communicate()[0] for process in ranks]
        if any(process.returncode for process in ranks):
            sys.exit(f"{wire}: a rank failed; rank 0 printed: {texts[0]}")
    carried = max(sum(cluster.uplink_bytes(rack)) - before[rack] for rack in range(topology.dims[2]))
    accuracy, speed = re.search(r"accuracy ([\d.]+) %.*, ([\d,]+) images/s", texts[0]).groups()  # type: ignore[union-attr]
    return Result(carried / (STEPS * epochs), BATCH / float(speed.replace(",", "")), float(accuracy))


def show(title: str, results: dict[str, list[Result]]) -> None:
    """Print a table, with float32 as the base of ratios."""
    medians = {wire: Result(*map(statistics.median, zip(*rows, strict=True))) for wire, rows in results.items()}
    base = next(iter(medians.values()))
    print(f"\n{title}\n\n| wire | uplink, KB per step | ms per step | range | first / this | accuracy | pays |")
    print("|---|---|---|---|---|---|---|")
    for wire, (nbytes, seconds, accuracy) in medians.items():
        times = [1000 * row.seconds for row in results[wire]]
        gain = base.seconds / seconds
        pays = "" if medians[wire] is base else "yes" if gain > 1 + CLOSE else "no"
        words = [wire, f"{nbytes / 1000:.1f}", f"{1000 * seconds:.1f}", f"{min(times):.1f}-{max(times):.1f}"]
        print(f"| {' | '.join([*words, f'{gain:.2f}', f'{accuracy:.1f} %', pays])} |", flush=True)


def read_options() -> argparse.Namespace:
    parser = bench_parser(__doc__)
    parser.add_argument("--nics", default="200,4", help="Mbit/s of the hosts' links, one table each (200,4)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--wires", default=",".join(WIRES), help=f"in any order; the first is the base ({','.join(WIRES)})"
    )
    options = parser.parse_args()
    if options.smoke:
        options.nics, options.rounds, options.epochs, options.wires = "200", 1, 20, "float32,int8,power-sgd"
    return options


def main() -> None:
    options = read_options()
    if why_not():
        cannot_run(f"{why_not()}: sudo make test-all")
    topology = SMOKE if options.smoke else FULL
    for nic in options.nics.split(","):
        uplink = int(nic) // 2
        with Cluster(*topology.dims[1:], uplink=f"{uplink}mbit", nic=f"{nic}mbit") as cluster:
            results: dict[str, list[Result]] = {wire: [] for wire in options.wires.split(",")}
            for _ in range(options.rounds):
                for wire, runs in results.items():
                    result = measure(cluster, topology, wire, options.epochs)
                    sys.stderr.write(f"NIC {nic}, {wire}: {result}\n")
                    runs.append(result)
        show(f"NIC {nic}, uplink {uplink} Mbit/s, {options.rounds} runs of {options.epochs} epochs", results)


if __name__ == "__main__":
    main()
