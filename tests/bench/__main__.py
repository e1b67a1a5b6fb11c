"""Benchmarks of ddlrun beside other tools: `make bench`.

Prints tables, and compares them with goals. The exit code is 1 if a row failed; an unmet goal is not a failure.
"""

import contextlib
import json
import math
import operator
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.bench.measure import BESIDE, DDLRUN, Failed, NotInstalled, Row, Sample, Series, interleaved, run, show, wall
from tests.bench.one_host import NO_OP, launch
from tests.bench.options import bench_parser
from tests.cluster.cluster import Cluster, why_not

MPIRUNS = (os.environ.get("MPIRUN4", "/usr/bin/mpirun"), os.environ.get("MPIRUN5", str(BESIDE / "mpirun")))
PASS = [sys.executable, "-c", "pass"]
LINKS = ["--links", "nvlink4,8x400gbe,2:1", "--compute", "100ms"]


class Sizes(NamedTuple):
    """The rounds of each table and the sizes of its cases; rank files have a topology and hosts."""

    rounds: int
    large: tuple[str, str]
    huge: tuple[str, str]
    plan: str
    racks: int
    hosts_per_rack: int


FULL = Sizes(
    rounds=7, large=("8x1024x16", "n[00001-16384]"), huge=("8x8192x16", "n[000001-131072]"), plan="8x1250x100",
    racks=4, hosts_per_rack=16,
)  # fmt: skip
SMOKE = Sizes(rounds=1, large=("2x2x1", "n[1-2]"), huge=("2x2x2", "n[1-4]"), plan="2x2x2", racks=1, hosts_per_rack=2)


def main() -> int:
    """Print all tables; return the exit code."""
    sizes = SMOKE if bench_parser(__doc__).parse_args().smoke else FULL
    failed = tables(sizes)
    sys.stderr.writelines(f"failed: {name}\n" for name in failed)
    return 1 if failed else 0


def tables(sizes: Sizes) -> list[str]:
    """Print all tables; return the names of the rows that failed."""
    with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = name  # where run folders go
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed ddlrun has its bytecode
        installed = {path: version(path) for path in MPIRUNS}
        versions = ", ".join(f"{path} {number or 'not installed'}" for path, number in installed.items())
        cpu = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        rounds = f"{sizes.rounds} rounds in turn, one warm-up"
        print(f"{cpu}; Python {platform.python_version()}; Open MPI: {versions}; {rounds}")
        mpiruns = {path: number for path, number in installed.items() if number}
        failed: list[str] = []
        for mpirun, number in mpiruns.items():
            failed += launch(mpirun, f"Open MPI {number}", folder / number, sizes.rounds)
        imports()
        return [*failed, *commands(sizes), *rank_files(sizes), *launchers(mpiruns, sizes), *probing(sizes)]


def version(mpirun: str) -> str | None:
    """Return the version that an mpirun reports; None if it is not installed."""
    with contextlib.suppress(Failed, OSError):
        match = re.search(r"\(Open MPI\) (\S+)", run([mpirun, "--version"]).stdout)
        return match[1] if match else None
    return None


def imports() -> None:
    """List the slowest imports of a dry run, by their own time."""
    line = [sys.executable, "-X", "importtime", "-m", "ddlrun", "launch", "--dry-run", *NO_OP]
    modules = re.findall(r"import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)", run(line).stderr)
    print("\nlaunch --dry-run: the 10 slowest imports (ms alone, ms with their own imports)")
    for alone, together, name in sorted(modules, key=lambda row: -int(row[0]))[:10]:
        print(f"  {int(alone) / 1000:6.1f} {int(together) / 1000:6.1f}  {name}")
    print(f"  {sum(int(row[0]) for row in modules) / 1000:6.1f}         all {len(modules)}, including Python's own")


def commands(sizes: Sizes) -> list[str]:
    """Show the time of small commands beside that of importing their command line library."""
    lines = {
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "ddlrun --help": [*DDLRUN, "--help"],
        "ddlrun gen-rankfile 4x2x3 sys-[89074-89079]": [*DDLRUN, "gen-rankfile", "4x2x3", "sys-[89074-89079]"],
    }
    lines["plan"] = [*DDLRUN, "network", "plan", "--topology", sizes.plan, *LINKS]
    series = interleaved({name: wall(line) for name, line in lines.items()}, sizes.rounds)
    plan = series.pop("plan")
    click, _, rank_file = series.values()
    ratio = rank_file.against(click, operator.truediv)
    rows = [Row(name, of_command, base=click) for name, of_command in series.items()]
    rows.append(Row(f"ddlrun network plan of {learners(sizes.plan):,} learners", plan, goal=1000))
    return show("small commands", [*rows, Row("gen-rankfile to import click", ratio, unit="x", goal=3)])


def learners(topology: str) -> int:
    """Return the learners of XxYxZ."""
    return math.prod(map(int, topology.split("x")))


