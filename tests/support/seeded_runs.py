"""Jobs with a known cause of slowness, for the diagnosis of ddlrun top.

python -m tests.support.seeded_runs CAUSE...           write tests/unit/samples/CAUSE.jsonl
python -m tests.support.seeded_runs --runs N CAUSE...  run N jobs of each cause; print when it was named
python -m tests.support.seeded_runs --healthy SECONDS  run healthy jobs for so long, beside each other; print findings
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Process
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ddlrun.metrics.diagnosis import WINDOW, diagnose
from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import MetricsReader, Sample, render_line
from tests.conftest import OWN, launch_line
from tests.support.processes import started, wait_for

SAMPLES = Path(__file__).parents[1] / "unit" / "samples"
CPU_GROUPS, IO_GROUPS = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/blkio")
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")

# The beginning of the program of each rank; it runs until there is a file `stop`.
STEPS = """
import hashlib, os, sys, time
rank, folder = int(os.environ["RANK"]), sys.argv[1]
def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))
def running():
    return not os.path.exists(folder + "/stop")
"""
HEALTHY = """
data = bytearray(1 << 20)
while running():
    compute(0.01)
    time.sleep(0.05)
    with open(f"{folder}/checkpoint-{rank}", "wb") as file:
        file.write(data)
"""
# A cache that is filled for some seconds, and then stays.
FILLING = """
memory = []
while running():
    compute(0.01)
    time.sleep(0.05)
    if len(memory) < 100:
        memory.append(os.urandom(1 << 12) * 512)
"""
READING = """
with open(f"{folder}/data-{rank}", "wb") as file:
    file.write(os.urandom(1 << 24))
while running():
    compute(0.02)
    with open(f"{folder}/data-{rank}", "rb") as file:
        while file.read(1 << 20):
            time.sleep(0.01)
"""
IMPORTING = """
import importlib
names = ["json", "email.message", "http.client", "sqlite3", "unittest", "numpy", "click", "yaml", "psutil", "mpi4py"]
while running():
    compute(0.02)
    time.sleep(0.1)
    if names:
        importlib.import_module(names.pop())
"""
THROTTLED = """
if rank == 1:
    open(folder + "/cpu/cgroup.procs", "w").write(str(os.getpid()))
while running():
    compute(0.01)
    time.sleep(0 if rank == 1 else 0.05)
"""
# 20 MiB/s by the clock: on a busy machine a leak per step would be a smaller one.
LEAK = """
memory, begun = [], time.time()
while running():
    compute(0.01)
    time.sleep(0.1)
    if rank == 1:
        due = int(20 * (time.time() - begun)) - len(memory)
        memory += [os.urandom(1 << 12) * 256 for _ in range(due)]
"""
NEIGHBOUR = """
while running():
    compute(0.01)
"""
STORAGE = """
if rank == 1:
    open(folder + "/io/cgroup.procs", "w").write(str(os.getpid()))
data = open(folder + "/data", "rb", buffering=0)
while running():
    compute(0.01)
    time.sleep(0.05)
    if rank == 1:
        if not data.read(1 << 18):
            data.seek(0)
        os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
"""
# A file of four times the memory that its cgroup may have, read all over again.
THRASHING = """
import mmap
if rank == 1:
    open(folder + "/memory/cgroup.procs", "w").write(str(os.getpid()))
data, page = mmap.mmap(os.open(folder + "/data", os.O_RDONLY), 0, prot=mmap.PROT_READ), 0
while running():
    compute(0.01)
    time.sleep(0.05)
    for _ in range(4096 if rank == 1 else 0):
        data[page]
        page = (page + 4096 * 61) % len(data)
"""
# More threads than CPUs in rank 1, beside neighbours.
OVERLOAD = """
import threading
for _ in range(3 if rank == 1 else 0):
    threading.Thread(target=lambda: [hashlib.sha256(bytes(1 << 20)) for _ in iter(running, False)]).start()
while running():
    compute(0.01)
"""
# Twice the memory that its cgroup may have, changed all over again. The kernel does not store pages of zeros.
SWAPPING = """
if rank == 1:
    open(folder + "/memory/cgroup.procs", "w").write(str(os.getpid()))
    data, page = bytearray(), 0
    while len(data) < 128 << 20:
        data += os.urandom(1 << 20)
