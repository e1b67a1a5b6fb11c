"""The cost of the connections between ddlrun's processes, beside those of another version of ddlrun.

    python -m tests.bench.wire [--against TREE] [--rounds N]

Ranks write output, which their keepers pass on to ddlrun launch: CPU seconds of all processes per GB, less those of a
launch without output. ddlrun's own process manager starts a rank on each of 64 hosts, in network namespaces of this
machine: seconds, and CPU seconds of all hosts with ssh and sshd. Ranks exchange arrays over TCP: see tests.bench.tcp.
Commands of both versions run in turn; a ratio is the median of those of the rounds, of this version to the other one.
"""

import importlib.util
import operator
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench import tcp
from tests.bench.measure import Row, Sample, Series, interleaved, show, wall
from tests.bench.options import bench_parser
from tests.bench.processor_time import adopt_orphans, processor_time
from tests.cluster.cluster import Cluster, why_not

HERE = Path(__file__).parents[2]
RANKS, LINE_BYTES, LINES = 2, 100, 10_000
WRITER = f"import os\nblock = (b'x' * {LINE_BYTES - 1} + b'\\n') * {LINES}\nfor _ in range(%d):\n    os.write(1, block)"
BLOCK_BYTES = LINE_BYTES * LINES
QUIET = ["sh", "-c", 'exec "$@" > /dev/null', "sh"]
GOAL = 1.03


class Sizes(NamedTuple):
    """The number of rounds, of blocks per rank, and of hosts."""

    rounds: int
    blocks: int
    hosts: int


FULL = Sizes(rounds=11, blocks=250, hosts=64)
SMOKE = Sizes(rounds=1, blocks=50, hosts=2)


def main() -> int:
    """Print all tables; return the exit code."""
    parser = bench_parser(__doc__)
    parser.add_argument("--against", type=Path, metavar="TREE", help="the folder of another version of ddlrun")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, metavar="N", help="the number of rounds (11)")
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else FULL._replace(rounds=options.rounds)
    trees = {"this version": HERE, **({"the other one": options.against.absolute()} if options.against else {})}
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as folder:
        os.environ["XDG_STATE_HOME"] = folder  # where run folders go
        protections = {"": [], ", encrypted": ["--encrypt"]} if importlib.util.find_spec("cryptography") else {"": []}
        failed = list[str]()
        for title, words in protections.items():
            failed += _output(trees, words, title, sizes)
        if not why_not():
            failed += _agents(trees, sizes)
    print(f"\nranks of ddlrun.ddl over TCP\n| {' | '.join(tcp.HEADINGS)} |\n|{'---|' * len(tcp.HEADINGS)}")
    rounds = 1 if options.smoke else 4
    for row in tcp.compare([*trees.values()], RANKS, rounds, starts=sizes.rounds, one_host=False):
        print(f"| {' | '.join(row)} |", flush=True)
    return 1 if failed else 0


def launch(tree: Path, words: Sequence[str]) -> list[str]:
    """Return the command line of ddlrun launch of a tree, without its output."""
    python = [
        "env",
        f"--chdir={tree}",
        f"PYTHONPATH={tree}",
        sys.executable,
        "-m",
        "ddlrun",
        "launch",
        "--allow-run-as-root",
    ]
    return [*QUIET, *python, "--process-manager", "ddlrun", "--quiet", *words]


def _output(trees: Mapping[str, Path], words: Sequence[str], title: str, sizes: Sizes) -> list[str]:
    samplers = dict[str, Sample]()
    for name, tree in trees.items():
        for part, count in ((f"{name}, start", 0), (name, sizes.blocks)):
            line = launch(tree, [*words, "-np", str(RANKS), sys.executable, "-c", WRITER % count])
            samplers[part] = processor_time(line)
    series = interleaved(samplers, sizes.rounds)
    gigabytes = RANKS * sizes.blocks * BLOCK_BYTES / 1e9
    per_gigabyte = {
        name: series[name].against(series[f"{name}, start"], lambda whole, start: (whole - start) / gigabytes)
        for name in trees
    }
    return show(f"CPU time per GB of output of {RANKS} ranks{title}", compared(per_gigabyte))


def _agents(trees: Mapping[str, Path], sizes: Sizes) -> list[str]:
    names = [f"h{number}" for number in range(1, sizes.hosts + 1)]
    words = ["--checks", "none", "--machine", "local", "-H", ",".join(f"{name}:1" for name in names), "/bin/true"]
    kinds: dict[str, Callable[[Sequence[str]], Sample]] = {"": wall, ", CPU time": processor_time}
    failed = list[str]()
    with Cluster(hosts_per_rack=sizes.hosts, racks=1) as cluster:
        for title, sampler in kinds.items():
            lines = {name: cluster.argv("h1", launch(tree, words)) for name, tree in trees.items()}
            series = interleaved({name: sampler(line) for name, line in lines.items()}, sizes.rounds)
            failed += show(
                f"launch of /bin/true by agents, one rank on each of {sizes.hosts} hosts{title}", compared(series)
            )
    return failed


def compared(series: Mapping[str, Series]) -> list[Row]:
    """Return a row per version, and one with the ratio of the first to the second."""
    rows = [Row(name, measured) for name, measured in series.items()]
    if len(series) > 1:
        first, second = series.values()
        rows.append(Row("ratio, pair by pair", first.against(second, operator.truediv), unit="x", goal=GOAL))
    return rows


if __name__ == "__main__":
    sys.exit(main())
