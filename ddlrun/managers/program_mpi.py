"""The MPI of a program: the library that mpi4py loads in a Python, or that another program is linked with."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from ddlrun.remote.processes import FinishedProcess, start_command

# Packages whose programs use MPI.
MPI_PACKAGES = ("mpi4py", "horovod")
# The variables by which a user chooses the library that mpi4py loads, and those on which it depends.
CHOICES = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")
LIBRARY_VARIABLES = (*CHOICES, "LD_LIBRARY_PATH")
# The libraries that ddlrun's own process manager starts, and no Open MPI.
_MPICH_FAMILY = r"MPICH|MVAPICH|CRAY MPICH|Intel\(R\) MPI"
# The values of CHOICES that name one of them.
_MPICH_CHOICE = r".*libmpi(\.so\.12|_cray)|mpich|impi"
_OPEN_MPI_CHOICE = r".*libmpi\.so\.40|openmpi"
# The part of an executable file in which the names of its libraries are searched: they stand near its beginning.
MOST_BYTES = 1 << 26
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


class ProgramMpi(NamedTuple):
    """The MPI of a program."""

    packages: tuple[str, ...] = MPI_PACKAGES
    """Those of MPI_PACKAGES that its Python has; all of them if that is not known."""
    library: str = ""
    """The name and the version of mpi4py's library; empty if it is not known, or if Horovod may use another one."""
    linked: str = ""
    """The file of Open MPI that a program in another language is linked with; empty if there is none."""

    @property
    def is_mpich(self) -> bool:
        """Whether the library is MPICH, or one derived from it, which mpirun of Open MPI cannot start."""
        return re.match(_MPICH_FAMILY, self.library) is not None


def python_of(program: Sequence[str]) -> str | None:
    """Return the Python that runs a program; None for a program in another language."""
    is_python = bool(program) and os.path.basename(program[0]).startswith("python")
    return program[0] if is_python else None


def start_search(program: Sequence[str], environ: Mapping[str, str]) -> Callable[[], ProgramMpi]:
    """Start to search a program for its MPI in the job's environment; return a function that waits for the result."""
    python = python_of(program)
    if python is None:
        return lambda: find_linked(program, environ)
    # Horovod has an MPI of its own, which need not be that of mpi4py.
    others = [] if any(name in environ for name in CHOICES) else ["horovod"]
    if python == sys.executable:
        packages = tuple(name for name in MPI_PACKAGES if find_spec(name) is not None)
        if "mpi4py" not in packages or set(packages) & set(others):
            return lambda: ProgramMpi(packages)
    variables = [f"{name}={environ[name]}" for name in LIBRARY_VARIABLES if name in environ]
    names = [",".join(MPI_PACKAGES), "mpi4py", ",".join(others or ["-"])]
    finish = start_command(["env", *variables, python, "-c", _PROBE, *names])
    return lambda: _parse_search(finish())


def _parse_search(reply: FinishedProcess) -> ProgramMpi:
    """Parse the output of the probe, which fails where mpi4py finds no library."""
    packages, newline, version = reply.out.partition("\n")
    if not newline:
        return ProgramMpi()
    return ProgramMpi(tuple(packages.split()), name_library(version) if reply.code == 0 else "")


def find_linked(program: Sequence[str], environ: Mapping[str, str]) -> ProgramMpi:
    """Return the MPI that an executable file is linked with; of scripts and other programs it is not known."""
    path = shutil.which(program[0], path=environ.get("PATH")) if program else None
    try:
        with open(path or os.devnull, "rb") as file:
            start = file.read(MOST_BYTES)
    except OSError:
        return ProgramMpi()
    library = re.search(rb"\0(libmpi\.so\.[24]0)\0", start) if start.startswith(b"\x7fELF") else None
    return ProgramMpi() if library is None else ProgramMpi(linked=library[1].decode())


def chooses_mpich(environ: Mapping[str, str]) -> bool:
    """Return True if the user has made mpi4py load MPICH or a library derived from it."""
    return any(re.match(_MPICH_CHOICE, environ.get(name, "")) for name in CHOICES)


def find_foreign_choice(environ: Mapping[str, str], pmi: str) -> str:
    """Return the assignment by which the user makes mpi4py load a library that speaks another PMI; empty: none.

    >>> find_foreign_choice({"MPI4PY_LIBMPI": "/opt/lib/libmpi.so.12"}, "pmix5")
    'MPI4PY_LIBMPI=/opt/lib/libmpi.so.12'
    >>> find_foreign_choice({"MPI4PY_MPIABI": "mpich"}, "pmi1")
    ''
    """
    foreign = {"pmix": _MPICH_CHOICE, "pmi1": _OPEN_MPI_CHOICE}.get(pmi.rstrip("35"), "$.")
    return next((f"{name}={environ[name]}" for name in CHOICES if re.match(foreign, environ.get(name, ""))), "")


def mpi4py_variables(library: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that makes mpi4py load a libmpi; empty where the environment chooses one already.

    With a library other than its mpirun's, each rank would be a singleton.
    """
    return {} if library is None or any(name in environ for name in CHOICES) else {CHOICES[0]: library}


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
