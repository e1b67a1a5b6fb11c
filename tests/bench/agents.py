"""Benchmark of ddlrun's own process manager: starts beside mpirun's, and a job of 1,000 simulated hosts.

Prints tables. The launches over hosts run in network namespaces, all on this machine: their times are those of as many
processes on its cores. The processor time is that of all hosts, with ssh and sshd.
"""

import operator
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ddlrun.agent import protocol
from ddlrun.keeper.protocol import VERSION
from ddlrun.remote.agent import AgentLauncher
from ddlrun.wire.frames import Checksums, Encoder
from tests.bench.measure import DDLRUN, Row, Sample, Series, interleaved, show, wall
from tests.bench.options import bench_parser
from tests.bench.processor_time import adopt_orphans, processor_time
from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS

TICKS = os.sysconf("SC_CLK_TCK")
# A host's agent: it greets, and reports after a while that its rank has ended with 0.
SIMULATED_AGENT = """#!/bin/sh
echo "@ddlrun-agent {version}"
sleep 5
printf '{messages}'
"""


class Sizes(NamedTuple):
    """The rounds, the numbers of hosts in namespaces, and the number of simulated hosts."""

    rounds: int
    hosts: tuple[int, ...]
    simulated: int


FULL = Sizes(rounds=7, hosts=(4, 16, 64), simulated=1000)
SMOKE = Sizes(rounds=1, hosts=(2,), simulated=3)


def main() -> int:
    """Print all tables; return the exit code."""
    sizes = SMOKE if bench_parser(__doc__).parse_args().smoke else FULL
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed ddlrun has its bytecode
    adopt_orphans()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {sizes.rounds} rounds in turn")
    with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as name:
        failed = _one_host(sizes.rounds)
        if not why_not():
            for count in sizes.hosts:
                failed += _hosts(count, sizes.rounds, Path(name))
        _simulated(sizes.simulated, Path(name))
    return 1 if failed else 0


def _one_host(rounds: int) -> list[str]:
    """Show the time of two ranks by hand, and what the process manager adds to a fork."""
    samplers = {"fork": wall(["sh", "-c", "/bin/true & /bin/true & wait"])}
    samplers["ddlrun"] = wall(_by_hand(["n0"], "2x1", "--local=n0"))
    samplers |= {title: wall(argv) for title, argv in _mpiruns(["--oversubscribe", "-np", "2", "/bin/true"])}
    series = interleaved(samplers, rounds)
    rows = [Row(name, series[name], base=series["fork"]) for name in samplers]
    added = series["ddlrun"].against(series["fork"], operator.sub)
    rows.append(Row("added by ddlrun, pair by pair", added, goal=60))
    return show("2 ranks of /bin/true on this host, process managers alone", rows)


def _mpiruns(words: list[str]) -> list[tuple[str, list[str]]]:
    """Return the title and the command line of each installed mpirun."""
    found = ((f"mpirun of Open MPI {major}", path) for major, path in MPIRUNS.items())
    return [(title, [path, "--allow-run-as-root", *words]) for title, path in found if shutil.which(path)]


def _hosts(count: int, rounds: int, folder: Path) -> list[str]:
    """Show the times over hosts with real sshd, one rank of /bin/true each: process managers alone, and launches."""
    names = [f"h{number}" for number in range(1, count + 1)]
    file = _write_hosts(folder, names)
    with Cluster(hosts_per_rack=count, racks=1) as cluster:

        def samplers(lines: dict[str, list[str]], sampler: Callable[[list[str]], Sample]) -> dict[str, Sample]:
            return {title: sampler(cluster.argv("h1", line)) for title, line in lines.items()}

        managers = _managers_alone(file, count)
        alone = interleaved(samplers(managers, wall), rounds)
        launches = interleaved(samplers(_launches(names), wall), rounds)
        times = interleaved(samplers(managers, processor_time), rounds)
        load = "load of the machine: {:.0f}, {:.0f} and {:.0f}".format(*os.getloadavg())
    where = f"of /bin/true, one rank on each of {count} hosts"
    failed = show(f"start {where}, process managers alone ({load})", _compared(alone))
    failed += show(f"ddlrun launch {where}", _compared(launches))
    return failed + show(f"processor time of that start, process managers alone, {count} hosts", _compared(times))


def _managers_alone(hostfile: Path, count: int) -> dict[str, list[str]]:
    """Return the command line of each process manager, as ddlrun launch starts it on the first of the hosts."""
    names = [f"h{number}" for number in range(1, count + 1)]
    ours = _by_hand(names, f"1x{count}", "--local=h1", f"--via={shlex.join(AgentLauncher().shell)}", "--fan-out=64")
    mpiruns = _mpiruns(["--hostfile", str(hostfile), "-np", str(count), "/bin/true"])
    return {"ddlrun": ours, **dict(mpiruns)}


def _launches(names: list[str]) -> dict[str, list[str]]:
    """Return the command line of ddlrun launch with each process manager."""
    hosts = ",".join(f"{name}:1" for name in names)
    words = ["--checks", "none", "--machine", "local", "--quiet", "-H", hosts, "/bin/true"]
    choices = {"ddlrun": ["--process-manager", "ddlrun"]}
    choices |= {title: ["--mpirun", argv[0]] for title, argv in _mpiruns([])}
    return {title: [*DDLRUN, "launch", "--allow-run-as-root", *choice, *words] for title, choice in choices.items()}


def _compared(series: dict[str, Series]) -> list[Row]:
    """Return a row for each process manager, and one for ddlrun's time beside that of each other, pair by pair."""
    ours = series["ddlrun"]
    rows = [Row(name, measured) for name, measured in series.items()]
    for name, measured in series.items():
        if name != "ddlrun":
            ratio = ours.against(measured, operator.truediv)
            rows.append(Row(f"ddlrun to {name}, pair by pair", ratio, unit="x", goal=1))
    return rows


def _simulated(count: int, folder: Path) -> None:
    """Show the processor time and the memory of the process that leads a job over simulated hosts, without a tree."""
    agent = folder / "agent"
    encoder = Encoder(Checksums(), protocol.FROM_AGENT)
    end = protocol.ExitedRank(rank=0, code=0).pack()
    frames = [*encoder.encode(protocol.EXITED, end), *encoder.encode(protocol.DONE)]
    messages = "".join(f"\\{byte:03o}" for byte in b"".join(frames))
    agent.write_text(SIMULATED_AGENT.format(version=VERSION, messages=messages))
    agent.chmod(0o755)
    names = [f"n{number}" for number in range(count)]
    argv = _by_hand(names, f"1x{count}", f"--via={agent} @host", f"--fan-out={count}")
    begin = time.monotonic()
    with subprocess.Popen(argv) as root:
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


def _write_hosts(folder: Path, names: list[str]) -> Path:
    """Write a hostfile with one slot per host; return its path."""
    file = folder / f"{names[0]}-{len(names)}"
    file.write_text("".join(f"{name} slots=1\n" for name in names))
    return file


def _by_hand(hosts: list[str], topology: str, *options: str) -> list[str]:
    """Return the command line of agents without ddlrun for ranks of /bin/true."""
    words = [f"--hosts={','.join(hosts)}", f"--topology={topology}", *options]
    return [sys.executable, "-m", "tests.support.agent_job", *words, "--", "/bin/true"]


if __name__ == "__main__":
    sys.exit(main())
