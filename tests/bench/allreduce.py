"""The allreduce over hosts in network namespaces, beside what else there is.

    python -m tests.bench.allreduce [options] NAME ...        one cluster, names as in tests.bench.baselines
    python -m tests.bench.allreduce --table all --json FILE   what docs/explanation/allreduce.md shows

Every figure is a share of the limit T*: no allreduce can bring less than 2 (H - 1)/H of the buffer through each host's
NIC in each direction, nor less than 2 (Z - 1)/Z through each rack's uplink, at the shaped rates x 1448/1514 (payload).
What the shapers' buckets let pass at once is taken off, so small sizes have no limit worth the name.
The uplinks' counters see large segments before they are cut into packets, so they leave out most headers.
Algorithms take turns in one job; medians of the slowest rank's time; every sum is checked.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench.cells import EXPLORED, TABLE, Cell
from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS, launch_line

ROOT = Path(__file__).parents[2]
RANKS = Path(__file__).with_name("allreduce_ranks.py")
HEADINGS = (
    "order", "MiB", "algorithm", "of T*", "time / p", "uplink bytes / least", "CPU s", "CPU / p", "median s",
    "quartiles", "runs",
)  # fmt: skip


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


def line(cell: Cell, folder: Path, hosts: Sequence[str]) -> list[str]:
    """Return the launch of the ranks; over several hosts they share cores, and give them away while they wait."""
    sizes = [[mib, cell.names_at(mib)] for mib in sorted(cell.mib)]
    plan = {"rounds": cell.rounds, "budget": cell.budget, "in_a_row": cell.in_a_row, "sizes": sizes}
    argv = launch_line(MPIRUNS[cell.major], folder, "--no-tag-output", "--allow-run-as-root", "--skip-checks")
    argv += ["--timeout", "1200", "--accelerators", str(cell.learners), "--rank-order", cell.order]
    variables = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "PYTHONPATH": str(ROOT)}
    variables["XDG_STATE_HOME"] = str(folder)  # what mode p found on other links is not known here
    if hosts:
        argv += ["-H", ",".join(hosts), "--racks", str(cell.racks), "--overload"]
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    argv += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    return [*argv, sys.executable, str(RANKS), str(folder), json.dumps(plan)]


@contextlib.contextmanager
def cluster_of(cell: Cell) -> Iterator[Cluster | None]:
    """Put the cell's hosts up; for one host there is this machine."""
    if cell.one_host:
        yield None
        return
    with Cluster(cell.hosts, cell.racks, uplink=f"{cell.uplink}mbit", nic=f"{cell.nic}mbit") as cluster:
        yield cluster


def told(cell: Cell, cluster: Cluster | None) -> Iterator[dict[str, Any]]:
    """Run the ranks by ddlrun launch from h1; yield what rank 0 tells, and answer what it asks of the uplinks."""
    with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as name:
        folder = Path(name)
        for pipe in ("said", "answer"):
            os.mkfifo(folder / pipe)
        argv = line(cell, folder, [host.name for host in cluster.hosts] if cluster else [])
        argv = cluster.argv("h1", argv) if cluster else argv
        with (folder / "out").open("w") as out:
            job = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            try:
                yield from heard(job, folder, cluster, cell.racks)
            finally:
                job.terminate()
                job.wait()
        if job.returncode:
            sys.stderr.write(f"{(folder / 'out').read_text()[-3000:]}\n{cell.title}: ended with {job.returncode}\n")


def heard(job: subprocess.Popen[bytes], folder: Path, cluster: Cluster | None, racks: int) -> Iterator[dict[str, Any]]:
    rest = b""
    with contextlib.ExitStack() as stack:
        # Opened to write too: else both would wait for a job that may fail before it opens them.
        said, answer = (stack.enter_context((folder / pipe).open("r+b", 0)) for pipe in ("said", "answer"))
        while True:
            ended = job.poll() is not None
            ready, _, _ = select.select([said], [], [], 0.5)
            *lines, rest = (rest + said.read(65536)).split(b"\n") if ready else [rest]
            for text in lines:
                if text == b"?":
                    carried = [sum(cluster.uplink_bytes(rack)) for rack in range(racks)] if cluster else []
                    answer.write(json.dumps(carried).encode() + b"\n")
                else:
                    yield json.loads(text)
            if ended and not ready:
                return


def row(cell: Cell, found: dict[str, Any], p: dict[str, Any] | None) -> list[str]:
    """Return a line of the table; `p` is what mode p reached at the same size."""

    def against(field: str) -> str:
        return f"{statistics.median(found[field]) / statistics.median(p[field]):.2f}" if p else ""

    seconds = sorted(found["seconds"])
    median = statistics.median(seconds)
    low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    carried = statistics.median(map(max, found["bytes"])) / found["least"] if found["least"] else math.nan
    share = f"{100 * found['limit'] / median:.1f} %" if found["limit"] else ""
    over = "" if math.isnan(carried) else f"{carried:.2f}"
    words = [cell.order, f"{found['mib']:.4g}", found["algorithm"], share, against("seconds"), over]
    words += [f"{statistics.median(found['cpu']):.3g}", against("cpu"), f"{median:.4g}", f"{low:.4g}-{high:.4g}"]
    return [*words, f"{len(seconds)}{'' if found['right'] else ' WRONG SUMS'}"]


