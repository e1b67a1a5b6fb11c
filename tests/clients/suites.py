"""Test suites of other projects, each with its command for mpiexec, its own launcher, and its result."""

import re
from typing import NamedTuple

TORCH = "torch==2.13.0"
# The number of tests that passed, as pytest prints it; those of unittest, and the end of a script.
PYTEST = r"(?m)^(?P<passed>\d+) passed(?!.*failed)"
UNITTEST = r"Ran (?P<passed>\d+) tests? in [\d.]+s\n\nOK"


class Suite(NamedTuple):
    """A suite: its distribution on PyPI, where its files are, and how it is run."""

    distribution: str
    version: str
    command: str
    """The command line in the folder; mpiexec is ddlrun or Open MPI's. `{hosts}` is -H with several hosts."""
    pattern: str = PYTEST
    own: str = ""
    """The same with the project's own launcher; empty: it is mpiexec, too."""
    folder: str = ""
    """The folder of the suite in the source distribution; empty: `package` has it."""
    package: str = ""
    """The folder of the suite in site-packages."""
    quick: bool = True
    """Whether it takes less than some minutes on two quiet cores."""

    @property
    def requirement(self) -> str:
        """The distribution with its version, for pip."""
        return f"{self.distribution}=={self.version}"

    @property
    def over_hosts(self) -> bool:
        """Whether it can run over several hosts."""
        return "{hosts}" in self.command

    def result(self, output: str, code: int) -> str:
        """Return the number of tests that passed, `passed` for a script, or the exit code."""
        found = re.search(self.pattern, output)
        if code or found is None:
            return f"exit code {code}"
        return f"{found['passed']} passed" if "passed" in found.groupdict() else "passed"


PYTEST_COMMAND = "python -m pytest -q"
SUITES = {
    "mpi-pytest": Suite("mpi-pytest", "2026.0", f"{PYTEST_COMMAND} tests", folder="mpi_pytest-2026.0"),
    "mpi4py, demo/test-run": Suite(
        "mpi4py", "4.1.2", "env MPIEXEC=mpiexec python demo/test-run/test_run.py", UNITTEST, folder="mpi4py-4.1.2"
    ),
    "mpi4py, test": Suite(
        "mpi4py", "4.1.2", "mpiexec {hosts} -n 2 python test/main.py -q -e spawn -e util_pool -e dynproc", UNITTEST,
        folder="mpi4py-4.1.2", quick=False,
    ),
    "dask-mpi": Suite(
        "dask-mpi", "2026.3.0", f"{PYTEST_COMMAND} test_execute.py test_initialize.py", package="dask_mpi/tests"
    ),
    "accelerate, test_script": Suite(
        "accelerate", "1.15.0", "mpiexec {hosts} -n 2 --env ACCELERATE_USE_CPU=true python test_script.py", "",
        own="accelerate launch --cpu --num_processes 2 test_script.py", package="accelerate/test_utils/scripts",
    ),
    "Horovod, test_torch": Suite(
        "horovod", "0.28.1", f"mpiexec {{hosts}} -n 2 {PYTEST_COMMAND} test/parallel/test_torch.py",
        own=f"horovodrun -np 2 {PYTEST_COMMAND} test/parallel/test_torch.py", folder="horovod-0.28.1", quick=False,
    ),
}  # fmt: skip
