"""The check of a rank's world: real libraries in a process that is alone, and the hook that watches them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ddlrun
from tests.support import needs
from tests.support.ports import reserved_port

HOOK = Path(ddlrun.__file__).parent / "keeper" / "hook"
STARTED_BY = "a process manager (/opt/bin/mpirun)"
# Stand-ins for packages that a rank imports: the parts of them that the check reads.
MPI4PY = """
def Init(): return 7
Init_thread = Init
def Is_initialized(): return False
def Is_finalized(): return False
class COMM_WORLD:
    Get_size = staticmethod(lambda: {size})
"""


def run_rank(script: str, *, python: str = sys.executable, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script as rank 3 of 4 whose process manager it does not know."""
    own = {"PYTHONPATH": f"{HOOK}", "DDLRUN_SIZE": "4", "DDLRUN_STARTED_BY": STARTED_BY, "DDLRUN_PMI": "pmix5"}
    own |= {"RANK": "3"}
    removed = ("OMPI_", "PMI", "MPI4PY", "SLURM_", "TORCHELASTIC")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    inherited |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    argv = [python, "-c", script]
    return subprocess.run(argv, env={**inherited, **own, **environ}, capture_output=True, text=True, check=False)


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """Return a path on which an mpi4py sees 1 process, and waits for MPI.Init()."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc: initialize = False\n")
    (tmp_path / "mpi4py" / "MPI.py").write_text(MPI4PY.format(size=1))
    return f"{HOOK}{os.pathsep}{tmp_path}"


def test_a_rank_that_mpi_leaves_alone_does_not_train() -> None:
    needs.package("mpi4py")
    done = run_rank("from mpi4py import MPI; print('trained')")
    assert (done.returncode, done.stdout) == (5, "")
    line = done.stderr.splitlines()[-1]
    assert line.startswith("ddlrun: rank 3: MPI sees 1 process, the job has 4: mpi4py uses Open MPI ")
    assert f"/libmpi.so.40), but {STARTED_BY} started it; pip install" in line or "or --mpirun" in line


@pytest.mark.extra
@pytest.mark.parametrize("mpi", ["mpich", "impi-rt"])
def test_a_library_of_another_mpi_is_not_initialized(mpi: str) -> None:
    needs.package("mpi4py")
    library = Path(sys.prefix, mpi, "lib", "libmpi.so.12")
    if not library.exists():
        needs.skip(f"no {mpi}", "make mpis")
    script = "import mpi4py; mpi4py.rc.initialize = {}; from mpi4py import MPI; MPI.Is_initialized() or MPI.Init()"
    for initialize in (True, False):
        done = run_rank(script.format(initialize), MPI4PY_LIBMPI=str(library))
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("ddlrun: ")]
        name = {"mpich": "MPICH", "impi-rt": r"Intel\(R\) MPI Library"}[mpi]
        expected = (
            rf"ddlrun: rank 3: mpi4py uses {name} \S+ \({library.resolve()}\), but {re.escape(STARTED_BY)} started it: "
        )
        assert re.match(expected, line), line
        assert line.endswith("the job has 4 ranks; unset MPI4PY_LIBMPI, or use --process-manager ddlrun")
        assert done.returncode == 5


@pytest.mark.parametrize(
    ("script", "environ", "code"),
    [
        ("MPI.Init()", {}, 5),
        ("MPI.Init_thread()", {"DDLRUN_SIZE": "5"}, 5),
        ("pass", {}, 0),  # not initialized
        ("MPI.Init()", {"DDLRUN_SIZE": "1"}, 0),
        ("MPI.Init()", {"OMPI_COMM_WORLD_SIZE": "1"}, 0),  # the rank itself has started this one by mpirun -np 1
        ("MPI.Init()", {"DDLRUN_CHECK_WORLD": "0"}, 0),
        ("assert MPI.Init() == 7", {"DDLRUN_SIZE": "1"}, 0),
        ("import os; os.fork() or MPI.Init(); os.wait()", {}, 0),  # the rank's child
    ],
)
def test_each_function_that_initializes_mpi_is_watched(
    stand_in: str, script: str, environ: dict[str, str], code: int
) -> None:
    done = run_rank(f"from mpi4py import MPI; {script}", PYTHONPATH=stand_in, **environ)
    assert done.returncode == code, done.stderr
    assert ("ddlrun: rank 3: MPI sees 1 process" in done.stderr) is (code == 5)


def test_a_library_that_looks_different_is_left_alone(stand_in: str, tmp_path: Path) -> None:
    (tmp_path / "mpi4py" / "MPI.py").write_text("version = 9\n")
    done = run_rank("from mpi4py import MPI; print(MPI.version, MPI.__loader__.__dict__)", PYTHONPATH=stand_in)
    assert (done.returncode, "exec_module" in done.stdout) == (0, False), done.stderr


SMALL_WORLDS = {
    "torch": """
import os, torch.distributed as dist
for name in ("TORCHELASTIC_USE_AGENT_STORE", "RANK"):  # the worlds of a torchrun are no surprise
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    os.environ[name] = "3"
    dist.init_process_group("gloo", init_method=f"file://{meeting}/{name}", rank=0, world_size=1)
    dist.destroy_process_group()
""",
    "jax": "import jax; jax.distributed.initialize(f'127.0.0.1:{port}', 1, 0)",
    "tensorflow": "import tensorflow; tensorflow.distribute.MultiWorkerMirroredStrategy()",
    "horovod": "import horovod.torch; horovod.torch.init()",
}
SMALL_WORLD_MESSAGES = {
    "torch": (0, "PyTorch sees 1 process, the job has 4: the script says so"),
    "jax": (0, "JAX sees 1 process, the job has 4: the script says so"),
    "tensorflow": (0, "TensorFlow sees 1 process, the job has 4: TF_CONFIG is not set; see --framework tensorflow"),
    "horovod": (5, "Horovod sees 1 process, the job has 4: it uses Open MPI "),
}


@pytest.mark.extra
@pytest.mark.parametrize("framework", SMALL_WORLDS)
def test_a_small_world_of_a_framework(tmp_path: Path, framework: str) -> None:
    frameworks = Path(sys.prefix, "frameworks", "bin", "python")
    if framework in ("jax", "tensorflow"):
        if not frameworks.exists():
            needs.skip("no JAX and TensorFlow", "make prepared")
    else:
        needs.package(framework)
    python = str(frameworks) if framework in ("jax", "tensorflow") else sys.executable
    with reserved_port() as port:
        script = f"meeting, port = {str(tmp_path)!r}, {port}\n{SMALL_WORLDS[framework]}\nprint('trained')"
        done = run_rank(script, python=python)
    code, message = SMALL_WORLD_MESSAGES[framework]
    lines = [line for line in done.stderr.splitlines() if line.startswith("ddlrun: ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"ddlrun: rank 3: {message}")
    assert (done.returncode, "trained" in done.stdout) == (code, code == 0), done.stderr
