"""`import torch` by 16 ranks on 4 hosts, from a shared file system whose metadata operations are slow.

    python -m tests.bench.imports

The file system is FUSE, and each host has a mount with caches of its own. A metadata operation (lookup, open, readlink,
readdir) takes 1 ms, and all hosts' operations are served one at a time, as by one metadata server. The environment is
that of this Python's torch. `--ship env` copies it to the disk of each host; all these are on one disk here. The one of
the lock file has a small package, and then these packages, as an installer would write them.
"""

import ctypes.util
import importlib.util
import itertools
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.measure import DDLRUN
from tests.bench.options import bench_parser, cannot_run
from tests.cluster.cluster import PATIENCE, Cluster, why_not
from tests.support.wheels import write_wheel

SERVER = Path(__file__).parent / "programs" / "metadata_server.py"
# The state of the servers: the number of operations, and the time of each.
STATE = struct.Struct("QQ")
MICROSECONDS = 1000
RANKS_PER_HOST = 4
# The packages that `import torch` reads, and the one of --smoke.
PACKAGES = {
    "torch": (
        "torch", "torchgen", "functorch", "typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
        "fsspec", "filelock", "numpy", "numpy.libs",
    ),
    "yaml": ("yaml",),
}  # fmt: skip

LOCKED = "env=FILE"
# Make the environment of a lock file in a folder.
MAKE = """
import sys
from ddlrun.ship.lock_file import make_environment, read_lock
make_environment(read_lock(sys.argv[1]), sys.argv[2], print)
"""
LAUNCHES = {
    "shared file system": "",
    "--ship env, the first launch": "env",
    "--ship env, the next launch": "env",
    "--ship env=FILE, the next launch": LOCKED,
}


class Figures(NamedTuple):
    """The result of a launch."""

    operations: int
    """The metadata operations of all hosts."""
    of_ranks: int
    """Those from the start of the first rank on."""
    seconds: float
    """From the start of ddlrun to its end."""
    imported: float
    """The median of the ranks' seconds for the import."""


