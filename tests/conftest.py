"""Fixtures that several test files share, among them the two major versions of Open MPI."""

import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest

import tests.cluster.grid_engine
import tests.cluster.slurm
from tests.cluster.cluster import why_not
from tests.cluster.grid_engine import GridEngineCluster
from tests.cluster.slurm import SlurmCluster
from tests.support import needs
from tests.support.cpu_group import own_cpu_group

# Both are wheels: 5.0 beside the tests' Python, 4.1 in an environment of its own inside. `make test` installs both.
MPIRUNS = {
    4: os.environ.get("MPIRUN4", str(Path(sys.prefix) / "openmpi4/bin/mpirun")),
    5: os.environ.get("MPIRUN5", str(Path(sys.prefix) / "bin/mpirun")),
}
# 6 has no wheel yet. Tests of 5 run with the one that MPIRUN6 names, too.
if "MPIRUN6" in os.environ:
    MPIRUNS[6] = os.environ["MPIRUN6"]

# ddlrun's own process manager, in place of an mpirun: for ranks without an MPI, and with those of `make mpis`.
OWN = "ddlrun"
OWN_MPIS = ("mpich", "impi-rt")
SRUN = "srun"
# The numbers in place of a major version of Open MPI.
OWN_MAJOR = 0
OWN_MANAGERS = {OWN_MAJOR: OWN, -1: "mpich", -2: "impi-rt"}

# Marks of all tests in a folder. Ranks that poll keep all cores busy: two such tests at once take many times as long as
# one after the other, so all of them run in one process. Other test files are distributed one by one.
HANGS = "tests/hangs/test_hangs.py"
FOLDER_MARKS = {
    "frameworks": [pytest.mark.busy, pytest.mark.extra],
    "hangs": [pytest.mark.xdist_group(HANGS)],  # several ranks of PyTorch each, which seldom poll
    "hosts": [pytest.mark.skipif(bool(why_not()), reason=why_not())],
    "schedulers": [pytest.mark.extra],
}

# The groups that take longest, in the order in which --rest starts them: no process shall wait for one at the end.
LONGEST = ("busy", "tests/hosts/test_faults.py", HANGS, "tests/ddl/test_torch_backend.py", "tests/docs/test_hosts.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with which `make test-all` runs what `make test` has left out."""
    parser.addoption("--rest", action="store_true", help="run extra tests, and those that `make test` has skipped")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the kernel's autogroup from starving processes; xdist's workers inherit the cgroup."""
    if not hasattr(config, "workerinput"):
        stack = ExitStack()
        stack.enter_context(own_cpu_group())
        config.add_cleanup(stack.close)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and group them for `--dist loadgroup`: by file, and all busy tests together."""
    if "EVERY_MPI" not in os.environ:
        items[:] = [item for item in items if has_major_of_its_marks(item)]
    for item in items:
        for mark in FOLDER_MARKS.get(item.path.parent.name, []):
            item.add_marker(mark)
        if item.path.parent.name == "ddl" and "mpirun" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.busy)
        file = item.nodeid.partition("::")[0]
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("busy" if item.get_closest_marker("busy") else file))
    if config.getoption("rest"):
        skipped = config.cache.get(SKIPPED, None)
        if skipped is None:
            raise pytest.UsageError("--rest: `make test` has not been run here")
        items[:] = [
            item
            for item in items
            if item.get_closest_marker("extra") or {item.nodeid, item.nodeid.partition("::")[0]} & {*skipped}
        ]
        items.sort(key=place_of_group)


