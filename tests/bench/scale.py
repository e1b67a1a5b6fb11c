"""Cost of thousands of hosts before the first rank runs: `python -m tests.bench.scale PART...`, tables in Markdown.

    launch      plans of ddlrun launch --dry-run: CPU, memory, files, words on the command line
    tree        daemons that mpirun and its daemons start, level by level: computed
    preflight   simulated replies of all hosts, checked by ddlrun
    hosts       whole launches of a rank per host; a stand-in for ssh starts all agents on this machine
    keepers     connections and heartbeats of all ranks at ddlrun's port
    allreduce   predicted, as ddlrun network plan does; nothing is measured
    oracle:4:8x16384   a rank file of that size read by a real mpirun, named by MPIRUN4 or MPIRUN5

With --smoke, all parts in turn on few hosts, and the rank file read by each mpirun that is installed.

CPU is user and system time together, which other processes on the machine do not change much. Each case is a process of
its own; its peak memory includes that of the process that started it, which is smaller.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.options import bench_parser

ROOT = Path(__file__).parents[2]


class Sizes(NamedTuple):
    """The topologies, the hosts of launches, the ranks with a keeper, and the topologies of allreduces."""

    shapes: tuple[str, ...]
    launched: tuple[int, ...]
    ranks: tuple[int, ...]
    allreduces: tuple[str, ...]


# 1,000, 10,000 and 100,000 learners, and 16,384 hosts.
FULL = Sizes(
    shapes=("8x25x5", "8x25x50", "8x25x500", "8x32x512"),
    launched=(64, 250, 1000),
    ranks=(1000, 4000, 16000),
    allreduces=("8x25x5", "8x25x50", "8x25x10x5", "8x25x500", "8x125x100", "8x25x25x20"),
)
SMOKE = Sizes(shapes=("8x2x1",), launched=(2,), ranks=(2,), allreduces=("8x25x2",))
# Most bytes of one word (MAX_ARG_STRLEN in Linux's binfmts.h), and of all words with the environment.
WORD, ALL = 128 << 10, os.sysconf("SC_ARG_MAX")
RADIX = 64


def table(head: str, rows: Iterable[Iterable[object]]) -> None:
    """Print a table; `head` has its columns, separated by |."""
    print(f"| {head.replace('|', ' | ')} |\n|{'---|' * (head.count('|') + 1)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    print()


def hosts_of(shape: str) -> int:
    """Return the hosts of XxYxZ."""
    _, y, z = map(int, shape.split("x"))
    return y * z


def case(*words: object) -> Any:
    """Run one case in a process of its own."""
    argv = [sys.executable, "-m", "tests.bench.programs.scale_cases", *map(str, words)]
    return json.loads(subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)


def launch(sizes: Sizes) -> None:
    """Plan launches on hosts that do not exist."""
    table(
        "ranks|hosts|CPU s|MiB|rank file|hostfile|plan.json|command line|longest argument|longest variable|output",
        map(_launch, sizes.shapes),
    )
    print(f"longest word possible {WORD}, all of them with the environment {ALL} (getconf ARG_MAX)\n")


def _launch(shape: str) -> list[object]:
    hosts = hosts_of(shape)
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            sys.executable, "-m", "ddlrun", "launch", "--dry-run", "--run-dir", f"{folder}/run",
            "--machine", "dgx-h100", "--topology", shape, "-H", f"n[00001-{hosts:05}]", "true",
        ]  # fmt: skip
        with Path(folder, "out").open("w") as out:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=out)
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{argv} ended with status {status}")
        names = ("run/rankfile", "run/hostfile", "run/plan.json", "out")
        sizes = [f"{Path(folder, name).stat().st_size:,}" for name in names]
        words = case("words", f"{folder}/run/plan.json")
    return [
        f"{hosts * 8:,}", f"{hosts:,}", f"{usage.ru_utime + usage.ru_stime:.1f}", usage.ru_maxrss // 1024, *sizes[:3],
        *words, sizes[3],
    ]  # fmt: skip


def tree(sizes: Sizes) -> None:
    """Count the daemons of each level: mpirun and each daemon start up to RADIX daemons."""
    rows = []
    for shape in sizes.shapes:
        left, level, levels = hosts_of(shape), RADIX, []
        while left > 0:
            levels.append(min(left, level))
            left, level = left - level, level * RADIX
        rows.append([f"{sum(levels):,}", len(levels), " + ".join(f"{here:,}" for here in levels), levels[0]])
    table("hosts|levels|daemons of each level|ssh processes started by mpirun itself", rows)


def preflight(sizes: Sizes) -> None:
    """Check simulated replies."""
    results = [(hosts_of(shape), case("preflight", hosts_of(shape))) for shape in sizes.shapes]
    table(
        "hosts|task, bytes|reply, bytes|CPU s|MiB",
        [
            [f"{hosts:,}", f"{cost['task']:,}", f"{cost['reply']:,}", f"{cost['check']:.1f}", f"{cost['mib']:,.0f}"]
            for hosts, cost in results
        ],
    )


def hosts(sizes: Sizes) -> None:
    """Launch a rank on each of hosts that are this machine: a stand-in for ssh starts their agents here."""
    table("hosts|CPU s, ddlrun only|MiB, ddlrun only|s on this machine", map(_launch_on_hosts, sizes.launched))


def _launch_on_hosts(count: int) -> list[object]:
    with tempfile.TemporaryDirectory() as folder:
        ssh = Path(folder, "ssh")
        ssh.write_text('#!/bin/sh\nfor word; do :; done\neval "$word"\n')
        ssh.chmod(0o755)
        environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "XDG_STATE_HOME": folder}
        argv = [
            sys.executable, "-m", "ddlrun", "launch", "--allow-run-as-root", "--process-manager", "ddlrun", "--checks",
            "agent,python", "--start-timeout", "600", "--bind-to", "none", "-H", f"n[1-{count}]:1", "true",
        ]  # fmt: skip
        begin = time.monotonic()
        process = subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{argv} ended with status {status}")
    own = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return [f"{count:,}", f"{own:.2f}", usage.ru_maxrss // 1024, f"{time.monotonic() - begin:.0f}"]


def keepers(sizes: Sizes) -> None:
    """Let many keepers connect at the same time, and send heartbeats."""
    results = [(ranks, case("keepers", ranks)) for ranks in sizes.ranks]
    table(
        "ranks at once|CPU us per connection|per heartbeat received|per heartbeat sent|MiB",
        [
            [
                f"{ranks:,}", *(f"{cost[name] * 1e6 / ranks:.0f}" for name in ("accept", "receive", "send")),
                f"{cost['mib']:.0f}",
            ]
            for ranks, cost in results
        ],
    )  # fmt: skip


def allreduce(sizes: Sizes) -> None:
    """Predict allreduces of two models' gradients."""
    for title, rows in case("allreduce", *sizes.allreduces):
        print(f"{title}\n")
        table("ranks|topology|mode p|mode r|halving by dimension|one ring over all", rows)


