"""Training steps of PyTorch over the backend ddl and over gloo, on hosts in network namespaces.

    python -m tests.bench.training [options]

The job is 2x2x2, with --smoke 2x1x2. The programs are DistributedDataParallel (ddp), `fully_shard` (fsdp) and
DistributedDataParallel with ZeroRedundancyOptimizer (zero-1), on a network of four linear layers, so that a step is
mostly communication. The backends take turns in one job; times are medians of the slowest rank's. The exit code is 1 if
the job fails, or the losses of the backends differ.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.options import bench_parser, cannot_run
from tests.cluster.cluster import Cluster, why_not
from tests.conftest import OWN, launch_line

ROOT = Path(__file__).parents[2]
RANKS = Path(__file__).parent / "programs" / "training_ranks.py"
# Sums in another order differ in the last bits of float32.
CLOSE = 1e-4


def run_job(cluster: Cluster, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the results of rank 0, one per program. Exits if the job fails."""
    plan = {"layers": options.layers, "width": options.width, "rounds": options.rounds}
    with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as folder:
        argv = launch_line(OWN, Path(folder), "--output", "no-tag", "--checks", "none", "--timeout", "1200")
        argv += ["--ranks-per-host", "2", "-H", ",".join(host.name for host in cluster.hosts), "--racks", "2"]
        argv += ["--env", f"PYTHONPATH={ROOT}", "--env", "OMP_NUM_THREADS=1"]
        argv = cluster.argv("h1", [*argv, sys.executable, str(RANKS), json.dumps(plan)])
        done = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the job failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def row(result: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    medians = {backend: statistics.median(times) for backend, times in result["seconds"].items()}
    ranges = [f"{medians[name]:.3f} ({min(times):.3f}-{max(times):.3f})" for name, times in result["seconds"].items()]
    losses = result["losses"].values()
    same = all(math.isclose(*pair, rel_tol=CLOSE) for pair in zip(*losses, strict=True))
    return [result["program"], *ranges, f"{medians['gloo'] / medians['ddl']:.2f}", "yes" if same else "NO"]


def read_options() -> argparse.Namespace:
    parser = bench_parser(__doc__)
    parser.add_argument("--nic", type=int, default=200, help="Mbit/s of a host's link; half of it per rack (200)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024, help="inputs and outputs of a layer (1024)")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each (5)")
    options = parser.parse_args()
    if options.smoke:
        options.width, options.rounds = 16, 1
    return options


def main() -> None:
    options = read_options()
    if why_not():
        cannot_run(f"{why_not()}: sudo make test-all")
    with Cluster(1 if options.smoke else 2, 2, nic=f"{options.nic}mbit", uplink=f"{options.nic // 2}mbit") as cluster:
        rows = [row(result) for result in run_job(cluster, options)]
    print("| program | s per step, gloo (range) | s per step, ddl (range) | gloo / ddl | same losses |")
    print("|---|---|---|---|---|")
    for words in rows:
        print(f"| {' | '.join(words)} |")
    if any("NO" in words for words in rows):
        sys.exit("the losses of the backends differ")


if __name__ == "__main__":
    main()