def rank_files(sizes: Sizes) -> list[str]:
    """Show the time and memory of large rank files: rendering alone, and the whole command."""
    rows: list[Row] = []
    for (topology, hosts), ms, mib in ((sizes.large, 100, 64), (sizes.huge, 1000, None)):
        peaks: list[float] = []
        render = interleaved({"render": rendering(topology, hosts, peaks)}, sizes.rounds)["render"]
        peak = Series(tuple(peaks[-sizes.rounds :]), render.error)
        rows.append(Row(f"{topology}: rendering alone", render, goal=ms))
        rows.append(Row(f"{topology}: peak memory (ru_maxrss of a process for this alone)", peak, "MiB", mib))
    lines = {"large": [*DDLRUN, "gen-rankfile", *sizes.large], "one": [*DDLRUN, "gen-rankfile", "8", "n1"]}
    series = interleaved({name: wall(line) for name, line in lines.items()}, sizes.rounds)
    rows += [
        Row("gen-rankfile of one host, whole command", series["one"]),
        Row(f"gen-rankfile of {sizes.large[0]}, whole command", series["large"], base=series["one"]),
        Row("more than that of one host", series["large"].against(series["one"], operator.sub)),
    ]
    ranks = " and ".join(f"{learners(topology):,}" for topology, _ in (sizes.large, sizes.huge))
    return show(f"rank files of {ranks} ranks", rows)


def rendering(topology: str, hosts: str, peaks: list[float]) -> Sample:
    """Return a sampler of rendering that appends the peak memory to `peaks`."""

    def sample() -> float:
        figures = json.loads(run([sys.executable, "-m", "tests.bench.programs.rank_file", topology, hosts]).stdout)
        peaks.append(figures["peak_mib"])
        return float(figures["seconds"]) * 1000

    return sample


def launchers(mpiruns: Mapping[str, str], sizes: Sizes) -> list[str]:
    """Show the time of the same no-op under several launchers."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    samplers: dict[str, Sample] = {}
    for mpirun, number in mpiruns.items():
        samplers[f"mpirun -np 2, Open MPI {number}"] = wall([mpirun, *root, "-np", "2", *PASS])
        samplers[f"ddlrun launch -np 2, Open MPI {number}"] = wall(
            [*DDLRUN, "launch", "--allow-run-as-root", "--mpirun", mpirun, "-np", "2", *PASS]
        )
    samplers["torchrun --nproc-per-node 2"] = tool("torchrun", "--nproc-per-node", "2", "--no-python", *PASS)
    samplers["horovodrun -np 2"] = tool("horovodrun", "-np", "2", *PASS)
    series = interleaved(samplers, sizes.rounds)
    first = next(iter(series.values()))
    rows = [Row(name, of_launcher, base=first) for name, of_launcher in series.items()]
    return show("python -c pass, 2 ranks, by launcher", rows)


def probing(sizes: Sizes) -> list[str]:
    """Show the time of probing hosts over real ssh, all of them on this machine's cores."""
    if why_not():
        print(f"\nprobing: {why_not()}")
        return []
    count = sizes.racks * sizes.hosts_per_rack
    last, everything = f"h{count}", f"h[1-{count}]"
    with Cluster(sizes.hosts_per_rack, sizes.racks) as cluster:
        probe = [*DDLRUN, "probe", "--refresh"]
        commands = {
            "one": cluster.argv("h1", [*probe, "h2"]),
            "all": cluster.argv("h1", [*probe, everything]),
            "cached": cluster.argv("h1", [*DDLRUN, "probe", everything]),
        }
        series = interleaved({name: wall(argv) for name, argv in commands.items()}, min(sizes.rounds, 3))
        cut_off = _failing(cluster.argv("h1", [*probe, "--start-timeout", "5", everything]))
        with cluster.cut(last):
            late = interleaved({"cut off": cut_off}, 1)["cut off"]
    rows = [
        Row("one host", series["one"]),
        Row(f"{count} hosts", series["all"], goal=5000),
        Row(f"{count} hosts, cached replies", series["cached"], goal=5000),
        Row(f"{count} hosts, one cut off, --start-timeout 5", late, goal=7000),
    ]
    return show(f"ddlrun probe: {count} hosts with an sshd each, all on this machine", rows)


def _failing(argv: list[str]) -> Sample:
    """Return a sampler of a command that ends with exit code 3, as one of its hosts does not reply."""

    def sample() -> float:
        start = time.perf_counter()
        code = subprocess.run(argv, capture_output=True, check=False).returncode
        if code != 3:
            raise Failed(f"ended with {code}")
        return (time.perf_counter() - start) * 1000

    return sample


def tool(name: str, *words: str) -> Sample:
    """Return a sampler of another launcher, with the system's mpirun first on PATH; it fails if none is installed."""
    path = shutil.which(name, path=f"{BESIDE}:{os.environ.get('PATH', os.defpath)}")
    if path is None:
        return _missing
    return wall(
        [path, *words], {**os.environ, "PATH": f"{Path(MPIRUNS[0]).parent}:{os.environ.get('PATH', os.defpath)}"}
    )


def _missing() -> float:
    raise NotInstalled("not installed")


if __name__ == "__main__":
    sys.exit(main())