while running():
    compute(0.01)
    time.sleep(0.05)
    for _ in range(256 if rank == 1 else 0):
        data[page] ^= 1
        page = (page + 4096) % len(data)
"""


HEALTHY_PROGRAMS = {"checkpoints": HEALTHY, "fills a cache": FILLING, "reads": READING, "imports": IMPORTING}


class Seed(NamedTuple):
    """A job with a cause of slowness: in rank 1, or with a busy neighbour in both ranks."""

    program: str
    needs: tuple[Path, ...] = ()
    """Folders of cgroups that have to be writable."""
    finding: str = ""
    """The name of the finding; empty: that of the seed."""

    def why_not(self) -> str | None:
        """Return the reason why this machine cannot run it."""
        missing = [path for path in self.needs if not os.access(path, os.W_OK) or os.geteuid()]
        return f"{missing[0]} is not writable" if missing else None


SEEDS = {
    "healthy": Seed(HEALTHY),
    "throttled": Seed(THROTTLED, (CPU_GROUPS / "cpu.cfs_quota_us",)),
    "leak": Seed(LEAK),
    "neighbour": Seed(NEIGHBOUR),
    "swapping": Seed(SWAPPING, (MEMORY_GROUPS / "memory.limit_in_bytes",)),
    "thrashing": Seed(THRASHING, (MEMORY_GROUPS / "memory.limit_in_bytes",), "storage"),
    "overload": Seed(OVERLOAD),
    "storage": Seed(STORAGE, (IO_GROUPS / "blkio.throttle.read_bps_device",)),
}


@contextmanager
def _cgroup(above: Path, link: Path, settings: dict[str, str]) -> Iterator[None]:
    """Make a cgroup, to which a link leads."""
    folder = above / f"ddlrun-seed-{os.getpid()}"
    folder.mkdir()
    try:
        for name, value in settings.items():
            (folder / name).write_text(value)
        link.symlink_to(folder)
        yield
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


@contextmanager
def _surroundings(cause: str, folder: Path) -> Iterator[None]:
    """Make what the program of a seed needs."""
    if cause == "throttled":
        with _cgroup(CPU_GROUPS, folder / "cpu", {"cpu.cfs_quota_us": "2000"}):
            yield
    elif cause in ("neighbour", "overload"):
        code = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
        argv = [sys.executable, "-c", code, str(os.getpid())]
        spinners = [subprocess.Popen(argv) for _ in range(os.cpu_count() or 1)]
        try:
            yield
        finally:
            for spinner in spinners:
                spinner.kill()
                spinner.wait()
    elif cause == "storage":
        (folder / "data").write_bytes(os.urandom(1 << 20) * 16)
        device = os.stat(folder / "data").st_dev
        limit = f"{os.major(device)}:{os.minor(device)} 200000"
        with _cgroup(IO_GROUPS, folder / "io", {"blkio.throttle.read_bps_device": limit}):
            yield
    elif cause == "thrashing":
        _write_uncached(folder / "data", os.urandom(1 << 20) * 64)
        with _cgroup(MEMORY_GROUPS, folder / "memory", {"memory.limit_in_bytes": str(24 << 20)}):
            yield
    elif cause == "swapping":
        settings = {"memory.limit_in_bytes": str(64 << 20)}
        with _swap_space(folder / "swap"), _cgroup(MEMORY_GROUPS, folder / "memory", settings):
            yield
    else:
        yield


def _write_uncached(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _swap_space(path: Path) -> Iterator[None]:
    """Add a file to the swap space of this machine, which uses it where memory is short."""
    path.touch(mode=0o600)
    path.write_bytes(bytes(256 << 20))
    subprocess.run(["mkswap", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run(["swapon", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["swapoff", path], check=True)


def run_seed(cause: str, folder: Path, is_done: Callable[[History], bool]) -> History:
    """Run a seeded job until its samples suffice; return them."""
    (folder / "program.py").write_text(STEPS + SEEDS[cause].program)
    argv = launch_line(OWN, folder, "-np", "2", "--quiet", "--allow-run-as-root", sys.executable)
    history = History()
    reader = MetricsReader(str(folder / "run" / "metrics.jsonl"))

    def suffices() -> bool:
        history.add(reader.read())
        return is_done(history) or job.poll() is not None

    with _surroundings(cause, folder), started([*argv, str(folder / "program.py"), str(folder)]) as job:
        try:
            wait_for(suffices)
        finally:
            (folder / "stop").touch()
            job.wait()
    reader.close()
    return history


def findings_of(history: History) -> set[tuple[str, str]]:
    """Return the causes and ranks of the findings."""
    return {(finding.cause.value, finding.ranks) for finding in diagnose(history)}


def _record(cause: str) -> None:
    """Record the samples of a seeded job: the last ones at the time of its finding, or of 40 s of a healthy job."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        enough = 40.0

        def is_done(history: History) -> bool:
            ages = [samples[-1].age for samples in history.ranks().values()]
            if cause == "healthy":
                return min(ages, default=0.0) > enough
            return cause in {name for name, _ in findings_of(history)}

        history = run_seed(cause, folder, is_done)
        print(cause, [finding.text for finding in diagnose(history)])
        samples = read_samples(str(folder / "run" / "metrics.jsonl"))
    times = sorted({sample.time for sample in samples})[-WINDOW - 2 :]
    kept = [sample for sample in samples if sample.time >= times[0]]
    (SAMPLES / f"{cause}.jsonl").write_text("".join(render_line(sample) for sample in kept))


