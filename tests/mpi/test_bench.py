"""The benchmark of allreduces: its limit, its table, the sums of each baseline."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.managers.openmpi.installation import find_mpi_library
from ddlrun.managers.program_mpi import mpi4py_variables
from tests.bench.cells import TABLE, Cell
from tests.support import needs

pytestmark = pytest.mark.openmpi(4)

ROOT = Path(__file__).parents[2]
MIB = 2**20


def test_limit_is_that_of_the_busiest_link() -> None:
    # 16 MiB over 4 hosts in 2 racks: 1.5 x through a NIC, 1 x through an uplink, at 1448/1514 of the rate.
    uplink, even = Cell("").limit(16), Cell("", uplink=400).limit(16)
    assert uplink == pytest.approx((16 * MIB * 1514 / 1448 - 128 * 1024) * 8 / 100e6)
    assert even == pytest.approx((1.5 * 16 * MIB * 1514 / 1448 - 512 * 1024) * 8 / 200e6)
    assert Cell("", hosts=1, racks=1).limit(16) == 0
    assert Cell("").least(16) == 2 * 16 * MIB


def test_table_names_each_cell_once() -> None:
    assert len({cell.name for cell in TABLE}) == len(TABLE)


@pytest.mark.busy
@pytest.mark.extra  # gloo is torch's
def test_sums_of_the_baselines_are_correct(mpirun: str, major: int, tmp_path: Path) -> None:
    needs.package("torch", "torch==2.13.0")
    names = ["p", "r", "mpi", "mpi-host", "tuned", "tuned-best", "han", "gloo", "two-level"]
    cases = [[1 / 256, names], [1 / 16, names]]
    plan = {"rounds": 1, "budget": 1, "in_a_row": 1 / 64, "pause": 0, "sizes": cases}
    ranks = "tests/bench/programs/allreduce_ranks.py"
    program = [sys.executable, "-m", "mpi4py", ranks, str(tmp_path), json.dumps(plan)]
    options = ["-n", "4", "--oversubscribe"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    variables = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}
    variables |= {"OMPI_MCA_plm": "isolated", "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)}
    variables |= mpi4py_variables(find_mpi_library(mpirun), {})
    done = subprocess.run(
        [mpirun, *options, *program], cwd=ROOT, env={**os.environ, **variables}, timeout=300,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *sizes = map(json.loads, done.stdout.splitlines())
    assert len(sizes) == len(cases)
    assert first["missing"] == {}
    assert first["mpi"].startswith(f"Open MPI {major}.")
    for size in sizes:
        assert {row["algorithm"]: row["right"] for row in size["results"]} == dict.fromkeys(names, True)
        assert all(len(row["seconds"]) == 1 for row in size["results"])