def oracle(major: str, shape: str) -> None:
    """Let a real mpirun read a rank file, and compare its placement of every rank."""
    *cells, as_planned = case("oracle", major, shape)
    head = "Open MPI|hosts|ranks|bytes|CPU s|MiB|every rank as planned"
    table(head, [[*cells, "yes" if as_planned else "NO"]])
    if not as_planned:
        raise SystemExit(f"Open MPI {major} placed ranks of {shape} elsewhere")


PARTS = {part.__name__: part for part in (launch, tree, preflight, hosts, keepers, allreduce)}


def installed_oracles() -> list[str]:
    """Return a small part for each mpirun that the tests use, and export their paths to the cases."""
    from tests.conftest import MPIRUNS  # noqa: PLC0415 - the memory of each case would include that of pytest

    installed = {major: mpirun for major, mpirun in MPIRUNS.items() if shutil.which(mpirun)}
    os.environ.update({f"MPIRUN{major}": mpirun for major, mpirun in installed.items()})
    return [f"oracle:{major}:2x2" for major in installed]


def main() -> None:
    """Print the tables of the given parts."""
    parser = bench_parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else FULL
    for word in options.parts or [*PARTS, *(installed_oracles() if options.smoke else [])]:
        part, *more = word.split(":")
        if part == "oracle":
            oracle(*more)
        else:
            PARTS[part](sizes)


if __name__ == "__main__":
    main()
