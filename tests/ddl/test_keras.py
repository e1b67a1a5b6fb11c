"""Keras 3 on torch with ddlrun.ddl, under mpirun of both versions of Open MPI."""

import importlib.util
from pathlib import Path

import pytest

from tests.ddl.test_mpi import started

RANKS = Path(__file__).parent / "keras_ranks.py"
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("keras", "torch")), reason="no keras, or no torch for it"
)


@pytest.mark.parametrize(("major", "ranks"), [(5, 2), (4, 4)], indirect=["major"])
def test_all_ranks_fit_as_a_single_process(mpirun: str, ranks: int) -> None:
    done = started(mpirun, ranks, str(RANKS), KERAS_BACKEND="torch", OMP_NUM_THREADS="1")
    expected = "same True, as alone True, afterwards False, refused True"
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stdout + done.stderr