def complete(cell: Cell, found: dict[str, Any], openmpi: str) -> dict[str, Any]:
    """Add what the ranks do not know; small arrays in a row share what the shapers let pass at once."""
    repeat = found["repeat"]
    fixed = cell._asdict() | {"cell": cell.name, "shape": cell.shape, "openmpi": openmpi}
    for field in ("name", "mib", "names", "large", "rounds", "budget", "in_a_row"):
        del fixed[field]
    limit = cell.limit(found["mib"] * repeat) / repeat
    return fixed | found | {"limit": limit, "least": cell.least(found["mib"])}


GROUPS = {"all": TABLE, "explored": EXPLORED}
NAMES = [cell.name for cell in (*TABLE, *EXPLORED)]


def measure(cell: Cell, keep: Path | None, **known: Any) -> None:
    """Run a cell; print and keep each size as it comes."""
    print(f"\n{cell.title}\n\n| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}", flush=True)
    openmpi, notes = "", []
    with cluster_of(cell) as cluster:
        for message in told(cell, cluster):
            openmpi = message.get("openmpi", openmpi)
            notes += [f"{name}: {why}" for name, why in message.get("missing", {}).items()]
            results = [known | complete(cell, found, openmpi) for found in message.get("results", [])]
            p = next((found for found in results if found["algorithm"].partition("=")[0] == "p"), None)
            for found in results:
                print(f"| {' | '.join(row(cell, found, p))} |", flush=True)
                notes += [f"{found['algorithm']} at {found['mib']:g} MiB: {found['note']}"] if found["note"] else []
            append(keep, results)
    print("\n" + "\n".join(notes))


def append(keep: Path | None, found: Sequence[dict[str, Any]]) -> None:
    if keep is not None:
        with keep.open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in found)


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", metavar="CELLS", help=f"all, explored, or some of {','.join(NAMES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append what was measured, a JSON line each")
    parser.add_argument("--hosts", type=int, default=2, help="hosts a rack (2)")
    parser.add_argument("--racks", type=int, default=2)
    parser.add_argument("--learners", type=int, default=len(os.sched_getaffinity(0)), help="learners a host (cores)")
    parser.add_argument("--nic", type=int, default=200, help="Mbit/s of a host's link (200)")
    parser.add_argument("--uplink", type=int, default=100, help="Mbit/s of a rack's (100)")
    parser.add_argument("--mib", help="sizes in MiB, with commas (16, or the table's)")
    parser.add_argument("--rounds", type=int, help="runs of each (7)")
    parser.add_argument("--budget", type=float, help="seconds of an algorithm after which 3 runs are enough")
    parser.add_argument("--major", type=int, choices=[4, 5], default=4)
    parser.add_argument("--orders", default="host,ddl")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine (60)")
    parser.add_argument("names", nargs="*", help="algorithms, or DDL modes, =TUNING; some of the table's")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Cell]:
    """Return the cells: of the table, or the one that the options describe, in each order."""
    same = {name: value for name in ("rounds", "budget") if (value := getattr(options, name)) is not None}
    if options.mib:
        same["mib"] = tuple(float(word) for word in options.mib.split(","))
    if options.table:
        wanted = options.table.split(",")
        if unknown := {*wanted} - {*GROUPS, *NAMES}:
            sys.exit(f"no such cells: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
        return [
            cell._replace(names=tuple(options.names or cell.names), **same)
            for group, cells in GROUPS.items()
            for cell in cells
            if cell.name in wanted or group in wanted
        ]
    names = tuple(options.names or Cell("").names)
    fixed = {name: getattr(options, name) for name in ("learners", "hosts", "racks", "nic", "uplink", "major")}
    return [
        Cell("asked", order=order, names=names, large=names, **fixed)._replace(**same)
        for order in options.orders.split(",")
    ]


def main() -> None:
    options = asked()
    cells = chosen(options)
    if why_not() and not all(cell.one_host for cell in cells):
        sys.exit(why_not())
    print(f"{os.cpu_count()} cores, {platform.release()}, Python {platform.python_version()}")
    for cell in cells:
        before = quiet(options.patience)
        start = time.monotonic()
        measure(cell, options.json, date=time.strftime("%Y-%m-%d"), cores=os.cpu_count(), busy=round(before, 2))
        print(f"{100 * before:.0f} % busy before, {100 * busy(1):.0f} % after, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
