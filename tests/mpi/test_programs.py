"""Several programs in one job, as for mpirun: `-np 1 A : -np 2 B`."""

import sys
from pathlib import Path

import pytest

from ddlrun.application.options.programs import Section, split_programs
from ddlrun.keeper.command_line import WRAPPERS, wrap
from ddlrun.managers.openmpi.installation import find_mpi_library
from tests.conftest import OWN, launch_line
from tests.support.launches import run


@pytest.mark.parametrize(
    ("args", "own", "sections"),
    [
        ("--lr 1", "--lr 1", []),
        ("a : b", "a : b", []),  # a colon that is an argument
        ("a : -np 2 b -n 3", "a", [Section(2, ("b", "-n", "3"))]),
        (": -n 1 b : x : -c 2 d", "", [Section(1, ("b", ":", "x")), Section(2, ("d",))]),
    ],
)
def test_colons_between_programs(args: str, own: str, sections: list[Section]) -> None:
    assert split_programs(args.split()) == (tuple(own.split()), sections)


def test_a_keeper_chooses_its_program_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    wrappers = '[{"ranks": [[2, 3], [5, 5]], "words": ["b", "{rank}"], "replaced": 2, "literal": true}]'
    commands = []
    for rank in range(6):
        monkeypatch.setenv(WRAPPERS, wrappers)
        commands.append(wrap(["a", "x"], rank, 0))
    assert commands == [["a", "x"]] * 2 + [["b", "{rank}"]] * 2 + [["a", "x"], ["b", "{rank}"]]


def test_programs_of_one_job(mpirun: str, tmp_path: Path) -> None:
    program = (tmp_path / "b.py").resolve()
    program.write_text("import os, sys; print('b', os.environ['RANK'], *sys.argv[1:], flush=True)")
    argv = launch_line(mpirun, tmp_path, "--quiet", "--output", "no-tag", "--wrap", "1:env RANK=one")
    done = run(
        argv, "-np", "1", "echo", "a", ":", "-np", "2", str(program), "{rank}", ":", "--", ":", "-n", "1", "echo"
    )
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0, ["", "a", "b 2 {rank} : --", "b one {rank} : --"],
    ), done.stderr  # fmt: skip


# Open MPI's variables of a singleton stay in its environment.
SINGLETON = "import subprocess, sys; from mpi4py import MPI; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


def test_a_job_that_a_program_starts_after_its_mpi_init(mpirun: str, tmp_path: Path) -> None:
    environ = {"OPAL_PREFIX": str(Path(mpirun).parents[1]), "MPI4PY_LIBMPI": find_mpi_library(mpirun) or ""}
    environ["OMPI_MCA_btl_sm_backing_directory"] = str(tmp_path)  # 5.0 leaves a singleton's file
    argv = launch_line(mpirun, tmp_path, "--quiet", "--output", "no-tag", "-np", "1", "echo", "started")
    done = run([sys.executable, "-c", SINGLETON, *argv], **environ)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


@pytest.mark.openmpi(5)
def test_a_program_of_open_mpi_without_mpirun(mpirun: str, tmp_path: Path) -> None:
    """One that calls MPI_Init would be rank 0 of 1 in each process, and end with 0."""
    program = Path(mpirun).with_name("ompi_info")
    done = run(launch_line(OWN, tmp_path, "-np", "1"), str(program))
    assert (done.returncode, done.stdout) == (5, ""), done.stderr
    assert f"{program} is linked with Open MPI (libmpi.so.40), which needs an mpirun" in done.stderr
