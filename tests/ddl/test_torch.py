"""PyTorch with ddlrun.ddl, under mpirun of both versions of Open MPI; torch is in the `torch` extra."""

from pathlib import Path

import pytest

from tests.ddl.test_mpi import started
from tests.support import needs

RANKS = Path(__file__).parent / "torch_ranks.py"
needs.package("torch", "torch==2.13.0", module=True)
pytestmark = [pytest.mark.extra, pytest.mark.openmpi(4)]


# PyTorch takes longer to start than the checks take, so processes run them with several options.
@pytest.mark.parametrize(
    ("major", "ranks", "options"),
    [(5, 4, ("-mode r:2x2", "-mode m:2x1x2")), (4, 2, ("", "-mode c"))],
    indirect=["major"],
)
def test_all_ranks_train_as_a_single_process(mpirun: str, ranks: int, options: tuple[str, ...]) -> None:
    done = started(mpirun, ranks, str(RANKS), *options)
    assert (done.returncode, done.stdout.split("\n")) == (0, ["0 wrong", "0 wrong", ""]), done.stdout + done.stderr
