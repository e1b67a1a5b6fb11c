"""ddlrun network tune with a budget, beside an exhaustive search, over hosts in network namespaces.

    nice -n -20 python -m tests.bench.tune [--rates 200/100,200/400] [--topology 2x2x2] [--gradient 4MiB] [--budget 40s]

First each combination is measured, then tune searches --searches times. The time of each winner is taken from the
exhaustive search, so that all are judged by the same runs. With --smoke, one search with a rank per host.
"""

import argparse
import json
import os
import sys
from typing import Any

from tests.bench.allreduce import busy, quiet
from tests.bench.options import bench_parser, cannot_run
from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS

HOSTS, RACKS = 2, 2


def tune(cluster: Cluster, *words: str) -> dict[str, Any]:
    """Run ddlrun network tune on all hosts from the first; return its result."""
    hosts = ",".join(f"{host.name}" for host in cluster.hosts)
    argv = [sys.executable, "-m", "ddlrun", "network", "tune", hosts, "--checks", "none", "--allow-run-as-root"]
    argv += ["--no-horovod", "--save", "-", "--json", *words]
    environ = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1"}
    done = cluster.run("h1", argv, env=environ, timeout=3000)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout))


def name_of(row: dict[str, Any]) -> str:
    """Return the settings of a candidate, which identify it."""
    return f"{row['topology']} {row['mode']} {row['tuning']}"


def read_options() -> argparse.Namespace:
    parser = bench_parser(__doc__)
    parser.add_argument("--rates", default="200/100,200/400", help="NIC/uplink in Mbit/s")
    parser.add_argument("--topology", default="2x2x2")
    parser.add_argument("--gradient", default="4MiB")
    parser.add_argument("--budget", default="40s")
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine (60)")
    parser.add_argument("--major", type=int, choices=sorted(MPIRUNS), default=4)
    options = parser.parse_args()
    if options.smoke:
        options.rates, options.topology, options.gradient, options.searches = "1000/1000", "1x2x2", "64KiB", 1
        options.patience, options.budget = 0, "10s"
    return options


def main() -> None:
    """Print a table: for each pair of rates the best of all candidates, and the result of each search."""
    options = read_options()
    if why_not():
        cannot_run(f"{why_not()}: sudo make test-all")
    print(f"cores in use before: {100 * quiet(options.patience):.0f} %")
    for rates in options.rates.split(","):
        nic, uplink = (f"{rate}mbit" for rate in rates.split("/"))
        with Cluster(HOSTS, RACKS, nic=nic, uplink=uplink) as cluster:
            words = ["--topology", options.topology, "--gradient", options.gradient, "--mpirun", MPIRUNS[options.major]]
            everything = tune(cluster, *words, "--exhaustive")
            rows = {name_of(row): row["seconds"] for row in everything["measured"]}
            best = min(rows, key=rows.__getitem__)
            print(f"{rates} Mbit/s, {options.topology}, {options.gradient}: {len(rows)} combinations")
            print(f"  took {everything['seconds']:.0f} s; from {rows[best]:.3f} to {max(rows.values()):.3f} s per step")
            print(f"  {'':8} {'in s':>5} {'tried':>5} {'step, s':>8} {'of the best':>11}  winner")
            print(f"  {'all':8} {'':>5} {len(rows):5} {rows[best]:8.3f} {'1.000':>11}  {best}")
            for number in range(options.searches):
                result = tune(cluster, *words, "--budget", options.budget)
                seconds = rows[name_of(result["best"])]
                line = (
                    f"{result['seconds']:5.0f} {len(result['measured']):5} {seconds:8.3f} {seconds / rows[best]:11.3f}"
                )
                print(f"  search {number + 1} {line}  {name_of(result['best'])}")
            sys.stdout.flush()
    print(f"cores in use after: {100 * busy(3):.0f} %")


if __name__ == "__main__":
    main()
