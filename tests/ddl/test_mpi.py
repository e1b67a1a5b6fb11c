"""The runtime library under both versions of Open MPI: more ranks than cores, and jobs of ddlrun launch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.managers.openmpi.installation import find_mpi_library
from ddlrun.managers.program_mpi import mpi4py_variables
from tests.conftest import launch_line

ROOT = Path(__file__).parents[2]
RANKS = ROOT / "tests" / "ddl" / "allreduce_ranks.py"
EXAMPLE = ROOT / "docs" / "examples" / "digits.py"
MANY = {
    "OMPI_MCA_mpi_yield_when_idle": "1",  # else waiting ranks take the cores of working ones
    "OMPI_MCA_plm": "isolated",  # else Open MPI 4.1 needs ssh, even on one host
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^ofi,openib,uct", "PYTHONPATH": str(ROOT),
}  # fmt: skip


def started(mpirun: str, ranks: int, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [mpirun, "--oversubscribe", "-n", str(ranks), sys.executable, "-m", "mpi4py", *arguments]
    # Under mpirun of the other version mpi4py would load the library of its own environment.
    env = {**os.environ, **MANY, **mpi4py_variables(find_mpi_library(mpirun), {}), **environ}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("major", "ranks", "shapes"),
    [
        (4, 4, "--quick 1x3x1 2x2x1"),
        (5, 6, "--quick 1x2x3"),
        pytest.param(4, 8, "--quick 1x1x1 2x1x1 5x1x1 2x2x2", marks=pytest.mark.extra),
        pytest.param(5, 12, "--quick 3x2x2", marks=pytest.mark.extra),
    ],
    indirect=["major"],
)
def test_every_mode_dtype_operation_and_shape(mpirun: str, ranks: int, shapes: str) -> None:
    """Each version of Open MPI runs some of the shapes: only the transport differs."""
    done = started(mpirun, ranks, str(RANKS), *shapes.split())
    assert (done.returncode, done.stdout.strip()[-7:]) == (0, "0 wrong"), done.stdout + done.stderr


CALLS = {
    "import numpy as np; ddl.init('-mode r:2x2x1')": (
        "init() '2x2x1': invalid dim size: 2 x 2 x 1 = 4 learners, but 3 ranks run; the product must be 3"
    ),
    "ddl.init('-mode r -dbg_level 1'); ddl.all_reduce(np.ones(3 + ddl.rank() // 2))": (
        "rank 2 of 3: all_reduce: sum of float64 of shape (4,) here, but rank 0 sum of float64 of shape (3,);"
        " all reduce the same, in one order"
    ),
    "ddl.init('-mode r'); ddl.all_reduce(np.ones(3, bool))": "rank 2 of 3: all_reduce: dtype bool cannot be reduced",
    "ddl.init('-mode r'); ddl.bcast(np.ones(3), 3)": "rank 2 of 3: bcast from root 3: there are ranks 0 to 2",
}


@pytest.mark.parametrize("calls", CALLS)
def test_errors_name_rank_shape_and_type(mpirun: str, calls: str) -> None:
    code = (
        "import numpy as np\nfrom ddlrun import ddl\nfrom ddlrun.errors import InputError\n"
        f"try: {calls}\nexcept InputError as error: print(error, flush=True)\n"
    )
    done = started(mpirun, 3, "-c", code)
    assert done.stdout.count(CALLS[calls].removeprefix("rank 2 of 3")) >= 1, done.stdout + done.stderr
    assert CALLS[calls] in done.stdout


@pytest.mark.parametrize("calls", ["ddl.all_reduce(x)", "ddl.start([x]).wait()"])
def test_lengths_that_differ_are_reported_with_type_and_shape(mpirun: str, calls: str) -> None:
    """The rank that receives too much fails; the other one waits until mpi4py's runner ends it."""
    code = (
        "import numpy as np\nfrom ddlrun import ddl\nddl.init('-mode r')\n"
        f"x = np.ones(1000 if ddl.rank() else 3, np.float32)\n{calls}\n"
    )
    done = started(mpirun, 2, "-c", code)
    assert done.returncode != 0
    assert "rank 0 of 2: all_reduce: sum of float32 of shape (3,): MPI_ERR" in done.stderr.replace("avg", "sum")


