"""MPICH and Intel MPI without their mpiexec: ddlrun's agents serve PMI-1."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.cluster.two_hosts import TwoHosts
from tests.support import needs
from tests.support.pmi_ranks import run_ranks
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.extra, pytest.mark.busy]
ROOT = Path(__file__).parents[2]
RANKS = str(Path(__file__).with_name("pmi_ranks.py"))
# The packages of PyPI.
LIBRARIES = ("mpich", "impi-rt")
LAUNCH = (sys.executable, "-m", "ddlrun", "launch", "--process-manager")


@pytest.fixture(params=LIBRARIES)
def environ(request: pytest.FixtureRequest) -> dict[str, str]:
    """Provide the variables with which mpi4py loads an MPI library."""
    folder = Path(sys.prefix) / request.param
    library = folder / "lib/libmpi.so.12"
    if not (folder / "done").exists():
        needs.skip(f"no {request.param}", "make mpis")
    return {"MPI4PY_LIBMPI": str(library), "PYTHONPATH": str(ROOT)}


def launch(
    environ: dict[str, str], folder: Path, *words: str, enter: Sequence[str] = (), manager: str = "ddlrun"
) -> tuple[int, list[str], str]:
    """Run a launch; return its exit code, its lines of output, and its errors."""
    patient = ("--heartbeat", "300", "--start-timeout", "300", "--run-dir", f"{folder}/run")
    line = [*LAUNCH, manager, "--output", "no-tag", *patient, *words]
    variables = [f"{name}={value}" for name, value in environ.items()]
    done = subprocess.run(
        [*enter, "env", *variables, *line], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


def test_ranks_find_each_other_and_their_hosts(environ: dict[str, str], tmp_path: Path) -> None:
    hosts = [0, 1, 0]
    ended = run_ranks([sys.executable, RANKS], hosts, environ, tmp_path)
    assert (ended.codes, ended.aborts, ended.notes) == ([0] * len(hosts), [], []), ended.output
    lines = [line.split() for line in sorted(ended.output.splitlines())]
    total = sum(range(len(hosts) + 1))
    assert [(line[0], line[2], line[3]) for line in lines] == [
        (str(rank), str(total), str(hosts.count(host))) for rank, host in enumerate(hosts)
    ]
    assert len({line[4] for line in lines}) == 1
    assert {line[5] for line in lines} == {"1"}


# Each rank trains until it is ended.
TRAIN = "from mpi4py import MPI; import time; print(MPI.COMM_WORLD.Get_size(), flush=True); time.sleep(10000)"


@pytest.mark.parametrize("environ", ["impi-rt"], indirect=True)  # MPICH ends by itself
def test_a_rank_that_would_train_by_itself_is_ended(environ: dict[str, str], tmp_path: Path) -> None:
    script = [sys.executable, "-c", TRAIN]
    code, _, errors = launch(environ, tmp_path, "-np", "2", *script, manager="openmpi")
    assert code == 5, errors
    library = environ["MPI4PY_LIBMPI"]
    assert f"note: MPI4PY_LIBMPI={library}: ranks that import mpi4py end" in errors
    assert f"because: mpi4py uses MPICH or Intel MPI ({library}), but Open MPI " in errors
    assert "it would see 1 process, the job has 2; unset MPI4PY_LIBMPI, or use --process-manager ddlrun" in errors


def test_open_mpi_without_its_mpirun(tmp_path: Path) -> None:
    code, _, errors = launch({}, tmp_path, "-np", "2", "sh", "-c", f'"{sys.executable}" -c "{TRAIN}"; true')
    assert code == 5, errors
    assert "because: mpi4py uses Open MPI (" in errors
    assert "it would see 1 process, the job has 2; use --process-manager openmpi" in errors


def test_an_abort_ends_the_job_with_its_code(environ: dict[str, str], tmp_path: Path) -> None:
    code, _, errors = launch(environ, tmp_path, "-np", "2", RANKS, "abort", manager="auto")
    assert code == 7, errors
    assert "failed: rank 1 on" in errors
    assert "because: it called MPI_Abort with code 7" in errors


# What MPICH sends in MPI_Abort, after which Python goes on.
ABORT = r"import os, sys; os.write(int(os.environ['PMI_FD']), b'cmd=abort exitcode=9\n'); sys.exit(1)"


def test_an_abort_counts_where_the_program_ends_before_it_is_killed(tmp_path: Path) -> None:
    code, _, errors = launch({}, tmp_path, "-np", "1", sys.executable, "-c", ABORT)
    assert (code, "because: it called MPI_Abort with code 9" in errors) == (9, True), errors


@pytest.mark.parametrize("environ", ["mpich"], indirect=True)  # Intel MPI removes its files at once
def test_killed_ranks_leave_no_shared_memory(environ: dict[str, str], tmp_path: Path) -> None:
    code, output, errors = launch(environ, tmp_path, "-np", "2", RANKS, "kill")
    assert code == 128 + signal.SIGKILL, errors
    (file,) = {*output}
    assert not Path(file).exists()


@pytest.mark.parametrize("environ", ["mpich"], indirect=True)
def test_a_killed_keeper_leaves_no_shared_memory(environ: dict[str, str]) -> None:
    line = [
        *LAUNCH,
        "ddlrun",
        "--output",
        "no-tag",
        "--heartbeat",
        "300",
        "--timeout",
        "300",
        "-np",
        "1",
        RANKS,
        "stay",
    ]
    with subprocess.Popen(line, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        file = Path(job.stdout.readline().strip())
        assert file.exists()
        (rank,) = (child for child in psutil.Process(job.pid).children(recursive=True) if RANKS in child.cmdline()[1:2])
        keeper = rank.parents()[1]
        keeper.kill()
    assert not file.exists()


@pytest.mark.parametrize("environ", ["mpich"], indirect=True)  # Intel MPI crashes before it asks its process manager
def test_spawn_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    code, output, errors = launch(environ, tmp_path, "-np", "1", RANKS, "spawn")
    assert (code, output) == (0, ["refused"]), errors
    assert "rank 0: ddlrun's process manager does not offer MPI_Comm_spawn" in errors


def test_ranks_on_two_hosts(environ: dict[str, str], hosts: TwoHosts, tmp_path: Path) -> None:
    before = hosts.processes()
    words = ("-H", "h1:2,h2:2", "--rank-order", "ddl", "-x", "MPI4PY_LIBMPI", RANKS)
    code, output, errors = launch(environ, tmp_path, *words, enter=hosts.argv("h1", []))
    assert code == 0, errors
    lines = [line.split() for line in output]
    assert [line[:4] for line in lines] == [[str(rank), f"h{rank % 2 + 1}", "10", "2"] for rank in range(4)]
    assert len({line[4] for line in lines}) == 1
    wait_until(lambda: hosts.processes() <= before, lambda: hosts.processes() - before)


def test_ddl_sums_to_the_same_bits_as_under_open_mpi(environ: dict[str, str], tmp_path: Path) -> None:
    _, own, errors = launch(environ, tmp_path, "-np", "2", RANKS)
    done = subprocess.run(
        [*LAUNCH, "openmpi", "--output", "no-tag", "--run-dir", f"{tmp_path}/openmpi", "-np", "2", RANKS],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert own == sorted(done.stdout.splitlines()), errors