@pytest.fixture(scope="session", autouse=True)
def as_root() -> None:
    """Allow tests that run as root to start jobs, as in a container."""
    os.environ.update(dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"))


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> None:
    """Let signals end the programs of tests, also where nohup or a background shell has had them ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def whole_lines() -> None:
    """Let print() of test programs write a line at once: mpirun mixes parts of lines from different ranks."""
    os.environ.pop("PYTHONUNBUFFERED", None)


@pytest.fixture(scope="session", autouse=True)
def compiled_modules() -> None:
    """Let programs of tests store what they compile: the modules of PyTorch alone take 3 s to compile at each start."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def own_variables() -> None:
    """Keep the variable of the tests out of programs: ddlrun prints a note on DDLRUN_ variables of no option."""
    os.environ.pop("DDLRUN_CAPTURES", None)


# No test depends on its duration.
hypothesis.settings.register_profile("patient", deadline=None, max_examples=50)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=20_000)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def session_folders() -> Iterator[None]:
    """Give the tests their own folders for sessions and runs.

    A killed mpirun leaves its session folder behind, and Open MPI 5.0 fails on an old one.
    """
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="ddlt") as folder, tempfile.TemporaryDirectory(prefix="ddls") as state:
        # Runs of tests stay out of the user's registry, and the user's config file out of the tests.
        os.environ |= {"TMPDIR": folder, "XDG_STATE_HOME": state, "XDG_CONFIG_HOME": state}
        yield
    for name in ("TMPDIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        os.environ.pop(name)
        os.environ |= {name: before[name]} if name in before else {}


@pytest.fixture(scope="session", autouse=True)
def own_shared_memory() -> Iterator[None]:
    """Remove the file of Open MPI, which doctests import: 5.0 leaves one per process that has no launcher."""
    yield
    for path in set(re.findall(r"/dev/shm/sm_segment\..*", Path("/proc/self/maps").read_text())):  # noqa: S108 - its own choice
        Path(path).unlink(missing_ok=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with each major version of Open MPI, or with those of its `openmpi` marker.

    A test with the marker `own` also runs with ddlrun's own process manager, in `make test` only with `quick`. With
    EVERY_MPI, all tests run with all of them.
    """
    parametrized = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "major" in metafunc.fixturenames and not any("major" in names for names in parametrized):
        every = "EVERY_MPI" in os.environ
        marker = metafunc.definition.get_closest_marker("openmpi") if not every else None
        numbers = (
            sorted(MPIRUNS) if marker is None else [*marker.args, *({6} & MPIRUNS.keys() if 5 in marker.args else ())]
        )
        values = [pytest.param(number, id=f"openmpi{number}") for number in numbers]
        own = metafunc.definition.get_closest_marker("own")
        if every:
            values += [pytest.param(number, id=manager_id(number)) for number in OWN_MANAGERS]
        elif own is not None:
            marks = () if own.kwargs.get("quick") else pytest.mark.extra
            values.append(pytest.param(OWN_MAJOR, id=manager_id(OWN_MAJOR), marks=marks))
        metafunc.parametrize("major", values, indirect=True)


def place_of_group(item: pytest.Item) -> int:
    """Return the place of an item's group in LONGEST, or one after all of them."""
    group = next(mark.args[0] for mark in item.iter_markers("xdist_group"))
    return LONGEST.index(group) if group in LONGEST else len(LONGEST)


def has_major_of_its_marks(item: pytest.Item) -> bool:
    """Return False if a parameter's mark `openmpi` names other majors than the item's."""
    callspec = getattr(item, "callspec", None)
    major = callspec.params.get("major") if callspec else None
    marks = [mark.args for mark in item.own_markers if mark.name == "openmpi"]
    return major not in MPIRUNS or all(min(major, 5) in args for args in marks)


def manager_id(major: int) -> str:
    """Return the name of an mpirun, or of what is in its place, in the names of tests."""
    if major in MPIRUNS:
        return f"openmpi{major}"
    return OWN_MANAGERS[major].replace(OWN, "without-mpi")


@pytest.fixture
def major(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def mpirun(major: int) -> str:
    if major in OWN_MANAGERS:
        if OWN_MANAGERS[major] in OWN_MPIS and not mpi_library(OWN_MANAGERS[major]).exists():
            needs.skip(f"no {OWN_MANAGERS[major]}", "make mpis")
        return OWN_MANAGERS[major]
    path = MPIRUNS[major]
    if shutil.which(path) is None:
        pytest.fail(f"no Open MPI {major} at {path}: `make test` installs both majors")
    return path


def need_horovod() -> None:
    """Fail if Horovod is missing, or has no native library."""
    spec = importlib.util.find_spec("horovod")
    if spec is None or not [*Path(str(spec.origin)).parent.glob("torch/mpi_lib_v2*.so")]:
        pytest.fail("no Horovod with its library for PyTorch: `make test` builds Horovod (make horovod)")


def launch_line(mpirun: str, folder: Path, *options: str) -> list[str]:
    """Return the beginning of a launch command line, with the run folder inside `folder`."""
    program = [sys.executable, "-m", "ddlrun", "launch"]
    # A busy machine may give a process no time for longer than the defaults of 30 s.
    patient = ["--heartbeat", "300", "--start-timeout", "300"]
    return [*program, *manager_options(mpirun), "--run-dir", f"{folder}/run", *patient, *options]


def manager_options(mpirun: str) -> list[str]:
    """Return the options that choose an mpirun, ddlrun's own process manager with an MPI or without, or Slurm's."""
    if mpirun in OWN_MPIS:
        return ["--process-manager", OWN, "-x", f"MPI4PY_LIBMPI={mpi_library(mpirun)}"]
    return ["--process-manager", mpirun] if mpirun in (OWN, SRUN) else ["--mpirun", mpirun]


def mpi_library(name: str) -> Path:
    """Return the library of an MPI that `make mpis` installs."""
    return Path(sys.prefix) / name / "lib/libmpi.so.12"


@pytest.fixture(scope="session")
def slurm_hosts() -> Iterator[SlurmCluster]:
    """Provide four hosts in two racks with a real Slurm."""
    if reason := tests.cluster.slurm.why_not():
        pytest.skip(reason)
    with SlurmCluster(hosts_per_rack=2, racks=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def sge_hosts() -> Iterator[GridEngineCluster]:
    """Provide two hosts with a real Grid Engine."""
    if reason := tests.cluster.grid_engine.why_not():
        pytest.skip(reason)
    with GridEngineCluster(hosts_per_rack=2, racks=1) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_hosts: SlurmCluster) -> Iterator[SlurmCluster]:
    """Provide the hosts with Slurm without jobs of other tests."""
    yield slurm_hosts
    slurm_hosts.clear()


@pytest.fixture
def sge(sge_hosts: GridEngineCluster) -> Iterator[GridEngineCluster]:
    """Provide the hosts with Grid Engine without jobs of other tests."""
    yield sge_hosts
    sge_hosts.clear()


# Outputs of real machines, which are beside the project, not part of it.
CAPTURES = Path(os.environ.get("DDLRUN_CAPTURES", Path(__file__).parents[2] / "shared" / "captures"))


@pytest.fixture(scope="session")
def capture() -> Callable[[str], Path]:
    """Return a function from the name of a real machine's output to its path; it skips the test where there is none."""

    def find(name: str) -> Path:
        if not (CAPTURES / name).exists():
            pytest.skip("no captured outputs of real machines: set DDLRUN_CAPTURES to their folder")
        return CAPTURES / name

    return find


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail where a test module cannot be imported, which pytest would take for a module without tests.

    That comes from --doctest-ignore-import-errors, which is for modules that need PyTorch.
    """
    report = yield
    needs_torch = collector.path.parent.name == "ddl" and importlib.util.find_spec("torch") is None
    is_test = collector.path.name.startswith("test_") and not needs_torch
    if report.skipped and is_test and UNIMPORTED in str(report.longrepr):
        report.outcome = "failed"
    return report


# The key in pytest's cache of the tests and modules that `make test` has skipped.
SKIPPED = "ddlrun/skipped"
# The end that xdist adds to the name of a test: its group.
GROUP = re.compile(r"@(busy|[^@]*\.py)$")
# pytest's text where it cannot import a module for its doctests, and the remedy.
UNIMPORTED = "unable to import module"
DOCTESTS = "doctests of modules for PyTorch: .venv/bin/pip install torch==2.13.0"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a table of what the skipped tests need, and the command that brings it."""
    skipped = terminalreporter.stats.get("skipped", [])
    texts = (str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    reasons = Counter(DOCTESTS if text.startswith(UNIMPORTED) else text for text in texts)
    rows = [(str(number), *reason.partition(": ")[::2]) for reason, number in sorted(reasons.items())]
    if rows:
        header = ("tests", "skipped because", "command that brings it")
        widths = [max(len(row[column]) for row in (header, *rows)) for column in range(2)]
        terminalreporter.section("tests that were skipped")
        for number, reason, command in (header, *rows):
            terminalreporter.line(f"{number:>{widths[0]}}  {reason:{widths[1]}}  {command}".rstrip())
    if config.getoption("markexpr") == "not extra":
        config.cache.set(SKIPPED, sorted({GROUP.sub("", report.nodeid) for report in skipped}))
        terminalreporter.line("Tests marked `extra` take long or need more: `make test-all` runs them.")
