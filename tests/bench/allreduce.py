"""The allreduce over hosts in network namespaces, beside other implementations.

    python -m tests.bench.allreduce [options] NAME ...        one cluster, names as in tests.bench.baselines
    python -m tests.bench.allreduce --table all --json FILE   the figures of docs/explanation/allreduce.md

Every figure is a share of the limit T*: every allreduce must send at least 2 (H - 1)/H of the buffer through each
host's NIC in each direction, and 2 (Z - 1)/Z through each rack's uplink, at the shaped rates x 1448/1514 (payload).
The bursts that the shapers let pass are subtracted, so small sizes have no meaningful limit.
The uplinks' counters see large segments before they are cut into packets, so they leave out most headers.
Algorithms take turns in one job; times are medians of the slowest rank's; every sum is checked. The exit code is 1 if a
job fails or a sum is wrong. With --smoke, one run of each algorithm on a small array.
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

from tests.bench.cells import EXPLORED, SMOKE, TABLE, Cell
from tests.bench.options import bench_parser, cannot_run
from tests.cluster.cluster import Cluster, why_not
from tests.conftest import launch_line
from tests.support.managers import INTEL_MPI, MPICH, MPIRUN

ROOT = Path(__file__).parents[2]
RANKS = Path(__file__).parent / "programs" / "allreduce_ranks.py"
MPIS = {"4": MPIRUN[4], "5": MPIRUN[5], "mpich": MPICH, "intel": INTEL_MPI}
# Hosts share the cores of this machine, which MPI yields while it waits, and its memory, which it must not use for
# messages: of Open MPI, of MPICH and its UCX, of Intel MPI's libfabric.
OVER_HOSTS = {
    "OMPI_MCA_mpi_yield_when_idle": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1", "UCX_TLS": "self,tcp",
    "FI_PROVIDER": "tcp",
}  # fmt: skip
# Messages of rank 0, and replies to its queries.
PIPES = ("messages", "replies")
HEADINGS = (
    "order", "MiB", "algorithm", "of T*", "time / p", "uplink bytes / least", "CPU s", "CPU / p", "median s",
    "quartiles", "runs",
)  # fmt: skip


class JobFailed(Exception):  # noqa: N818 - a result of the benchmark
    """The job of a cell ended with an error, or its sums are wrong."""


def busy(seconds: float) -> float:
    """Return the share of the cores that is in use during some seconds."""

    def read() -> tuple[int, int]:
        numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return sum(numbers), numbers[3] + numbers[4]

    total, idle = read()
    time.sleep(seconds)
    later, idler = read()
    return 1 - (idler - idle) / max(later - total, 1)


def quiet(patience: float) -> float:
    """Wait until less than 15 % of the cores is in use; return the last share. Without patience, look only once."""
    until = time.monotonic() + patience
    while (share := busy(3 if patience else 0.1)) > 0.15 and time.monotonic() < until:
        pass
    return share


def line(cell: Cell, folder: Path, hosts: Sequence[str]) -> list[str]:
    """Return the launch command of the ranks; over several hosts they share cores, and yield them while they wait."""
    sizes = [[mib, cell.names_at(mib)] for mib in sorted(cell.mib)]
    plan = {
        "rounds": cell.rounds, "budget": cell.budget, "in_a_row": cell.in_a_row, "pause": cell.pause, "sizes": sizes,
    }  # fmt: skip
    argv = launch_line(cell.manager.mpirun, folder, "--output", "no-tag", "--allow-run-as-root", "--checks", "none")
    argv += ["--timeout", "1200", "--ranks-per-host", str(cell.learners), "--rank-order", cell.order]
    argv += cell.manager.options
    variables = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "PYTHONPATH": str(ROOT)}
    variables["XDG_STATE_HOME"] = str(folder)  # without what mode p has found on other links
    if hosts:
        argv += ["-H", ",".join(hosts), "--racks", str(cell.racks)]
        variables |= OVER_HOSTS
    argv += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    return [*argv, sys.executable, str(RANKS), str(folder), json.dumps(plan)]


@contextlib.contextmanager
def cluster_of(cell: Cell) -> Iterator[Cluster | None]:
    """Yield the cluster of a cell; None for one host, which is this machine."""
    if cell.one_host:
        yield None
        return
    flow = f"{cell.flow}mbit" if cell.flow else None
    with Cluster(cell.hosts, cell.racks, uplink=f"{cell.uplink}mbit", nic=f"{cell.nic}mbit", flow=flow) as cluster:
        yield cluster


def run_ranks(cell: Cell, cluster: Cluster | None) -> Iterator[dict[str, Any]]:
    """Run the ranks by ddlrun launch from h1; yield the messages of rank 0, and reply to its queries of the uplinks."""
    with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as name:
        folder = Path(name)
        for pipe in PIPES:
            os.mkfifo(folder / pipe)
        argv = line(cell, folder, [host.name for host in cluster.hosts] if cluster else [])
        argv = cluster.argv("h1", argv) if cluster else argv
        with (folder / "out").open("w") as out:
            job = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            try:
                yield from messages(job, folder, cluster, cell.racks)
            finally:
                job.terminate()
                job.wait()
        if job.returncode:
            raise JobFailed(f"{(folder / 'out').read_text()[-3000:]}\n{cell.title}: ended with {job.returncode}")


def messages(
    job: subprocess.Popen[bytes], folder: Path, cluster: Cluster | None, racks: int
) -> Iterator[dict[str, Any]]:
    """Yield the messages of a job until it ends; a line `?` queries the bytes that each uplink has carried."""
    rest = b""
    with contextlib.ExitStack() as stack:
        # Opened for writing as well: otherwise open() would block on a job that fails before it opens the pipes.
        received, replies = (stack.enter_context((folder / pipe).open("r+b", 0)) for pipe in PIPES)
        while True:
            ended = job.poll() is not None
            ready, _, _ = select.select([received], [], [], 0.5)
            *lines, rest = (rest + received.read(65536)).split(b"\n") if ready else [rest]
            for text in lines:
                if text == b"?":
                    carried = [sum(cluster.uplink_bytes(rack)) for rack in range(racks)] if cluster else []
                    replies.write(json.dumps(carried).encode() + b"\n")
                else:
                    yield json.loads(text)
            if ended and not ready:
                return


def row(cell: Cell, result: dict[str, Any], p: dict[str, Any] | None) -> list[str]:
    """Return a row of the table; `p` is the result of mode p at the same size."""

    def against(field: str) -> str:
        return f"{statistics.median(result[field]) / statistics.median(p[field]):.2f}" if p else ""

    seconds = sorted(result["seconds"])
    median = statistics.median(seconds)
    low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    carried = statistics.median(map(max, result["bytes"])) / result["least"] if result["least"] else math.nan
    share = f"{100 * result['limit'] / median:.1f} %" if result["limit"] else ""
    over = "" if math.isnan(carried) else f"{carried:.2f}"
    words = [cell.order, f"{result['mib']:.4g}", result["algorithm"], share, against("seconds"), over]
    words += [f"{statistics.median(result['cpu']):.3g}", against("cpu"), f"{median:.4g}", f"{low:.4g}-{high:.4g}"]
    return [*words, f"{len(seconds)}{'' if result['right'] else ' WRONG SUMS'}"]


def complete(cell: Cell, result: dict[str, Any], mpi: str) -> dict[str, Any]:
    """Add the cell, the version and the limit to a result; small arrays in a row share one burst of the shapers."""
    repeat = result["repeat"]
    fixed = cell._asdict() | {"cell": cell.name, "shape": cell.shape, "mpi": mpi}
    for field in ("name", "manager", "mib", "names", "large", "rounds", "budget", "in_a_row"):
        del fixed[field]
    passes = 1 if result["algorithm"].startswith(("rs:", "ag:")) else 2
    limit = cell.limit(result["mib"] * repeat, passes) / repeat
    return fixed | result | {"limit": limit, "least": cell.least(result["mib"], passes)}


GROUPS = {"all": TABLE, "explored": EXPLORED}
NAMES = [cell.name for cell in (*TABLE, *EXPLORED)]


def measure(cell: Cell, file: Path | None, **conditions: Any) -> None:
    """Run a cell; print each size as it comes, and append it to the file. Raises JobFailed for a wrong sum too."""
    print(f"\n{cell.title}\n\n| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}", flush=True)
    mpi, notes, wrong = "", list[str](), list[str]()
    with cluster_of(cell) as cluster:
        for message in run_ranks(cell, cluster):
            mpi = message.get("mpi", mpi)
            notes += [f"{name}: {reason}" for name, reason in message.get("missing", {}).items()]
            results = [conditions | complete(cell, result, mpi) for result in message.get("results", [])]
            p = next((result for result in results if result["algorithm"].partition("=")[0] == "p"), None)
            for result in results:
                print(f"| {' | '.join(row(cell, result, p))} |", flush=True)
                if not result["right"]:
                    wrong.append(result["algorithm"])
                if result["note"]:
                    notes.append(f"{result['algorithm']} at {result['mib']:g} MiB: {result['note']}")
            append(file, results)
    print("\n" + "\n".join(notes))
    if wrong:
        raise JobFailed(f"{cell.title}: wrong sums of {', '.join(wrong)}")


def append(path: Path | None, results: Sequence[dict[str, Any]]) -> None:
    if path is not None:
        with path.open("a") as file:
            file.writelines(json.dumps(result) + "\n" for result in results)


def read_options() -> argparse.Namespace:
    parser = bench_parser(__doc__)
    parser.add_argument("--table", metavar="CELLS", help=f"all, explored, or some of {','.join(NAMES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the results, one JSON line each")
    parser.add_argument("--hosts", type=int, default=2, help="hosts per rack (2)")
    parser.add_argument("--racks", type=int, default=2)
    parser.add_argument("--learners", type=int, default=len(os.sched_getaffinity(0)), help="learners per host (cores)")
    parser.add_argument("--nic", type=int, default=200, help="Mbit/s of a host's link (200)")
    parser.add_argument("--uplink", type=int, default=100, help="Mbit/s of a rack's (100)")
    parser.add_argument("--flow", type=int, default=0, help="Mbit/s of each connection (no limit)")
    parser.add_argument("--mib", help="sizes in MiB, with commas (16, or the table's)")
    parser.add_argument("--rounds", type=int, help="runs of each (7)")
    parser.add_argument("--in-a-row", type=int, help="MiB that smaller arrays add up to without a pause (1)")
    parser.add_argument("--budget", type=float, help="seconds per algorithm after which 3 runs are enough")
    parser.add_argument("--mpi", choices=MPIS, default="4", help="4 and 5 are versions of Open MPI (4)")
    parser.add_argument("--orders", default="host,ddl")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine (60)")
    parser.add_argument("names", nargs="*", help="algorithms, or MODE=TUNING; with --table a selection")
    options = parser.parse_args()
    if options.smoke:
        options.patience = 0
    return options


def select_cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells of the table, or the one that the options describe, in each rank order."""
    if options.smoke:
        return list(SMOKE)
    same = {name: value for name in ("rounds", "budget", "in_a_row") if (value := getattr(options, name)) is not None}
    if options.mib:
        same["mib"] = tuple(float(word) for word in options.mib.split(","))
    if options.table:
        requested = options.table.split(",")
        if unknown := {*requested} - {*GROUPS, *NAMES}:
            sys.exit(f"no such cells: {', '.join(sorted(unknown))}; the cells are {', '.join(NAMES)}")
        return [
            cell._replace(names=tuple(options.names or cell.names), **same)
            for group, cells in GROUPS.items()
            for cell in cells
            if cell.name in requested or group in requested
        ]
    names = tuple(options.names or Cell("").names)
    fixed = {name: getattr(options, name) for name in ("learners", "hosts", "racks", "nic", "uplink", "flow")}
    return [
        Cell("options", order=order, manager=MPIS[options.mpi], names=names, large=names, **fixed)._replace(**same)
        for order in options.orders.split(",")
    ]


def main() -> None:
    options = read_options()
    cells = select_cells(options)
    if why_not() and not all(cell.one_host for cell in cells):
        cannot_run(f"{why_not()}: sudo make test-all")
    print(f"{os.cpu_count()} cores, {platform.release()}, Python {platform.python_version()}")
    failed: list[str] = []
    for cell in cells:
        if cell.manager.package and not cell.manager.library.exists():
            print(f"\n{cell.title}: not installed: make mpis")
            continue
        before = quiet(options.patience)
        start = time.monotonic()
        try:
            measure(cell, options.json, date=time.strftime("%Y-%m-%d"), cores=os.cpu_count(), busy=round(before, 2))
        except JobFailed as error:
            sys.stderr.write(f"{error}\n")
            failed.append(cell.name)
        after = busy(1 if options.patience else 0.1)
        print(f"{100 * before:.0f} % busy before, {100 * after:.0f} % after, {time.monotonic() - start:.0f} s")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
