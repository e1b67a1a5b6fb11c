"""Benchmark of launches as users type them, checks included, over hosts that are network namespaces of this machine.

Prints five tables per number of hosts, each with 2 ranks:

- a short job beside bare mpirun and torchrun, which is started on each host over ssh;
- the processor time of the same commands on all hosts, with ssh and sshd;
- the same in an allocation of Slurm, beside srun, for up to 16 hosts;
- the time from the death of a rank to the first line of the next attempt;
- the ssh connections that each other host accepts during a launch, counted at its sshd. The full launch has --ship,
  --fetch, two restarts and a process that stays behind.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.measure import BESIDE, DDLRUN, Failed, Row, Sample, Series, StoodStill, interleaved, run, show, wall
from tests.bench.options import bench_parser, cannot_run
from tests.bench.processor_time import adopt_orphans, processor_time
from tests.cluster import slurm
from tests.cluster.cluster import Cluster, why_not
from tests.cluster.slurm import SlurmCluster
from tests.conftest import MPIRUNS, OWN, SRUN
from tests.support.waiting import wait_until

JOB = ["sleep", "0.1"]
RANKS_PER_HOST = 2
PROGRAM = Path(__file__).parent / "programs" / "dying_rank.py"
TORCHRUN = "torchrun"
# The goals on one host in ms; those beside bare mpirun, up to a number of hosts and beyond; and those in ms after the
# death of a rank: under ddlrun's own process manager, and under mpirun.
ONE_HOST = 230
FEW = 4
MOST_IN_SLURM = 16
FEW_RATIOS = {OWN: 1.3, "mpirun": 1.6}
MANY_RATIOS = {OWN: 1.2, "mpirun": 1.4}
RESTARTS = {OWN: 800, "mpirun": 1500}


class Sizes(NamedTuple):
    """The rounds of launches and of restarts, and the numbers of hosts."""

    rounds: int
    restarts: int
    hosts: tuple[int, ...]


FULL = Sizes(rounds=7, restarts=3, hosts=(1, 4, 16, 64))
SMOKE = Sizes(rounds=1, restarts=1, hosts=(2,))


def main() -> int:
    """Print all tables; return the exit code."""
    parser = bench_parser(__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", metavar="N", help="the numbers of hosts")
    options = parser.parse_args()
    if why_not():
        cannot_run(why_not())
    sizes = SMOKE if options.smoke else FULL
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed ddlrun has its bytecode
    adopt_orphans()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {sizes.rounds} rounds in turn")
    failed = []
    for count in options.hosts or sizes.hosts:
        with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as folder, Cluster(count, racks=1) as cluster:
            os.environ["XDG_STATE_HOME"] = f"{folder}/state"  # where run folders go
            failed += Launches(cluster, Path(folder)).show(sizes)
        if 1 < count <= MOST_IN_SLURM and not slurm.why_not():
            failed += show_in_slurm(count, sizes.rounds)
    return 1 if failed else 0


def show_in_slurm(count: int, rounds: int) -> list[str]:
    """Print the table of an allocation; return the names of the rows that failed."""
    with (
        tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as folder,
        SlurmCluster(count, 1) as cluster,
        allocation(cluster, Path(folder)) as env,
    ):
        managers = {OWN: ["--process-manager", OWN], SRUN: ["--process-manager", SRUN]}
        lines = {SRUN: [SRUN, *JOB]}
        lines |= {f"ddlrun launch with {name}": [*DDLRUN, "launch", *words, *JOB] for name, words in managers.items()}
        series = interleaved({name: wall(cluster.argv("h1", line), env) for name, line in lines.items()}, rounds)
        rows = [Row(name, of_line, base=series[SRUN]) for name, of_line in series.items()]
        title = f"{shlex.join(JOB)}, {count} hosts x {RANKS_PER_HOST} ranks in an allocation of Slurm"
        return show(f"{title} ({_load()})", rows)


@contextmanager
def allocation(cluster: SlurmCluster, folder: Path) -> Iterator[dict[str, str]]:
    """Hold an allocation of all hosts, and provide the environment of a command in it."""
    file = folder / "environment"
    hold = f"env -0 >{file}.part && mv {file}.part {file} && exec sleep 3600"
    # Without the second option, salloc outside a terminal waits for the command after the end of its job.
    words = ["salloc", "-Q", "--kill-command", f"-N{len(cluster.hosts)}", f"--ntasks-per-node={RANKS_PER_HOST}"]
    with subprocess.Popen(cluster.argv("h1", [*words, "sh", "-c", hold]), stdin=subprocess.DEVNULL) as holder:
        try:
            wait_until(file.exists)
            yield dict(word.split("=", 1) for word in file.read_text().split("\0") if word)
        finally:
            cluster.clear()
            holder.wait()


class Launches:
    """The launches from the first of some hosts, under each process manager."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._names = [host.name for host in cluster.hosts]
        self._where = f"{len(self._names)} host{'s' if len(self._names) > 1 else ''} x {RANKS_PER_HOST} ranks"
        self._hosts = ",".join(f"{name}:{RANKS_PER_HOST}" for name in self._names)
        found = {f"mpirun {major}": path for major, path in MPIRUNS.items() if shutil.which(path)}
        self._managers = {OWN: ["--process-manager", OWN]} | {name: ["--mpirun", path] for name, path in found.items()}
        self._mpiruns = found
        self._torchrun = str(BESIDE / TORCHRUN) if (BESIDE / TORCHRUN).exists() else ""

    def show(self, sizes: Sizes) -> list[str]:
        """Print the tables; return the names of the rows that failed."""
        failed = show(f"{shlex.join(JOB)}, {self._where} ({_load()})", self._launches(sizes.rounds))
        times = interleaved(self._samplers(processor_time), sizes.restarts)
        failed += show("processor time of that on all hosts", [Row(name, of_line) for name, of_line in times.items()])
        failed += show(f"from the death of a rank on, {self._where} ({_load()})", self._restarts(sizes.restarts))
        if len(self._names) > 1:
            failed += show(f"ssh connections per host and launch, {self._where}", self._connections())
        return failed

    def _samplers(self, sampler: Callable[[Sequence[str]], Sample]) -> dict[str, Sample]:
        """Return what samples the short job under each launcher."""
        ranks = str(RANKS_PER_HOST * len(self._names))
        bare = {name: [path, "-H", self._hosts, "-np", ranks, *JOB] for name, path in self._mpiruns.items()}
        lines = {self._title(name): self._launch(name, JOB) for name in self._managers}
        if self._starts_torchrun:
            lines[TORCHRUN] = self._torchrun_line(["--no-python", *JOB])
        again = {name: _again(name, sampler(self._argv(line))) for name, line in bare.items()}
        return again | {name: sampler(self._argv(line)) for name, line in lines.items()}

    def _launches(self, rounds: int) -> list[Row]:
        series = interleaved(self._samplers(wall), rounds)
        is_alone = len(self._names) == 1
        goals = {self._title(OWN): ONE_HOST} if is_alone else {}
        rows = [Row(name, of_line, goal=goals.get(name)) for name, of_line in series.items()]
        return rows if is_alone else [*rows, *(row for base in self._mpiruns for row in self._beside(base, series))]

    def _beside(self, base: str, series: Mapping[str, Series]) -> list[Row]:
        """Return the ratios of ddlrun under its own process manager, and under an mpirun, to that mpirun alone."""
        goals = FEW_RATIOS if len(self._names) <= FEW else MANY_RATIOS
        rows = []
        for name in (OWN, base):
            title = self._title(name)
            ratio = series[title].against(series[base], operator.truediv)
            rows.append(Row(f"{title}, to bare {base}", ratio, unit="x", goal=_goal(goals, name)))
        return rows

    def _restarts(self, rounds: int) -> list[Row]:
        samplers = {self._title(name): self._restart(name) for name in self._managers}
        if self._starts_torchrun:
            samplers[TORCHRUN] = self._restart(TORCHRUN)
        series = interleaved(samplers, rounds)
        goals = {self._title(name): _goal(RESTARTS, name) for name in self._managers}
        return [Row(name, of_line, goal=goals.get(name)) for name, of_line in series.items()]

    def _restart(self, name: str) -> Sample:
        """Return a sampler of the ms from the death of a rank to the first line of the next attempt."""

        def sample() -> float:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                program = [str(PROGRAM), folder, "2"]
                if name == TORCHRUN:
                    line = self._torchrun_line(["--max-restarts", "1", *program])
                else:
                    line = self._launch(name, [sys.executable, *program], "--restarts", "1", "--output", "no-tag")
                printed = run(self._argv(line)).stdout
            times = {
                word: [float(at) for at in re.findall(rf"{word} ([\d.]+)", printed)] for word in ("starts", "dies")
            }
            if (len(times["starts"]), len(times["dies"])) != (2, 1):
                raise Failed(f"the ranks printed {printed!r}")
            return (max(times["starts"]) - times["dies"][0]) * 1000

        return sample

    def _connections(self) -> list[Row]:
        rows = []
        for name in self._managers:
            for what, launch in (("launch", self._plain_launch), ("full launch", self._full_launch)):
                rows.append(Row(f"{self._title(name)}: {what}", self._count(launch, name), unit="", goal=1))
        return rows

    def _count(self, launch: Callable[[str], None], name: str) -> Series:
        """Return the connections that the host with the most of them accepts during a launch."""
        before = {host: self._cluster.connections(host) for host in self._names[1:]}
        try:
            launch(name)
        except Failed as error:
            return Series((), error)
        return Series((max(self._cluster.connections(host) - count for host, count in before.items()),))

    def _plain_launch(self, name: str) -> None:
        run(self._argv(self._launch(name, JOB)))

    def _full_launch(self, name: str) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            project = Path(folder) / "project"
            project.mkdir()
            shutil.copy(PROGRAM, project)
            words = ["--restarts", "2", "--ship", "code", "--fetch", "result.*", "--output", "no-tag"]
            line = self._launch(name, [sys.executable, PROGRAM.name, folder, "3", "keeper"], *words)
            run(self._cluster.argv("h1", line, cwd=project))

    def _launch(self, name: str, program: Sequence[str], *options: str) -> list[str]:
        return [*DDLRUN, "launch", "--allow-run-as-root", *self._managers[name], *options, "-H", self._hosts, *program]

    @property
    def _starts_torchrun(self) -> bool:
        return bool(self._torchrun) and len(self._names) <= FEW

    def _torchrun_line(self, words: Sequence[str]) -> list[str]:
        """Return a command line that starts torchrun on all hosts over ssh."""
        count = len(self._names)
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "h1:29400", "--rdzv-id", "bench"]
        line = shlex.join(
            [self._torchrun, "--nnodes", str(count), "--nproc-per-node", str(RANKS_PER_HOST), *rendezvous, *words]
        )
        others = " ".join(self._names[1:])
        return ["sh", "-c", f"for host in {others}; do ssh $host {shlex.quote(line)} & done; {line} && wait"]

    def _argv(self, line: Sequence[str]) -> list[str]:
        return self._cluster.argv("h1", line)

    def _title(self, name: str) -> str:
        return "ddlrun launch" if name == OWN else f"ddlrun launch with {name}"


def _again(name: str, sample: Sample) -> Sample:
    """Return a sampler that starts a command again if it stands still, with a note.

    mpirun 5.0.11 does so if a rank ends before its daemon has recorded the start, which commit 78df6ec2b9 of PRRTE
    mends. ddlrun would end it after 5 s.
    """

    def again() -> float:
        try:
            return sample()
        except StoodStill as error:
            print(f"{name} {error}, and was started again")
            return sample()

    return again


def _goal(goals: Mapping[str, float], name: str) -> float:
    return goals[OWN if name == OWN else "mpirun"]


def _load() -> str:
    return "load of the machine: {:.0f}, {:.0f} and {:.0f}".format(*os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
