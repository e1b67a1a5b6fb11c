"""Ranks in containers of real runtimes: Podman, Charliecloud and bubblewrap, with an image made from this machine."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from ddlrun.keeper.binding import parse_binding
from tests.conftest import MPIRUNS, OWN, launch_line, mpi_library
from tests.support import needs
from tests.support.images import build_root
from tests.support.processes import listed, started
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.extra, pytest.mark.xdist_group("containers")]
RANK = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
print(rank, sorted(os.sched_getaffinity(0)), os.getcwd(), os.path.exists("/in-the-image"), flush=True)
open(f"{rank}.printed", "w").close()
while not os.path.exists(f"{1 - rank}.printed"):
    time.sleep(0.05)
if sys.argv[1:] == ["wait"]:
    time.sleep(900)
if rank == 1 and sys.argv[1:]:
    os.kill(os.getpid(), int(sys.argv[1]))
sys.exit(7 * rank)
"""
ALLREDUCE = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1), flush=True)"
PROGRAMS = {"podman": "podman", "charliecloud": "ch-run", "bwrap": "bwrap"}
LIBRARIES = ("lib/libmpi.so.40", "mpich/lib/libmpi.so.12")


class Containers(NamedTuple):
    """An image, and a folder for the files of a test."""

    image: Path
    folder: Path

    def line(self, runtime: str, manager: str, *words: str) -> list[str]:
        """Return the command line that launches words in a container, with two ranks."""
        options = ["--container", str(self.image), "--container-runtime", runtime, "-np", "2", "--bind", "core"]
        return [*launch_line(manager, self.folder, *options, "--quiet"), *words]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the folder of an image, with the libraries of the MPIs that are installed here."""
    libraries = [Path(sys.prefix) / name for name in LIBRARIES]
    root = build_root(tmp_path_factory.mktemp("image") / "root", *(file for file in libraries if file.exists()))
    (root / "in-the-image").touch()
    return root


@pytest.fixture
def containers(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Containers:
    """Provide the image to launches from the test's own folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank.py").write_text(RANK)
    if shutil.which("runc", path=needs.SYSTEM_PATH):  # crun refuses hosts with both versions of cgroups
        (tmp_path / "containers.conf").write_text('[engine]\nruntime = "runc"\n')
        monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    return Containers(image, tmp_path)


def require(runtime: str) -> None:
    """Skip the test without the runtime; Podman is tested as root."""
    package = {"podman": "podman runc", "bwrap": "bubblewrap"}.get(runtime, runtime)
    needs.program(PROGRAMS[runtime], package)
    if runtime == "podman":
        needs.root()


def mounts() -> list[str]:
    """Return the mounts of this machine's containers."""
    return [line for line in Path("/proc/mounts").read_text().splitlines() if "/containers/storage/overlay-" in line]


def podman_containers(word: str) -> str:
    """Return the containers of Podman with a word in their names."""
    words = ["podman", "ps", "--all", "--quiet", f"--filter=name={word}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("runtime", "code"), [("podman", 7), ("charliecloud", 139), ("bwrap", 139), ("podman", 139)])
def test_ranks_in_containers(containers: Containers, runtime: str, code: int) -> None:
    require(runtime)
    words = ["rank.py", "11"] if code == 139 else ["rank.py"]
    done = subprocess.run(containers.line(runtime, OWN, *words), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("signal 11" in done.stderr or "SIGSEGV" in done.stderr) == (code == 139), done.stderr
    variables = json.loads((containers.folder / "run/plan.json").read_text())["variables"]
    for rank in range(2):
        planned = parse_binding(variables, rank, rank, 2)
        assert planned is not None
        assert f"{rank} {sorted(planned.cpus)} {containers.folder} True" in done.stdout, done.stdout


def find_process(run_id: str, victim: str) -> psutil.Process:
    """Return the guard or the keeper of rank 0, whose program is Podman."""
    name = f"--name=ddlrun-{run_id}-0"
    processes = psutil.process_iter(["name", "cmdline"])
    (program,) = [each for each in processes if each.info["name"] == "podman" and name in each.info["cmdline"]]
    return program.parents()[("guard", "keeper").index(victim)]


@pytest.mark.parametrize(
    ("runtime", "victim"),
    [*((runtime, "ddlrun") for runtime in PROGRAMS), ("podman", "guard"), ("podman", "keeper")],
)
def test_a_kill_leaves_nothing(containers: Containers, runtime: str, victim: str) -> None:
    require(runtime)
    before = mounts()
    output = containers.folder / "output"
    with output.open("w") as file, started(containers.line(runtime, OWN, "rank.py", "wait"), stdout=file) as launch:
        wait_until(lambda: output.read_text().count("True\n") == 2, output.read_text)
        run_id = json.loads((containers.folder / "run/plan.json").read_text())["run_id"]
        (launch if victim == "ddlrun" else find_process(run_id, victim)).kill()
    wait_until(lambda: not listed(str(containers.folder)), lambda: listed(str(containers.folder)))
    wait_until(lambda: mounts() == before, mounts)
    assert runtime != "podman" or not podman_containers(run_id)


@pytest.mark.parametrize(("runtime", "manager"), [("podman", "mpich"), ("bwrap", MPIRUNS[5])])
def test_mpi_in_containers(containers: Containers, runtime: str, manager: str) -> None:
    require(runtime)
    needs.package("mpi4py")
    if manager == "mpich" and not mpi_library(manager).exists():
        needs.skip("no MPICH", "make mpis")
    mounted = [f"--volume={sys.prefix}:{sys.prefix}"] if runtime == "podman" else ["--ro-bind", sys.prefix, sys.prefix]
    words = ["--container-args", " ".join(mounted), sys.executable, "-c", ALLREDUCE]
    done = subprocess.run(containers.line(runtime, manager, *words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1::2] == ["3", "3"]
