"""Placements of one rank per GPU by other tools, beside ddlrun: `python -m tests.bench.placements`.

Tools with the same result on a machine of tests/machines share a row. mpirun 4.1 itself is run (ppr, as users write
it by hand). mpibind is its published rule: ranks over the NUMA nodes that have GPUs, each with a part of the node's
cores; the results agree with those of its own test suite for Lassen (2 ranks) and Corona (8 ranks). torchrun
--numa-binding follows PyTorch's documentation of `node` (all cores of the GPU's node) and `exclusive` (these cores
divided among the ranks there); the GPU is that of the local rank. With --smoke, the first machine
alone.
"""

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddlrun.machine import Core, Machine
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.mapping.local_ranks import place_local_ranks
from tests.bench.options import bench_parser, cannot_run
from tests.conftest import MPIRUNS
from tests.machines.facts import load
from tests.machines.render_hwloc import render_hwloc
from tests.support import oracle

MACHINES = {
    "Minsky, 2 x 10 cores, 4 P100": "minsky",
    "Pascal, 2 x 18 cores, 2 P100 on one package": "pascal",
    "Corona, 2 x 4 NUMA nodes x 6 cores, 4 MI60": "corona-4-gpus",
    "g4dn.metal, 2 x 24 cores, 8 T4": "g4dn",
}
Shares = Sequence[Sequence[Core]]


def ours(machine: Machine) -> Shares:
    return [seat.cores for seat in place_local_ranks(machine, len(machine.gpus))]


def by_node(machine: Machine, gpu: int) -> list[Core]:
    return [core for core in machine.cores if core.numa_node == machine.gpus[gpu].numa_node]


def divide(cores: Sequence[Core], ranks: int) -> list[Sequence[Core]]:
    ends = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    return [cores[low:high] for low, high in zip(ends, ends[1:], strict=False)]


def mpibind(machine: Machine) -> Shares:
    nodes = sorted({gpu.numa_node for gpu in machine.gpus if gpu.numa_node is not None})
    inside = {node: [core for core in machine.cores if core.numa_node == node] for node in nodes}
    ends = [place * len(machine.gpus) // len(nodes) for place in range(len(nodes) + 1)]
    counts = [high - low for low, high in zip(ends, ends[1:], strict=False)]
    return [share for node, count in zip(nodes, counts, strict=True) for share in divide(inside[node], count)]


def torchrun_node(machine: Machine) -> Shares:
    return [by_node(machine, rank) for rank in range(len(machine.gpus))]


def torchrun_exclusive(machine: Machine) -> Shares:
    shares: dict[int, Sequence[Core]] = {}
    for node in {gpu.numa_node for gpu in machine.gpus}:
        ranks = [rank for rank, gpu in enumerate(machine.gpus) if gpu.numa_node == node]
        shares |= dict(zip(ranks, divide(by_node(machine, ranks[0]), len(ranks)), strict=True))
    return [shares[rank] for rank in range(len(machine.gpus))]


def ppr(machine: Machine, xml: str) -> Shares:
    """Return the cores by mpirun 4.1: ranks divided among packages, each with an equal part of the package's cores."""
    ranks, packages = len(machine.gpus), len(machine.packages)
    per_package = -(-ranks // packages)
    cores = len(machine.packages[0]) // per_package
    argv = [MPIRUNS[4], "--allow-run-as-root", "-np", str(ranks), "-H", f"a:{ranks}"]
    options = oracle.OPTIONS[4].replace(" --hostfile hosts --rankfile ranks", "").split()
    mapping = ["--map-by", f"ppr:{per_package}:socket:pe={cores}", "--bind-to", "core"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "machine.xml").write_text(xml)
        env = oracle.environment(4, folder)
        argv += [*options, *mapping, "true"]
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    mapped = oracle.parse_map(done.stdout, xml)
    at = {(core.package, core.index_in_package): core for core in machine.cores}
    return [
        [at[package, index] for package, indexes in mapped[r][1].items() for index in indexes] for r in range(ranks)
    ]


class Summary(NamedTuple):
    """The cells of a row: ranks near their GPU, the cores of a rank, and cores that no rank has."""

    on_package: str
    on_numa_node: str
    cores: str
    idle: int


def summarize(machine: Machine, shares: Shares) -> Summary:
    """Return the number of ranks beside their GPU, the cores of a rank, and the idle cores."""
    gpus = machine.gpus
    node = sum(all(c.numa_node == gpu.numa_node for c in share) for gpu, share in zip(gpus, shares, strict=True))
    package = sum(all(c.package == gpu.package for c in share) for gpu, share in zip(gpus, shares, strict=True))
    sizes = sorted({len(share) for share in shares})
    used = {core.logical_index for share in shares for core in share}
    shared = sum(map(len, shares)) > len(used)
    each = "-".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
    return Summary(
        on_package=f"{package} of {len(gpus)}",
        on_numa_node=f"{node} of {len(gpus)}",
        cores=f"{each}, shared" if shared else each,
        idle=len(machine.cores) - len(used),
    )


def main() -> None:
    machines = 1 if bench_parser(__doc__).parse_args().smoke else len(MACHINES)
    if not shutil.which("gcc"):
        cannot_run("no gcc: sudo apt-get install gcc libc6-dev")
    rules: Mapping[str, Callable[[Machine], Shares]] = {
        "ddlrun": ours, "mpibind": mpibind, "torchrun node": torchrun_node, "torchrun exclusive": torchrun_exclusive,
    }  # fmt: skip
    print("| machine | launcher | on the GPU's package | on the GPU's NUMA node | cores per rank | idle cores |")
    print("|---|---|---|---|---|---|")
    for name, described in itertools.islice(MACHINES.items(), machines):
        xml = render_hwloc(load(described))
        machine = parse_hwloc(xml, described)
        launchers_by_summary: dict[Summary, list[str]] = {summarize(machine, ppr(machine, xml)): ["mpirun ppr"]}
        for launcher, rule in rules.items():
            launchers_by_summary.setdefault(summarize(machine, rule(machine)), []).append(launcher)
        for summary, launchers in launchers_by_summary.items():
            print(f"| {name} | {', '.join(launchers)} | {' | '.join(map(str, summary))} |")


if __name__ == "__main__":
    main()