def _measure(cause: str) -> None:
    """Run a seeded job for up to 20 s; print the age of its ranks when the cause was named, and other findings."""
    others = set[tuple[str, str]]()

    def is_done(history: History) -> bool:
        findings = findings_of(history)
        expected = SEEDS[cause].finding or cause
        others.update(finding for finding in findings if finding[0] != expected)
        ages = [samples[-1].age for samples in history.ranks().values()]
        is_named = any(finding[0] == expected for finding in findings)
        if is_named or max(ages, default=0.0) > 20:
            print(cause, f"{max(ages):.1f} s" if is_named else "NOT NAMED", findings, sorted(others), flush=True)
            return True
        return False

    with TemporaryDirectory() as name:
        run_seed(cause, Path(name), is_done)


def _run_healthy(kind: str, seconds: float) -> None:
    """Run a job without a cause; print each finding when it comes, and the number of diagnoses."""
    named: set[tuple[str, str]] = set()
    diagnoses = with_findings = 0

    def is_done(history: History) -> bool:
        nonlocal named, diagnoses, with_findings
        ages = [samples[-1].age for samples in history.ranks().values()]
        findings = findings_of(history)
        diagnoses, with_findings = diagnoses + 1, with_findings + bool(findings)
        if findings - named:
            print(kind, f"after {max(ages):.0f} s:", [finding.text for finding in diagnose(history)], flush=True)
        named = findings
        return max(ages, default=0.0) > seconds

    SEEDS[kind] = Seed(HEALTHY_PROGRAMS[kind])
    with TemporaryDirectory() as name:
        run_seed(kind, Path(name), is_done)
    print(kind, f"{seconds:.0f} s, {with_findings} of {diagnoses} diagnoses with a finding", flush=True)


def read_samples(path: str) -> list[Sample]:
    """Return the latest samples of a file."""
    reader = MetricsReader(path)
    try:
        return list(reader.read())
    finally:
        reader.close()


def main() -> None:
    """Record samples, or measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.seeded_runs", description="Run jobs that are slow.")
    parser.add_argument("--runs", type=int, metavar="N", help="print when N jobs of each cause are named")
    parser.add_argument("--healthy", type=float, metavar="SECONDS", help="run healthy jobs for so long")
    parser.add_argument("causes", nargs="*", metavar="CAUSE", help=", ".join(SEEDS))
    options = parser.parse_args()
    if options.healthy is not None:
        jobs = [Process(target=_run_healthy, args=(kind, options.healthy)) for kind in HEALTHY_PROGRAMS]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        return
    for cause in options.causes or SEEDS:
        if options.runs is None:
            _record(cause)
        else:
            for _ in range(options.runs):
                _measure(cause)


if __name__ == "__main__":
    main()
