"""Keras 3 on torch with ddlrun.ddl, under mpirun."""

from pathlib import Path

import pytest

from tests.ddl.test_mpi import started
from tests.support import needs

RANKS = Path(__file__).parent / "keras_ranks.py"
needs.package("torch", "torch==2.13.0", module=True)
needs.package("keras", module=True)
pytestmark = pytest.mark.extra


@pytest.mark.parametrize("major", [4], indirect=True)
def test_all_ranks_fit_as_a_single_process(mpirun: str) -> None:
    done = started(mpirun, 3, str(RANKS), KERAS_BACKEND="torch", OMP_NUM_THREADS="1")
    expected = "same True, as alone True, afterwards False, refused True"
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stdout + done.stderr
