"""The allreduce over hosts in network namespaces: `python -m tests.bench.allreduce [options] NAME=TUNING ...`.

Every figure is a share of the limit T*: no allreduce can bring less than 2 (H - 1)/H of the buffer through each host's
NIC in each direction, nor less than 2 (Z - 1)/Z through each rack's uplink, at the shaped rates x 1448/1514 (payload).
What the shapers' buckets let pass at once is taken off, so small sizes have no limit worth the name.
The uplinks' counters see large segments before they are cut into packets, so they leave out most headers.
Algorithms take turns in one job; medians of the slowest rank's time; every sum is checked.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.conftest import MPIRUNS, launch_line
from tests.hosts.cluster import Cluster, why_not

ROOT = Path(__file__).parents[2]
RANKS = Path(__file__).with_name("allreduce_ranks.py")
PAYLOAD = 1448 / 1514
# As tests.hosts.cluster makes them.
NIC_BUCKET, UPLINK_BUCKET = 512 * 1024, 128 * 1024
DEFAULT = ["p", "mpi", "mpi-host", "m", "c"]


def limit(mib: float, hosts: int, racks: int, nic: float, uplink: float) -> float:
    """Return T* in seconds; rates in Mbit/s."""
    size = mib * 2**20 / PAYLOAD
    through_nic = 2 * (hosts - 1) / hosts * size - NIC_BUCKET
    through_uplink = 2 * (racks - 1) / racks * size - UPLINK_BUCKET
    return max(through_nic * 8e-6 / nic, through_uplink * 8e-6 / uplink, 0)


def least(mib: float, racks: int) -> float:
    """Return the payload that an uplink must carry, both directions together."""
    return 2 * 2 * (racks - 1) / racks * mib * 2**20


def busy(seconds: float) -> float:
    """Return the share of the cores that was in use."""

    def read() -> tuple[int, int]:
        numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return sum(numbers), numbers[3] + numbers[4]

    total, idle = read()
    time.sleep(seconds)
    later, idler = read()
    return 1 - (idler - idle) / max(later - total, 1)


def quiet(patience: float) -> float:
    """Wait until little else runs; return the share in use at last."""
    until = time.monotonic() + patience
    while (share := busy(3)) > 0.15 and time.monotonic() < until:
        pass
    return share


def launched(cluster: Cluster, options: argparse.Namespace, order: str) -> list[dict[str, Any]]:
    """Run the ranks by ddlrun launch from h1, and answer what they ask of the uplinks."""
    hosts = ",".join(host.name for host in cluster.hosts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        argv = launch_line(MPIRUNS[options.major], folder, "--no-tag-output", "--allow-run-as-root", "--skip-checks")
        argv += ["-H", hosts, "--rank-order", order]
        argv += [
            "--accelerators",
            str(options.learners),
            "--overload",
            "--racks",
            str(options.racks),
            "--env",
            "OMPI_MCA_mpi_yield_when_idle=1",
        ]
        argv += ["--env", "OMPI_MCA_pml=ob1", "--env", f"PYTHONPATH={ROOT}", sys.executable, str(RANKS), name]
        argv += [str(options.rounds), options.mib, *options.names]
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            job = subprocess.Popen(cluster.argv("h1", argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            while job.poll() is None:
                answer(cluster, folder, options.racks)
        if job.returncode:
            sys.exit(f"{(folder / 'err').read_text()[-3000:]}\nthe job ended with {job.returncode}")
        return [json.loads(line) for line in (folder / "out").read_text().splitlines()]


def answer(cluster: Cluster, folder: Path, racks: int) -> None:
    time.sleep(0.002)
    with suppress(FileNotFoundError):
        (folder / "ask").unlink()
        carried = [sum(cluster.uplink_bytes(rack)) for rack in range(racks)]
        (folder / "written").write_text(json.dumps(carried))
        (folder / "written").rename(folder / "answer")


def show(found: list[dict[str, Any]], options: argparse.Namespace, order: str) -> None:
    groups: dict[tuple[float, str], list[dict[str, Any]]] = defaultdict(list)
    for one in found:
        groups[one["mib"], one["name"]].append(one)
    hosts = options.hosts * options.racks
    for (mib, name), runs in groups.items():
        seconds = sorted(one["seconds"] for one in runs)
        median, best = statistics.median(seconds), limit(mib, hosts, options.racks, options.nic, options.uplink)
        cpu = statistics.median(one["cpu"] for one in runs)
        carried = statistics.median(max(one["bytes"]) for one in runs) if options.racks > 1 else math.nan
        over = carried / least(mib, options.racks) if options.racks > 1 else math.nan
        low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        wrong = "" if all(one["right"] for one in runs) else "  WRONG SUMS"
        print(
            f"| {order} | {mib:g} | {name} | {median:.3f} | {low:.3f}-{high:.3f} | {seconds[0]:.3f} |"
            f" {100 * best / median:.1f} % | {over:.2f} | {cpu:.2f} |{wrong}", flush=True
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="hosts a rack (2)")
    parser.add_argument("--racks", type=int, default=2)
    parser.add_argument("--learners", type=int, default=len(os.sched_getaffinity(0)), help="learners a host (cores)")
    parser.add_argument("--nic", type=int, default=200, help="Mbit/s of a host's link (200)")
    parser.add_argument("--uplink", type=int, default=100, help="Mbit/s of a rack's (100)")
    parser.add_argument("--mib", default="16", help="sizes in MiB, with commas (16)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--major", type=int, choices=[4, 5], default=4)
    parser.add_argument("--orders", default="host,ddl")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine (60)")
    parser.add_argument("names", nargs="*", default=DEFAULT, help="mpi, mpi-host, or a mode, =TUNING")
    options = parser.parse_args()
    if why_not():
        sys.exit(why_not())
    ranks = options.hosts * options.racks * options.learners
    shape = f"{options.learners}x{options.hosts}x{options.racks} = {ranks} ranks"
    rates = f"NIC {options.nic}, uplink {options.uplink} Mbit/s"
    print(f"{shape}, {rates}, Open MPI {options.major}, {100 * quiet(options.patience):.0f} % busy before")
    print("| order | MiB | algorithm | median s | quartiles | min | of T* | uplink bytes / least | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with Cluster(options.hosts, options.racks, uplink=f"{options.uplink}mbit", nic=f"{options.nic}mbit") as cluster:
        for order in options.orders.split(","):
            show(launched(cluster, options, order), options, order)
    print(f"{100 * busy(3):.0f} % busy after")


if __name__ == "__main__":
    main()
