"""Exit codes of Python ranks, on each version of Python that is installed with mpi4py."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import launch_line
from tests.support import needs

pytestmark = pytest.mark.openmpi(5)


OWN = "{}.{}".format(*sys.version_info)
OTHERS = [pytest.param(f"3.{minor}", marks=pytest.mark.extra) for minor in range(10, 15) if f"3.{minor}" != OWN]


@pytest.fixture(params=[OWN, *OTHERS])
def python(request: pytest.FixtureRequest) -> str:
    """Return the interpreter of a version, from PATH unless it runs the tests."""
    version = str(request.param)
    path = sys.executable if version == OWN else shutil.which(f"python{version}")
    if path is None:
        needs.skip(f"no python{version}")
    return with_mpi4py(path) or needs.skip(f"no mpi4py of python{version}", f"python{version} -m pip install mpi4py")


@cache
def with_mpi4py(path: str) -> str:
    """Return the program itself, for which pyenv has a script on PATH; empty if it has no mpi4py."""
    line = [path, "-c", "import sys, mpi4py; print(sys.executable)"]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()


def run(mpirun: str, folder: Path, ranks: int, *program: str) -> subprocess.CompletedProcess[str]:
    argv = [*launch_line(mpirun, folder, "--quiet", "--output", "no-tag"), "-np", str(ranks), *program]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)


BEGIN = """import atexit, pickle, sys, threading, time
from mpi4py import MPI
atexit.register(print, "bye")
"""

# Each script, the exit code of plain Python, and the output that precedes the line of the atexit function.
SCRIPTS = {
    "the end of the script": ("", 0, ""),
    "sys.exit": ("sys.exit(7)", 7, ""),
    "sys.exit with a message": ("sys.exit('words')", 1, ""),
    "sys.exit with an exit code that wraps to 0": ("sys.exit(256)", 0, ""),
    "sys.exit with an exception": ("sys.exit(SystemExit(7))", 7, ""),
    "SystemExit": ("raise SystemExit(7)", 7, ""),
    "an uncaught exception": ("1 / 0", 1, ""),
    "an exit that a function keeps": (
        """def main():
    try:
        sys.exit(7)
    except SystemExit as error:
        kept = error
        raise
main()""",
        7,
        "",
    ),
    "an exit that the module keeps": (
        """try:
    sys.exit(7)
except SystemExit as error:
    kept = error
    raise""",
        7,
        "",
    ),
    "an exit whose traceback is kept": (
        """def main():
    try:
        sys.exit(7)
    except SystemExit as error:
        kept = error.__traceback__
        raise
main()""",
        7,
        "",
    ),
    "an uncaught exception that a function keeps": (
        """def main():
    try:
        1 / 0
    except ZeroDivisionError as error:
        kept = error
        raise
main()""",
        1,
        "",
    ),
    "an exit in a reference cycle": (
        """class Node: pass
node = Node()
node.itself = node
try:
    sys.exit(7)
except SystemExit as error:
    node.error = error
    del node
    raise""",
        7,
        "",
    ),
    "a caught exit in a reference cycle": (
        """def main():
    try:
        sys.exit(7)
    except SystemExit as error:
        kept = error
main()""",
        0,
        "",
    ),
    "an exit with another code than at first": (
        """try:
    sys.exit(7)
except SystemExit as error:
    error.code = 0
    raise""",
        0,
        "",
    ),
    "an exit that is pickled": (
        """try:
    sys.exit(7)
except SystemExit as error:
    print(pickle.loads(pickle.dumps(error)).code)""",
        0,
        "7\n",
    ),
    "an exit in a generator": (
        """def steps():
    try:
        yield
        sys.exit(7)
    finally:
        print("closed")
for _ in steps():
    pass""",
        7,
        "closed\n",
    ),
    "an exit in a generator that is left": (
        """def steps():
    try:
        yield
    finally:
        sys.exit(7)
left = steps()
next(left)""",
        0,
        "",
    ),
    "an exit in an atexit function": ("atexit.register(sys.exit, 7)", 0, ""),
    "an exit in a destructor": (
        """class Last:
    def __del__(self):
        sys.exit(7)
last = Last()
last.itself = last""",
        0,
        "",
    ),
    "an exit in a thread": ("threading.Thread(target=sys.exit, args=(7,)).start()", 0, ""),
    "an exit before a thread ends": (
        """def work():
    time.sleep(0.2)
    print("worked")
threading.Thread(target=work).start()
sys.exit(7)""",
        7,
        "worked\n",
    ),
    "an exit beside a daemon thread": (
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); sys.exit(7)",
        7,
        "",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_exit_code(mpirun: str, tmp_path: Path, python: str, name: str) -> None:
    script, code, output = SCRIPTS[name]
    done = run(mpirun, tmp_path, 1, python, "-c", BEGIN + script)
    assert (done.returncode, done.stdout) == (code, f"{output}bye\n"), done.stderr


WAITING = """import sys
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
if rank == 1:
    {}
MPI.COMM_WORLD.Barrier()
"""
FAILURES = {
    "sys.exit": ("sys.exit(7)", 7),
    "an uncaught exception": ("1 / 0", 1),
    "an exit that is kept": ("exec('try: sys.exit(7)\\nexcept SystemExit as error: kept = error; raise')", 7),
    "too many open files": ("files = []\n    while True: files.append(open('/dev/null'))", 1),
}


@pytest.mark.parametrize("name", FAILURES)
def test_no_rank_waits_for_a_failed_one(mpirun: str, tmp_path: Path, python: str, name: str) -> None:
    failure, code = FAILURES[name]
    done = run(mpirun, tmp_path, 2, python, "-c", WAITING.format(failure))
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("end", "code"), [("pass", 0), ("sys.exit(0)", 0), ("sys.exit(7)", 7), ("sys.exit('words')", 1), ("1 / 0", 1)]
)
@pytest.mark.parametrize("module", ["mpi4py", "mpi4py.run", "mpi4py.futures"])
def test_mpi4py_as_the_program(mpirun: str, tmp_path: Path, python: str, module: str, end: str, code: int) -> None:
    script = f"import sys; from mpi4py import MPI; {end}"
    done = run(mpirun, tmp_path, 1, python, "-m", module, "-c", script)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize(("failure", "code"), [("sys.exit(7)", 7), ("1 / 0", 1)])
def test_mpi4py_aborts_ranks_that_wait(mpirun: str, tmp_path: Path, python: str, failure: str, code: int) -> None:
    done = run(mpirun, tmp_path, 2, python, "-m", "mpi4py.run", "-c", WAITING.format(failure))
    assert done.returncode == code, done.stderr
