"""What thousands of hosts cost before the first rank runs: `python -m tests.bench.scale PART...`, tables in Markdown.

    launch      plans of ddlrun launch --dry-run: CPU, memory, files, words on the command line
    tree        daemons that mpirun and its daemons start, level by level: by formula
    preflight   simulated answers of as many hosts through ddlrun's judging
    fanout      a stand-in for ssh started once a host: what asking costs this machine
    keepers     connections and signs of life of as many ranks at ddlrun's port
    allreduce   predicted, as ddlrun plan does; nothing is measured
    oracle:4:8x16384   a rank file of that size read by a real mpirun, which MPIRUN4 or MPIRUN5 names

CPU is user and system time together, as it counts on a machine that others use too. Each case is a process of its own,
whose peak memory counts from its start: what started it has to be the smaller one.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHAPES = ("8x25x5", "8x25x50", "8x25x500", "8x32x512")
"""1,000, 10,000, 100,000 learners, and those of 16,384 hosts."""
# Of one word (MAX_ARG_STRLEN in Linux's binfmts.h), and of all with the environment.
WORD, ALL = 128 << 10, os.sysconf("SC_ARG_MAX")
RADIX = 64


def table(head: str, rows: Iterable[Iterable[object]]) -> None:
    """Print a table; `head` has its columns, parted by |."""
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
    argv = [sys.executable, "-m", "tests.bench.scale_cases", *map(str, words)]
    return json.loads(subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)


def launch() -> None:
    """Plan launches on hosts that are not there."""
    table(
        "learners|hosts|CPU s|MiB|rank file|hostfile|plan.json|command line|longest argument|longest variable|output",
        map(_launch, SHAPES),
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


def tree() -> None:
    """Count what mpirun starts, and each daemon: up to RADIX daemons."""
    rows = []
    for shape in SHAPES:
        left, level, levels = hosts_of(shape), RADIX, []
        while left > 0:
            levels.append(min(left, level))
            left, level = left - level, level * RADIX
        rows.append([f"{sum(levels):,}", len(levels), " + ".join(f"{here:,}" for here in levels), levels[0]])
    table("hosts|levels|daemons of each level|ssh processes started by mpirun itself", rows)


def preflight() -> None:
    """Judge simulated answers."""
    found = [(hosts_of(shape), case("preflight", hosts_of(shape))) for shape in SHAPES]
    table(
        "hosts|script, bytes|reply, bytes|CPU s|MiB",
        [
            [f"{hosts:,}", f"{one['script']:,}", f"{one['answer']:,}", f"{one['judge']:.1f}", f"{one['mib']:,.0f}"]
            for hosts, one in found
        ],
    )


def fanout() -> None:
    """Ask through a stand-in for ssh that prints a simulated answer."""
    found = [(hosts, case("fanout", hosts)) for hosts in (125, 500, 1000)]
    table(
        "hosts|CPU ms per host, ddlrun only|MiB",
        [[f"{hosts:,}", f"{one['own'] * 1000 / hosts:.1f}", f"{one['mib']:.0f}"] for hosts, one in found],
    )


def keepers() -> None:
    """Let many keepers come at once, and say that they live."""
    found = [(ranks, case("keepers", ranks)) for ranks in (1000, 4000, 16000)]
    table(
        "ranks at once|CPU us per connection|per heartbeat received|per heartbeat sent|MiB",
        [
            [
                f"{ranks:,}", *(f"{one[name] * 1e6 / ranks:.0f}" for name in ("let_in", "hear", "tell")),
                f"{one['mib']:.0f}",
            ]
            for ranks, one in found
        ],
    )  # fmt: skip


def allreduce() -> None:
    """Predict allreduces of two models' gradients."""
    for title, rows in case("allreduce"):
        print(f"{title}; ms (what limits it, steps)\n")
        table("learners|topology|mode p|rings by dimension|halving by dimension|one ring over all|mode r", rows)


def oracle(major: str, shape: str) -> None:
    """Have a real mpirun read a rank file, and compare where it puts every rank."""
    head = "Open MPI|hosts|ranks|bytes|CPU s|MiB|every rank as planned"
    table(head, [case("oracle", major, shape)])


PARTS = {part.__name__: part for part in (launch, tree, preflight, fanout, keepers, allreduce)}


def main(words: Iterable[str]) -> None:
    """Print the tables that are asked for."""
    for word in words:
        part, *more = word.split(":")
        if part == "oracle":
            oracle(*more)
        else:
            PARTS[part]()


if __name__ == "__main__":
    main(sys.argv[1:] or PARTS)
