"""The MPI of a Python: its packages that use MPI, and the library that mpi4py loads by itself."""

import re
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import NamedTuple

from ddlrun.remote.processes import FinishedProcess, start_command

# Packages whose programs use MPI.
MPI_PACKAGES = ("mpi4py", "horovod")
# The variables by which a user chooses the library that mpi4py loads, and those on which it depends.
CHOICES = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")
LIBRARY_VARIABLES = (*CHOICES, "LD_LIBRARY_PATH")
# The libraries that ddlrun's own process manager starts, and no Open MPI.
_MPICH_FAMILY = re.compile(r"MPICH|MVAPICH|CRAY MPICH|Intel\(R\) MPI")
# It prints the packages of its first argument that it has. If it has the second one and none of the third, it loads the
# library, without initializing MPI.
_PROBE = """
import importlib.util, sys
packages, needed, others = [[n for n in names.split(",") if importlib.util.find_spec(n)] for names in sys.argv[1:]]
print(*packages, flush=True)
if needed and not others:
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    print(MPI.Get_library_version())
"""


class PythonMpi(NamedTuple):
    """The MPI of a Python."""

    packages: tuple[str, ...]
    """Those of MPI_PACKAGES that it has; all of them if it cannot be searched."""
    library: str = ""
    """The name and the version of mpi4py's library; empty if it is not known, or if Horovod may use another one."""

    @property
    def is_mpich(self) -> bool:
        """Whether the library is MPICH, or one derived from it, which mpirun of Open MPI cannot start."""
        return _MPICH_FAMILY.match(self.library) is not None


def start_search(python: str, environ: Mapping[str, str]) -> Callable[[], PythonMpi]:
    """Start to search a Python for its MPI; return a function that waits for the result.

    Args:
        python: The Python.
        environ: The environment of the job.
    """
    # Horovod has an MPI of its own, which need not be that of mpi4py.
    others = [] if any(name in environ for name in CHOICES) else ["horovod"]
    if python == sys.executable:
        packages = tuple(name for name in MPI_PACKAGES if find_spec(name) is not None)
        if "mpi4py" not in packages or set(packages) & set(others):
            return lambda: PythonMpi(packages)
    variables = [f"{name}={environ[name]}" for name in LIBRARY_VARIABLES if name in environ]
    names = [",".join(MPI_PACKAGES), "mpi4py", ",".join(others or ["-"])]
    finish = start_command(["env", *variables, python, "-c", _PROBE, *names])
    return lambda: _parse_search(finish())


def _parse_search(reply: FinishedProcess) -> PythonMpi:
    """Parse the output of the probe, which fails where mpi4py finds no library."""
    packages, newline, version = reply.out.partition("\n")
    if not newline:
        return PythonMpi(MPI_PACKAGES)
    return PythonMpi(tuple(packages.split()), name_library(version) if reply.code == 0 else "")


def name_library(version: str) -> str:
    r"""Return the name and the number from the version text of an MPI library.

    >>> name_library("MPICH Version:      4.3.0\nMPICH Release date: ..."), name_library("Open MPI v5.0.11, package: x")
    ('MPICH 4.3.0', 'Open MPI 5.0.11')
    >>> name_library("Intel(R) MPI Library 2021.18 for Linux* OS\n"), name_library("MVAPICH2 Version :\t2.3.7\n")
    ('Intel(R) MPI Library 2021.18', 'MVAPICH2 2.3.7')
    >>> name_library("MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)")
    'CRAY MPICH 8.1.25.17'
    """
    first = version.strip("\0\n ").partition("\n")[0]
    name = re.split(r",| for | \(", re.sub(r"MPI VERSION\s*:", "", first))[0]
    return " ".join(re.sub(r"\b[Vv]ersion\s*:?|\bv(?=\d)", "", name).split())
