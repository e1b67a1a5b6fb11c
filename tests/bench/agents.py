"""Benchmark of ddlrun's own process manager: starts beside mpirun's, and a job of 1,000 simulated hosts.

Prints tables. The launches over hosts run in network namespaces, all on this machine: their times are those of as many
processes on its cores.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ddlrun import __version__
from ddlrun.process_managers.agents import START
from tests.bench.measure import DDLRUN, Row, interleaved, show, wall
from tests.bench.options import bench_parser
from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS

TICKS = os.sysconf("SC_CLK_TCK")
# A host's agent: it greets, and reports after a while that its rank has ended with 0.
SIMULATED_AGENT = """#!/bin/sh
echo "@ddlrun-agent {version}"
sleep 5
printf 'X\\0\\0\\0\\0030 0D\\0\\0\\0\\0'
"""


class Sizes(NamedTuple):
    """The rounds, the numbers of hosts in namespaces, and the number of simulated hosts."""

    rounds: int
    hosts: tuple[int, ...]
    simulated: int


FULL = Sizes(rounds=5, hosts=(1, 4, 16), simulated=1000)
SMOKE = Sizes(rounds=1, hosts=(1,), simulated=3)


def main() -> int:
    """Print all tables; return the exit code."""
    sizes = SMOKE if bench_parser(__doc__ or "").parse_args().smoke else FULL
    with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as name:
        failed = _one_host(sizes.rounds, Path(name))
        if not why_not():
            for count in sizes.hosts:
                failed += _hosts(count, sizes.rounds)
        _simulated(sizes.simulated, Path(name))
    return 1 if failed else 0


def _one_host(rounds: int, folder: Path) -> list[str]:
    """Show the time of two ranks by hand: what the process manager adds to a fork."""
    samplers = {"fork": wall(["sh", "-c", "/bin/true & /bin/true & wait"])}
    samplers["ddlrun"] = wall(_by_hand(folder, 1, 2, ["/bin/true"]), _environ("2x1"))
    samplers |= {title: wall(argv) for title, argv in _mpiruns(["-np", "2", "/bin/true"])}
    series = interleaved(samplers, rounds)
    rows = [Row(name, series[name], base=series["fork"]) for name in samplers]
    return show("2 ranks of /bin/true on this host, process managers alone", rows)


def _mpiruns(words: list[str]) -> list[tuple[str, list[str]]]:
    """Return the title and the command line of each installed mpirun."""
    root = ["--allow-run-as-root", "--oversubscribe"]
    found = ((f"mpirun of Open MPI {major}", path) for major, path in MPIRUNS.items())
    return [(title, [path, *root, *words]) for title, path in found if shutil.which(path)]


def _hosts(count: int, rounds: int) -> list[str]:
    """Show the time of launches of /bin/true over hosts with real sshd, one rank each."""
    with Cluster(hosts_per_rack=count, racks=1) as cluster:
        listed = ",".join(f"h{number}:1" for number in range(1, count + 1))
        words = ["--skip-checks", "--machine", "local", "--quiet", "-H", listed, "/bin/true"]
        line = [*DDLRUN, "launch", "--allow-run-as-root"]
        managers = {f"mpirun of Open MPI {major}": ["--mpirun", path] for major, path in MPIRUNS.items()}
        managers = {"ddlrun": ["--process-manager", "ddlrun"]} | managers
        samplers = {name: wall(cluster.argv("h1", [*line, *choice, *words])) for name, choice in managers.items()}
        series = interleaved(samplers, rounds)
    rows = [Row(name, series[name], base=series["ddlrun"]) for name in samplers]
    return show(f"ddlrun launch of /bin/true, one rank on each of {count} hosts", rows)


def _simulated(count: int, folder: Path) -> None:
    """Show the processor time and the memory of the root of a job over simulated hosts, without a tree."""
    agent = folder / "agent"
    agent.write_text(SIMULATED_AGENT.format(version=__version__))
    agent.chmod(0o755)
    argv = _by_hand(folder, count, 0, ["/bin/true"], agent, count)
    begin = time.monotonic()
    with subprocess.Popen(argv, env=_environ(f"1x{count}")) as root:
        ticks, memory = 0, 0
        while root.poll() is None:
            ticks, memory = _usage(root.pid) or (ticks, memory)
            time.sleep(0.02)
    print(f"\n{count} simulated agents, all started by the root: exit code {root.returncode}")
    print(f"  processor time {ticks / TICKS:.2f} s (goal: 2), memory {memory / 1024:.1f} MiB (goal: 200), "
          f"{time.monotonic() - begin:.1f} s, 5 of which the ranks run")  # fmt: skip


def _usage(pid: int) -> tuple[int, int] | None:
    """Return the processor time in ticks and the largest memory in KiB of a process; None once it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        largest = re.search(r"VmHWM:\s*([0-9]+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None
    return (int(words[11]) + int(words[12]), int(largest[1])) if largest else None


def _environ(topology: str) -> dict[str, str]:
    names = "DDLRUN_RANK DDLRUN_LOCAL_RANK DDLRUN_SIZE"
    variables = {"DDLRUN_TOPOLOGY": topology, "DDLRUN_RANK_ORDER": "host", "DDLRUN_RANK_VARIABLES": names}
    return {**os.environ, **variables}


def _by_hand(
    folder: Path, hosts: int, local: int, program: list[str], agent: Path | None = None, fan_out: int = 64
) -> list[str]:
    """Return the command line of the process manager by hand; `local` ranks, or none, are on this host."""
    file = folder / f"hosts-{hosts}"
    file.write_text("".join(f"n{number}\n" for number in range(hosts)))
    here = ["--local=n0"] if local else [f"--via={agent}", "--via=@host", f"--fan-out={fan_out}"]
    python = [sys.executable, "-I", "-S"]
    return [*python, START, f"--hostfile={file}", *here, "--", *python, "start.py", *program]


if __name__ == "__main__":
    sys.exit(main())
