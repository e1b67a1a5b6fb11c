"""The messages of ddlrun.ddl over TCP, on loopback: seconds and CPU seconds, beside those of another version.

    python -m tests.bench.tcp [--against TREE]

Ranks of one host copy long messages from each other's memory; ranks of several hosts, whose names differ here, send all
over sockets. A message goes to the rank beside and back. The jobs of both versions run at the same time and work in
turn, a batch each; the ratio is the median of those of the batches, of this version to the other one.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.options import bench_parser
from tests.support.ports import reserved_port

HERE = Path(__file__).parents[2]
RANKS = Path(__file__).parent / "programs" / "tcp_ranks.py"
HEADINGS = ("ranks", "hosts", "algorithm", "KiB", "ms", "CPU ms", "time ratio", "CPU ratio")
# The algorithms, with the sizes in bytes, and how often a batch runs each.
BATCHES = (
    ("allreduce", 64 << 10, 200), ("message", 64 << 10, 400), ("allreduce", 16 << 20, 4), ("message", 16 << 20, 8),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """The seconds of the slowest rank, and the CPU seconds of all, per run of an algorithm."""

    seconds: float
    cpu: float


class Job:
    """Ranks that wait for batches."""

    def __init__(self, tree: Path, ranks: int, *, one_host: bool, port: int) -> None:
        """Start ranks that load ddlrun from a tree."""
        launched = ("OMPI_", "PMI", "RANK", "WORLD_SIZE", "TORCHELASTIC_", "DDL")
        env = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
        env |= {"PYTHONPATH": str(tree), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        self._ranks = [
            subprocess.Popen(
                [sys.executable, str(RANKS), "" if one_host else f"bench-host-{rank}"],
                env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]

    def run(self, algorithm: str, size: int, times: int) -> Batch:
        """Run a batch."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"{algorithm} {size} {times}\n")
            rank.stdin.flush()
        replies = [[float(word) for word in rank.stdout.readline().split()] for rank in self._ranks if rank.stdout]
        if not all(replies):
            sys.exit("a rank has ended")
        return Batch(max(seconds for seconds, _ in replies) / times, sum(cpu for _, cpu in replies) / times)

    def end(self) -> None:
        """Let the ranks end."""
        for rank in self._ranks:
            rank.communicate()


@contextmanager
def started(tree: Path, ranks: int, *, one_host: bool) -> Iterator[Job]:
    """Start a job, and end it."""
    with reserved_port() as port:
        job = Job(tree, ranks, one_host=one_host, port=port)
        try:
            yield job
        finally:
            job.end()


def compare(trees: list[Path], ranks: int, rounds: int, starts: int, *, one_host: bool) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a number of ranks: medians of the first tree, and its ratios to the second one."""
    pairs: dict[int, list[list[tuple[Batch, ...]]]] = {number: [] for number in range(len(BATCHES))}
    for _ in range(starts):
        with ExitStack() as stack:
            jobs = [stack.enter_context(started(tree, ranks, one_host=one_host)) for tree in trees]
            for number, (algorithm, size, times) in enumerate(BATCHES):
                count = max(times // ranks, 1) if rounds > 1 else 1
                pairs[number].append([])
                for turn in range(rounds):
                    batches = {job: job.run(algorithm, size, count) for job in (jobs if turn % 2 else jobs[::-1])}
                    pairs[number][-1].append(tuple(batches[job] for job in jobs))
    for number, (algorithm, size, _) in enumerate(BATCHES):
        own = [batches[0] for start in pairs[number] for batches in start]
        row = [str(ranks), "one" if one_host else "several", algorithm, str(size >> 10)]
        row += [f"{statistics.median(batch.seconds for batch in own) * 1e3:.3f}"]
        row += [f"{statistics.median(batch.cpu for batch in own) * 1e3:.3f}"]
        if len(trees) > 1:
            row += [render_ratios(pairs[number], field) for field in ("seconds", "cpu")]
        yield tuple(row)


def render_ratios(starts: list[list[tuple[Batch, ...]]], field: str) -> str:
    """Return the median of the ratios of the starts, each of which is one of batches, with the lowest and highest."""
    ratios = [
        statistics.median(getattr(own, field) / getattr(other, field) for own, other in pairs) for pairs in starts
    ]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.2f}..{max(ratios):.2f})"


def main() -> None:
    """Print a table."""
    parser = bench_parser(__doc__)
    parser.add_argument("--against", type=Path, metavar="TREE", help="the folder of another version of ddlrun")
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="the batches of each kind per start (8)")
    parser.add_argument("--starts", type=int, default=9, metavar="N", help="how often the jobs are started (9)")
    options = parser.parse_args()
    trees = [HERE, *([options.against.absolute()] if options.against else [])]
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}", flush=True)
    for ranks in (2,) if options.smoke else (2, 4):
        for one_host in (True, False):
            counts = (1, 1) if options.smoke else (options.rounds, options.starts)
            for row in compare(trees, ranks, *counts, one_host=one_host):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
