"""Allreduces over hosts in network namespaces, in most of which one NIC has half the rate of the others.

python -m tests.hosts.seeded_nics FIRST LAST runs the jobs with these seeds for 25 s each, and prints the hosts that the
diagnosis of ddlrun top names.
"""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ddlrun.metrics.diagnosis import diagnose
from ddlrun.metrics.findings import SlownessCause
from ddlrun.metrics.history import History
from tests.cluster.cluster import Cluster
from tests.conftest import MPIRUNS, launch_line
from tests.support.processes import Started, started, wait_for
from tests.support.seeded_runs import read_samples

SECONDS = 25
REDUCES = """
import sys, time
import numpy as np
from ddlrun import ddl
with ddl.init("-mode r"):
    while True:
        ddl.all_reduce(np.ones(2**20, np.float32))
        time.sleep(float(sys.argv[1]))
"""


class SeededNics(NamedTuple):
    """A job: hosts, Mbit/s of their NICs, seconds between allreduces, and the host with half the rate."""

    hosts: int
    rate: int
    pause: float
    slow: str = ""

    def cluster(self) -> Cluster:
        """Return the hosts."""
        nics = {self.slow: f"{self.rate // 2}mbit"} if self.slow else {}
        return Cluster(hosts_per_rack=self.hosts, racks=1, nic=f"{self.rate}mbit", nics=nics)

    @contextmanager
    def running(self, cluster: Cluster, mpirun: str, folder: Path) -> Iterator[Started]:
        """Run the job until the end of the block."""
        hosts = ",".join(f"h{number}:1" for number in range(1, self.hosts + 1))
        line = launch_line(mpirun, folder, "--checks", "none", "-H", hosts, "--env", "OMPI_MCA_mpi_yield_when_idle=1")
        line += [sys.executable, "-c", REDUCES, str(self.pause)]
        with started(cluster.argv("h1", line), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
            yield job
            job.terminate()


def make(seed: int) -> SeededNics:
    """Return the job of a seed; every fourth one is healthy."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    hosts = draw.randint(3, 6)
    slow = f"h{draw.randint(1, hosts)}" if seed % 4 else ""
    return SeededNics(hosts, draw.choice([20, 40, 80, 160]), draw.choice([0.05, 0.2, 0.5]), slow)


def named(folder: Path) -> dict[str, str]:
    """Return the hosts with slow links, and what the diagnosis says of them."""
    history = History()
    history.add(read_samples(str(folder / "run" / "metrics.jsonl")))
    slow = (finding for finding in diagnose(history) if finding.cause is SlownessCause.SLOW_NIC)
    return {finding.host: finding.text for finding in slow}


def main() -> None:
    first, last = map(int, sys.argv[1:])
    for seed in range(first, last + 1):
        nics = make(seed)
        with TemporaryDirectory() as name, nics.cluster() as cluster:
            folder, found = Path(name), dict[str, tuple[float, str]]()
            with nics.running(cluster, MPIRUNS[4], folder):
                wait_for((folder / "run" / "metrics.jsonl").exists)
                begin = time.monotonic()
                while (age := time.monotonic() - begin) < SECONDS:
                    for host, text in named(folder).items():
                        found.setdefault(host, (round(age, 1), text))
                    time.sleep(0.5)
        right = list(found) == [nics.slow] * bool(nics.slow)
        print(seed, "right" if right else "WRONG", *nics, found, flush=True)


if __name__ == "__main__":
    main()
