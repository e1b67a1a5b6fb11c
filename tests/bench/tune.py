"""What ddlrun tune finds inside its budget, beside an exhaustive search, over hosts in network namespaces.

    nice -n -20 python -m tests.bench.tune [--rates 200/100,200/400] [--topology 2x2x2] [--gradient 4MiB] [--budget 40s]

First each combination is measured, then tune looks for the best as often as is asked for. The exhaustive search says
what each winner takes, so that all are judged by the same runs.
"""

import argparse
import json
import os
import sys
from typing import Any

from tests.bench.allreduce import busy, quiet
from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS

HOSTS, RACKS = 2, 2


def tune(cluster: Cluster, *words: str) -> dict[str, Any]:
    """Run ddlrun tune on all hosts from the first; return what it has found."""
    hosts = ",".join(f"{host.name}" for host in cluster.hosts)
    argv = [sys.executable, "-m", "ddlrun", "tune", hosts, "--skip-checks", "--allow-run-as-root", "--overload"]
    argv += ["--no-horovod", "--save", "-", "--json", *words]
    environ = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1"}
    done = cluster.run("h1", argv, env=environ, timeout=3000)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout))


def named(row: dict[str, Any]) -> str:
    """Return what tells a way from others."""
    return f"{row['topology']} {row['mode']} {row['tuning']}"


def main() -> None:
    """Print a table: of each pair of rates the best of all, and what each search has found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rates", default="200/100,200/400", help="NIC/uplink in Mbit/s")
    parser.add_argument("--topology", default="2x2x2")
    parser.add_argument("--gradient", default="4MiB")
    parser.add_argument("--budget", default="40s")
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--major", type=int, choices=sorted(MPIRUNS), default=4)
    asked = parser.parse_args()
    if why_not():
        raise SystemExit(why_not())
    print(f"cores in use before: {100 * quiet(60):.0f} %")
    for rates in asked.rates.split(","):
        nic, uplink = (f"{rate}mbit" for rate in rates.split("/"))
        with Cluster(HOSTS, RACKS, nic=nic, uplink=uplink) as cluster:
            words = ["--topology", asked.topology, "--gradient", asked.gradient, "--mpirun", MPIRUNS[asked.major]]
            everything = tune(cluster, *words, "--exhaustive")
            rows = {named(row): row["seconds"] for row in everything["measured"]}
            best = min(rows, key=rows.__getitem__)
            print(f"{rates} Mbit/s, {asked.topology}, {asked.gradient}: {len(rows)} combinations")
            print(f"  took {everything['seconds']:.0f} s; from {rows[best]:.3f} to {max(rows.values()):.3f} s a step")
            print(f"  {'':8} {'in s':>5} {'tried':>5} {'step, s':>8} {'of the best':>11}  winner")
            print(f"  {'all':8} {'':>5} {len(rows):5} {rows[best]:8.3f} {'1.000':>11}  {best}")
            for number in range(asked.searches):
                found = tune(cluster, *words, "--budget", asked.budget)
                took = rows[named(found["best"])]
                line = f"{found['seconds']:5.0f} {len(found['measured']):5} {took:8.3f} {took / rows[best]:11.3f}"
                print(f"  search {number + 1} {line}  {named(found['best'])}")
            sys.stdout.flush()
    print(f"cores in use after: {100 * busy(3):.0f} %")


if __name__ == "__main__":
    main()
