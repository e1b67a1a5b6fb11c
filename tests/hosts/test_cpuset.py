"""What a cgroup forbids is not offered (cpusets of both versions), and whom it kills is told (memory)."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import launch_line

pytestmark = pytest.mark.extra

CPUSETS = Path("/sys/fs/cgroup/cpuset")
SHOW = [sys.executable, "-m", "ddlrun", "probe", "--json"]


@pytest.fixture
def cpuset() -> Iterator[Path]:
    if not (CPUSETS / "cpuset.cpus").exists():
        pytest.skip("this machine has no cpuset of cgroups 1")
    folder = CPUSETS / f"ddlrun-{os.getpid()}"
    folder.mkdir()
    (folder / "cpuset.cpus").write_text(str(max(os.sched_getaffinity(0))))
    (folder / "cpuset.mems").write_text((CPUSETS / "cpuset.mems").read_text())
    yield folder
    folder.rmdir()


def test_cgroups_1(cpuset: Path, mpirun: str, tmp_path: Path) -> None:
    inside = ["sh", "-c", 'echo $$ >"$0/tasks" && exec "$@"', str(cpuset)]
    cpu = max(os.sched_getaffinity(0))
    run = launch_line(mpirun, tmp_path, "--output", "no-tag")
    words = ["--ranks-per-host", "core", sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"]
    done = subprocess.run([*inside, *run, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{{{cpu}}}\n"), done.stderr
    both = subprocess.run(
        [*inside, *run, "-np", "2", "--strict-binding", "true"], capture_output=True, text=True, check=False
    )
    assert "localhost has 1 usable core;" in both.stderr


def test_cgroups_2() -> None:
    # A cpuset of cgroups 1 comes first, for ddlrun as for hwloc.
    mount = "umount -lR /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && mount -t tmpfs none /sys/fs/cgroup"
    limits = "echo cpuset >/sys/fs/cgroup/cgroup.controllers && echo 1 >/sys/fs/cgroup/cpuset.cpus.effective"
    limits += " && echo 1073741824 >/sys/fs/cgroup/memory.max"
    script = f'{mount} && {limits} && exec "$@"'
    if not any(line.startswith("0::") for line in Path("/proc/self/cgroup").read_text().splitlines()):
        pytest.skip("this kernel has no cgroups 2")
    argv = ["unshare", "-m", "sh", "-c", script, "sh", *SHOW]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (machine,) = json.loads(done.stdout)["machines"]
    assert [[core["pus"] for core in package] for package in machine["packages"]] == [[[1]]]
    assert any(note.startswith("a cgroup allows 1.0 of ") for note in machine["notes"])


MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def memory() -> Iterator[Path]:
    if not (MEMORY / "memory.oom_control").exists():
        pytest.skip("this machine has no memory controller of cgroups 1")
    folder = MEMORY / f"ddlrun-{os.getpid()}"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(300 << 20))
    yield folder
    folder.rmdir()


def test_a_rank_that_the_kernel_kills_for_memory(memory: Path, mpirun: str, tmp_path: Path) -> None:
    inside = ["sh", "-c", 'echo $$ >"$0/tasks" && exec "$@"', str(memory)]
    run = launch_line(mpirun, tmp_path, "-np", "1")
    eat = "import time; print('up', flush=True); time.sleep(0.2); eaten = bytearray(1 << 30)"
    argv = [*inside, *run, sys.executable, "-c", eat]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 137, done.stderr
    assert "killed by SIGKILL" in done.stderr
    assert "localhost: a cgroup allows 0.3 of " in done.stderr
    assert "because: out of memory: the cgroup's oom_kill count rose by 1" in done.stderr
