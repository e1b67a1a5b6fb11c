"""Ranks that see a smaller world than the job: the keeper's look at real MPI libraries, and the hook's note."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ddlrun
from ddlrun.keeper.singleton import CLIENT_SECONDS, SingletonWatch, WorldFinding, find_pythons, judge
from tests.support import needs

HOOK = Path(ddlrun.__file__).parent / "keeper" / "hook"
STARTED_BY = "a process manager (/opt/bin/mpirun)"
# The variables by which MPI finds the other ranks are those of no process manager.
OTHER_MANAGERS = ("OMPI_", "PMI", "MPI4PY", "SLURM_", "TORCHELASTIC", "HOROVOD_")
# Loads mpi4py, which initializes MPI only where that cannot wait for a process manager.
MPI4PY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"
HOROVOD = "import horovod.torch"
HELD = "\nimport sys\nprint('up', flush=True)\nsys.stdin.read()"


@contextmanager
def held(code: str, *enter: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Provide a rank's program that has run a line of Python, and waits."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OTHER_MANAGERS)}
    argv = [*enter, sys.executable, "-c", code + HELD]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env={**inherited, **environ}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def look(process: subprocess.Popen[str]) -> WorldFinding | None:
    findings: list[WorldFinding] = []
    SingletonWatch(process.pid, 4, 0.0, findings.append).on_time(0.0)
    return findings[0] if findings else None


@pytest.fixture(autouse=True)
def keepers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDLRUN_STARTED_BY", STARTED_BY)
    monkeypatch.setenv("DDLRUN_PMI", "pmix5")


def library_of(mpi: str) -> str:
    library = Path(sys.prefix, mpi, "lib", "libmpi.so.12")
    if not library.exists():
        needs.skip(f"no {mpi}", "make mpis")
    return str(library.resolve())


def test_open_mpi_that_another_manager_started() -> None:
    needs.package("mpi4py")
    with held(MPI4PY) as process:
        finding = look(process)
    assert finding is not None
    assert finding.ends
    assert finding.text.startswith("mpi4py uses Open MPI (/")
    alone = f"), but {STARTED_BY} started it: it would see 1 process, the job has 4; pip install"
    assert alone in finding.text or "or --mpirun" in finding.text


@pytest.mark.extra
@pytest.mark.parametrize("mpi", ["mpich", "impi-rt"])
def test_mpich_and_intel_mpi_under_the_mpirun_of_open_mpi(mpi: str) -> None:
    needs.package("mpi4py")
    library = library_of(mpi)
    with held(MPI4PY, MPI4PY_LIBMPI=library, PMIX_RANK="3") as process:
        finding = look(process)
    assert finding is not None
    assert finding.ends
    assert finding.text == (
        f"mpi4py uses MPICH or Intel MPI ({library}), but {STARTED_BY} started it: it would see 1 process, the job has "
        "4; unset MPI4PY_LIBMPI, or use --process-manager ddlrun"
    )


@pytest.mark.parametrize("code", [MPI4PY, pytest.param(HOROVOD, marks=pytest.mark.extra)], ids=["mpi4py", "horovod"])
@pytest.mark.parametrize(("variable", "ends"), [("PMIX_RANK", False), ("PMI_RANK", True)])
def test_the_variables_of_the_process_count(code: str, variable: str, *, ends: bool) -> None:
    needs.package(code.split()[1].strip(";").partition(".")[0])
    with held(code, **{variable: "3"}) as process:
        finding = look(process)
    assert (finding is not None and finding.ends) is ends


def test_variables_of_any_length_are_read() -> None:
    needs.package("mpi4py")
    with held(MPI4PY, A="x" * 100_000, B="y" * 100_000, PMIX_RANK="3") as process:
        assert look(process) is None


def test_a_shell_before_the_program_is_no_obstacle() -> None:
    needs.package("mpi4py")
    with held(MPI4PY, "sh", "-c", '"$@"; true', "sh") as process:
        assert find_pythons(process.pid) not in ([], [process.pid])
        finding = look(process)
    assert finding is not None
    assert finding.ends


def test_processes_that_a_rank_starts_are_left_alone() -> None:
    """A rank may start programs of another MPI, each of which is alone on purpose."""
    needs.package("mpi4py")
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {MPI4PY + HELD!r}])"
    with held(child) as process:
        assert look(process) is None


def test_a_program_without_mpi_is_looked_at_less_and_less() -> None:
    intervals = []
    with held("pass") as process:
        watch = SingletonWatch(process.pid, 4, 100.0, lambda finding: pytest.fail(finding.text))
        for now in (100.1, 110.0, 9999.0):
            watch.on_time(now)
            intervals.append(round(watch.deadline() - now, 3))
    assert intervals == [0.1, 2, 60]


MAPS = "7f00-7f01 r-xp 0 08:01 7   /v/mpi4py/MPI.so\n7f02-7f03 r--p 0 08:01 8   /opt/mpi/lib/libmpi.so.40.30\n"
LATE = "7f00 r /opt/mpi/lib/libopen-rte.so.40\n"


def test_srun_with_another_pmi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI 4 may be built with PMI-2, and loads Slurm's client in MPI_Init."""
    monkeypatch.setenv("DDLRUN_PMI", "slurm")
    environ, maps = {"SLURM_MPI_TYPE": "pmi2", "PMI_RANK": "3"}, MAPS
    found = [
        judge("mpi4py", text, environ, 4) for text in (maps, maps + LATE, maps + LATE + " /usr/lib/libpmi2.so.0\n")
    ]
    assert [finding and (finding.ends, finding.seconds) for finding in found] == [
        (True, 0), (True, CLIENT_SECONDS), (False, 0),
    ]  # fmt: skip
    alone = "it would see 1 process, the job has 4; use --mpi-args --mpi=pmix"
    text = f"mpi4py uses Open MPI (/opt/mpi/lib/libmpi.so.40.30), but {STARTED_BY} started it with --mpi=pmi2: {alone}"
    assert found[0] is not None
    assert found[0].text == text