INTERRUPTED = """
import random, signal, time
import numpy as np
from ddlrun import ddl
signal.signal(signal.SIGALRM, signal.default_int_handler)
ddl.init("-mode r")
seconds = 0
while True:
    begin, x = time.perf_counter(), np.ones(10**6)
    handle = ddl.start([x], "sum")
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0, seconds) * ddl.rank())
        handle.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.perf_counter() - begin
    except KeyboardInterrupt:
        handle.wait()
    assert (x == 2).all()
"""
# Rank 0 waits for rank 1 in MPI_Allreduce, and uses CPU time there, when the signal comes.
INTERRUPTED_SMALL = """
import os, signal, time
import numpy as np
import psutil
from ddlrun import ddl
signal.signal(signal.SIGALRM, signal.default_int_handler)
ddl.init("-mode p")
pid = int(ddl.bcast(np.array(os.getpid())))
for _ in range(3):
    ddl.all_reduce(np.ones(10))
rank_0 = psutil.Process(pid)
begin = ddl.bcast(np.array(sum(rank_0.cpu_times()[:2])))
if ddl.rank():
    while sum(rank_0.cpu_times()[:2]) < begin + 0.3:
        time.sleep(0.01)
    os.kill(pid, signal.SIGALRM)
try:
    ddl.all_reduce(np.ones(10))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    try:
        ddl.init()
    finally:
        ddl.all_reduce(np.ones(10))
"""


@pytest.mark.parametrize("script", [INTERRUPTED, INTERRUPTED_SMALL])
def test_a_rank_whose_reduction_is_interrupted_ends(mpirun: str, script: str) -> None:
    """The other rank waits until mpi4py's runner ends it."""
    done = started(mpirun, 2, "-c", script)
    assert re.search(
        r"LostRankError: rank \d of 2: an earlier call was interrupted \(KeyboardInterrupt", done.stderr
    ), done
    if script == INTERRUPTED_SMALL:
        assert done.stdout == "interrupted\n"
        assert done.stderr.count("LostRankError: rank 0 of 2: an earlier call was interrupted") == 2, done


CARELESS = """
import numpy as np
from mpi4py import MPI
from ddlrun import ddl
ddl.init("-mode r:2x2 -dbg_level 1")
me = ddl.rank()
assert isinstance(ddl.all_reduce(np.float32(me)), np.float32) and ddl.all_reduce(np.float32(me)) == 6
assert ddl.bcast(np.float64(me), root=2) == 2
assert [x.tolist() for x in ddl.all_reduce_n((np.full(2, float(me)) for _ in range(2)), "sum")] == [[6, 6]] * 2
mine = [np.full(3, float(me)) for _ in range(2)]
ddl.start((x for x in mine), "sum").wait()
assert [x.tolist() for x in mine] == [[6] * 3] * 2
x, y, _ = ddl.coords()
assert ddl.all_reduce(np.ones(5 + x), axes="YZ").tolist() == [2] * (5 + x)  # another size for each x
with np.errstate(all="raise"):
    assert np.isinf(ddl.all_reduce(np.full(9, 3e38, np.float32))).all()
row = np.full(60_000, float(me))
handle = ddl.start([row], "sum")
ddl.free()
handle.wait()
assert (row == 6).all()
half = MPI.COMM_WORLD.Split(me % 2)
ddl.init(comm=half)
assert ddl.size() == 2 and ddl.all_reduce(me) == 2 + 2 * (me % 2)
left = [np.ones(200_000, np.float32) for _ in range(4)]
ddl.start(left)
print("done", flush=True)
"""


def test_careless_scripts(mpirun: str, tmp_path: Path) -> None:
    """Numpy scalars, generators, groups of different sizes, infinities, handles that are never waited for."""
    argv = launch_line(mpirun, tmp_path, "--output", "no-tag", "-np", "4")
    done = subprocess.run(
        [*argv, sys.executable, "-c", CARELESS], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout.count("done")) == (0, 4), done.stderr
    assert "ends with reductions under way: wait for every handle, on all ranks" in done.stderr


def test_a_lost_rank_ends_the_job(mpirun: str, tmp_path: Path) -> None:
    code = (
        "import os, numpy as np\nfrom ddlrun import ddl\nddl.init('-mode r')\nx = np.ones(10**6)\n"
        "while True: ddl.all_reduce(x, in_place=True); ddl.rank() and os._exit(3)\n"
    )
    argv = [*launch_line(mpirun, tmp_path, "-np", "2"), sys.executable, "-c", code]
    assert subprocess.run(argv, capture_output=True, timeout=300, check=False, cwd=ROOT).returncode == 3


POSITION = """
import numpy as np
from ddlrun import ddl
ddl.init()
there = ddl.rank(), ddl.size(), ddl.local_rank(), ddl.local_size(), ddl.num_hosts(), ddl.coords()
total = ddl.all_reduce(np.full(300_000, ddl.rank()), "sum")[-1]
print(*there, ddl.grid().order.value, total, ddl.scale_lr(0.5), ddl.shard(range(5)), flush=True)
"""