def main() -> int:
    """Print the table; return the exit code."""
    parser = bench_parser(__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    options = parser.parse_args()
    if importlib.util.find_spec("mfusepy") is None:
        cannot_run("no Python package mfusepy: .venv/bin/pip install mfusepy")
    if ctypes.util.find_library("fuse3") is None:
        cannot_run("no libfuse: sudo apt-get install libfuse3-3")
    if why_not():
        cannot_run(why_not())
    if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
        cannot_run("FUSE file systems cannot be mounted: sudo make bench")
    module, hosts, ranks_per_host = ("yaml", 1, 2) if options.smoke else ("torch", options.hosts, RANKS_PER_HOST)
    with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        storm = Storm(Path(folder), module, hosts, ranks_per_host)
        print(f"import {module}, {ranks_per_host * hosts} ranks; 1 ms per metadata operation")
        print(f"  {'':34} | operations | of the ranks | seconds of the launch | of the import")
        _print_rows(storm, LAUNCHES)
    return 0


def _print_rows(storm: "Storm", launches: Mapping[str, str]) -> None:
    with storm.mounted([*launches.values()]):
        for number, (name, shipped) in enumerate(launches.items()):
            if shipped == LOCKED:
                storm.make_locked()
            figures = storm.launch(number, shipped)
            print(
                f"  {name:34} | {figures.operations:10,} | {figures.of_ranks:12,} | {figures.seconds:21.1f} | "
                f"{figures.imported:.1f}",
                flush=True,
            )


def make_environment(folder: Path, module: str) -> None:
    """Make an environment that has a module of this one, and what the module imports."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    add_packages(folder, module)


def add_packages(folder: Path, module: str) -> None:
    """Add a module of this environment to another one, and what the module imports."""
    own, target = (next(path.glob("lib/python3*/site-packages")) for path in (Path(sys.prefix), folder))
    for name in PACKAGES[module]:
        path = own / name
        if path.is_dir():
            shutil.copytree(path, target / name, copy_function=os.link, symlinks=True)
        elif path.exists():
            shutil.copy2(path, target / name)


class Storm:
    """An environment on a shared file system, and hosts that import from it."""

    _cluster: Cluster

    def __init__(self, folder: Path, module: str, hosts: int, ranks_per_host: int) -> None:
        """Make the environment."""
        self._folder, self._ranks_per_host, self._module = folder, ranks_per_host, module
        self._names = [f"h{number + 1}" for number in range(hosts)]
        self._shared, self._disk, self._state = folder / "shared", folder / "disk", folder / "operations"
        self._script = folder / "script.py"
        self._script.write_text(
            f"import os, time\nbegin = time.monotonic()\n"
            f"before = int.from_bytes(open({str(self._state)!r}, 'rb').read(8), 'little')\nimport {module}\n"
            "print('imported', time.monotonic() - begin, before, flush=True)\n"
        )
        make_environment(folder / "environment", module)
        self._lock = folder / "lock.txt"
        self._lock.write_text(f"demo @ file://{folder}/demo-1.0-py3-none-any.whl\n")
        write_wheel(folder)
        for path in (self._shared, self._disk, folder / "locked", *(folder / name for name in self._names)):
            path.mkdir()

    def make_locked(self) -> None:
        """Make the environment of a lock file on the shared file system, and launch with it once, not through FUSE."""
        cache = f"{self._shared}/ddlrun/environments"
        self._cluster.administer("h1", ["mount", "--bind", str(self._folder / "locked"), str(self._shared)])
        self._cluster.run("h1", [sys.executable, "-c", MAKE, str(self._lock), cache], check=True, timeout=None)
        (environment,) = (path.parents[1] for path in (self._folder / "locked").glob("*/*/*/bin/python"))
        add_packages(environment, self._module)
        self._launch("run.locked", LOCKED)

    def launch(self, number: int, shipped: str) -> Figures:
        """Launch the script with the mounts of a launch, whose caches are empty; return the figures."""
        for name in self._names:
            mount = self._folder / f"mount.{number}.{name}"
            self._cluster.administer(name, ["mount", "--bind", str(mount), str(self._shared)])
        self._state.write_bytes(STATE.pack(0, MICROSECONDS))
        return self._launch(f"run.{number}", shipped)

    def _launch(self, run: str, shipped: str) -> Figures:
        """Launch the script; return the figures."""
        hosts = ",".join(f"{name}:{self._ranks_per_host}" for name in self._names)
        argv = [
            *DDLRUN,
            "launch",
            "--allow-run-as-root",
            "--process-manager",
            "ddlrun",
            "-H",
            hosts,
            "--checks",
            "none",
        ]
        argv += ["--run-dir", str(self._folder / run), "--machine", "local"]
        argv += ["--start-timeout", str(PATIENCE), "--heartbeat", str(PATIENCE), "--output", "no-tag"]
        if shipped:
            argv += ["--ship", f"env={self._lock}" if shipped == LOCKED else shipped, "--ship-dir", str(self._disk)]
        argv += [*([] if shipped == LOCKED else [f"{self._shared}/bin/python"]), str(self._script)]
        environ = {**os.environ, "XDG_CACHE_HOME": str(self._shared)} if shipped == LOCKED else None
        begin = time.monotonic()
        done = self._cluster.run("h1", argv, cwd=self._folder, timeout=None, env=environ)
        seconds = time.monotonic() - begin
        assert done.returncode == 0, done.stderr
        ranks = re.findall(r"imported ([0-9.]+) ([0-9]+)", done.stdout)
        assert len(ranks) == self._ranks_per_host * len(self._names), done.stdout
        operations, _ = STATE.unpack(self._state.read_bytes())
        before = min(int(count) for _, count in ranks)
        return Figures(operations, operations - before, seconds, statistics.median(float(time) for time, _ in ranks))

    @contextmanager
    def mounted(self, launches: Sequence[str]) -> Iterator[None]:
        """Provide hosts with disks of their own, and mounts of the environment for each launch."""
        self._state.write_bytes(STATE.pack(0, 0))
        with ExitStack() as stack:
            for name, (number, shipped) in itertools.product(self._names, enumerate(launches)):
                words = ["locked", "rw"] if shipped == LOCKED else ["environment"]
                stack.enter_context(self._server(self._folder / f"mount.{number}.{name}", *words))
            self._cluster = stack.enter_context(Cluster(len(self._names), 1))
            for name in self._names:
                self._cluster.administer(name, ["mount", "--bind", str(self._folder / name), str(self._disk)])
            yield

    @contextmanager
    def _server(self, mount: Path, root: str, *words: str) -> Iterator[None]:
        """Mount a folder for one host."""
        mount.mkdir()
        files = (SERVER, self._folder / root, mount, self._state)
        with subprocess.Popen([sys.executable, *map(str, files), *words]) as process:
            try:
                end = time.monotonic() + PATIENCE
                while not os.path.ismount(mount):
                    assert process.poll() is None
                    assert time.monotonic() < end
                    time.sleep(0.05)
                yield
            finally:
                subprocess.run(["umount", "--lazy", str(mount)], check=False)  # which ends the server


if __name__ == "__main__":
    sys.exit(main())