def test_open_mpi_4_under_open_mpi_5() -> None:
    finding = judge("mpi4py", MAPS + LATE, {"PMIX_RANK": "3"}, 4)
    assert finding is not None
    assert (finding.ends, ": MPI_Init may fail; pip install" in finding.text) == (False, True)


@pytest.mark.parametrize(
    ("environ", "said"), [({}, True), ({"HOROVOD_SIZE": "4"}, False), ({"HOROVOD_CONTROLLER": "gloo"}, True)]
)
def test_horovod_over_gloo_needs_variables(environ: dict[str, str], *, said: bool) -> None:
    finding = judge("Horovod", "7f00 r /v/horovod/torch/mpi_lib_v2.so\n", environ, 4)
    assert finding is not None
    assert (finding.ends, "HOROVOD_SIZE is not set" in finding.text) == (False, said)


def run_rank(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script as rank 3 of 4, with the start-up hook."""
    own = {"PYTHONPATH": f"{HOOK}", "DDLRUN_SIZE": "4", "RANK": "3"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OTHER_MANAGERS)}
    argv = [sys.executable, "-c", script]
    return subprocess.run(argv, env={**inherited, **own, **environ}, capture_output=True, text=True, check=False)


TORCH = """
import os, torch.distributed as dist
for name in ("TORCHELASTIC_USE_AGENT_STORE", "RANK"):  # the worlds of a torchrun are no surprise
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    os.environ[name] = "3"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
if os.fork() == 0:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    os._exit(0)
os.wait()
print(dist.init_process_group.__name__)
"""


@pytest.mark.extra
@pytest.mark.parametrize(("duties", "count"), [("world", 1), ("exit,backend,stacks", 0)])
def test_a_small_world_of_pytorch_gets_a_note(duties: str, count: int) -> None:
    needs.package("torch")
    done = run_rank(TORCH, DDLRUN_HOOK=duties)
    note = "ddlrun: rank 3: PyTorch sees 1 of the job's 4 processes: the script says so"
    assert [line for line in done.stderr.splitlines() if line.startswith("ddlrun: ")] == [note] * count, done.stderr
    assert (done.returncode, done.stdout) == (0, "init_process_group\n")


DUTIES = """
import os, sys, signal
print(*sorted(name for name in sys.modules if name.startswith("ddlrun_")), sys.excepthook is not sys.__excepthook__,
      os.environ.get("PYTHONPATH"), *[finder for finder in sys.meta_path if "Torch" in str(finder)][1:])
"""


@pytest.mark.parametrize(
    ("duties", "shown"),
    [("exit", "ddlrun_exit True None"), ("stacks,backend", "ddlrun_stacks False None"), ("world", "False None")],
)
def test_duties_are_chosen_by_name(duties: str, shown: str) -> None:
    done = run_rank(DUTIES, DDLRUN_HOOK=duties)
    assert (done.stdout.strip(), done.stderr) == (shown, "")