@pytest.mark.parametrize("order", ["host", "ddl"])
def test_the_grid_comes_from_the_launch(mpirun: str, tmp_path: Path, order: str) -> None:
    argv = launch_line(mpirun, tmp_path, "--output", "no-tag", "-np", "2", "--rank-order", order)
    done = subprocess.run(
        [*argv, sys.executable, "-c", POSITION], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"0 2 0 2 1 (0, 0, 0) {order} 1 1.0 [0, 2, 4]",
        f"1 2 1 2 1 (1, 0, 0) {order} 1 1.0 [1, 3, 0]",
    ]


@pytest.mark.parametrize(("major", "mode"), [(4, ""), (5, "r"), (4, "c"), (5, "m"), (4, "p")], indirect=["major"])
def test_the_example_learns_as_well(mpirun: str, tmp_path: Path, mode: str) -> None:
    """Under every mode the digits example reaches the accuracy of MPI_Allreduce."""
    argv = launch_line(mpirun, tmp_path, "--output", "no-tag", "-np", "2", *(["--mode", mode] if mode else []))
    options = ["--allreduce", "ddl" if mode else "mpi", "--epochs", "15"]
    done = subprocess.run(
        [*argv, str(EXAMPLE), *options], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("accuracy")[-1].split()[0]) >= 95


DIFFERENT = {
    # The calls of rank 0 and those of the others -> the error, which is the same on all ranks.
    ("ddl.init('-mode r:3x1x1')", "ddl.init('-mode r:1x3x1')"): (
        "ddl.init: the topology differs: 3x1x1 on rank 0, 1x3x1 on ranks 1-2; give all ranks the same topology, in "
        "init(), DDL_OPTIONS or DDLRUN_TOPOLOGY"
    ),
    ("ddl.init('-mode c -dump_iter 5')", "ddl.init()"): (
        "ddl.init: the mode differs: c on rank 0, r on ranks 1-2; pass the same options to init(), or set the same "
        "DDL_OPTIONS, on all ranks\nddl.init: -dump_iter differs: 5 on rank 0, 0 on ranks 1-2; pass the same options "
        "to init(), or set the same DDL_OPTIONS, on all ranks"
    ),
    ("ddl.init()", "ddl.init(tuning='chunk=1M')"): (
        "ddl.init: the tuning of chunk differs: the default on rank 0, 1048576 on ranks 1-2; pass the same tuning to "
        "init(), or set the same DDLRUN_DDL_TUNING, on all ranks\nddl.init: the tuning of explore differs: 40 on rank "
        "0, 0 on ranks 1-2; pass the same tuning to init(), or set the same DDLRUN_DDL_TUNING, on all ranks"
    ),
    ("ddl.init('-mode r:2x2')", "ddl.init()"): (
        "ddl.init: init() '2x2x1': invalid dim size: 2 x 2 x 1 = 4 learners, but 3 ranks run; the product must be 3 "
        "(rank 0)"
    ),
    ("ddl.init()", "ddl.init(tuning=7)"): "ddl.init: AttributeError: 'int' object has no attribute 'split' (ranks 1-2)",
    ("ddl.init()", "os.environ['DDLRUN_RANK_ORDER'] = 'host'; ddl.init()"): (
        "ddl.init: the rank order differs: ddl on rank 0, host on ranks 1-2; set the same DDLRUN_RANK_ORDER on all "
        "ranks"
    ),
}  # fmt: skip
EACH_DIFFERENT = f"""
import os
from ddlrun import ddl
from ddlrun.errors import InputError
from mpi4py import MPI
for number, (first, others) in enumerate({list(DIFFERENT)}):
    try:
        exec(others if MPI.COMM_WORLD.rank else first)
    except InputError as error:
        print(number, repr(str(error)), flush=True)
os.environ.pop("DDLRUN_RANK_ORDER", None)
ddl.init("-mode r", tuning="chunk=512K" if MPI.COMM_WORLD.rank else "chunk=524288")
print("agreed", ddl.all_reduce(1), flush=True)
"""


def test_settings_that_differ_between_ranks_are_named_on_all_of_them(mpirun: str) -> None:
    done = started(mpirun, 3, "-c", EACH_DIFFERENT)
    expected = [f"{number} {text!r}" for number, text in enumerate(DIFFERENT.values())]
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted([*expected, "agreed 3"] * 3)
