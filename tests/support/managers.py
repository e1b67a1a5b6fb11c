"""The process managers of tests, each with the MPI of its ranks."""

import sys
from pathlib import Path
from typing import NamedTuple

from tests.conftest import MPIRUNS, OWN


class Manager(NamedTuple):
    """A process manager, by the path of mpirun or OWN, and the MPI that ddlrun's own one starts."""

    title: str
    mpirun: str = OWN
    package: str = ""
    """The package of PyPI with the MPI, in an environment of its own; empty with mpirun, and without MPI."""

    @property
    def without_mpi(self) -> bool:
        """Whether the ranks have no MPI."""
        return self.mpirun == OWN and not self.package

    @property
    def library(self) -> Path:
        """The library of the package."""
        return Path(sys.prefix) / self.package / "lib" / "libmpi.so.12"

    @property
    def options(self) -> list[str]:
        """The options of launch that let mpi4py load the library of the package, on all hosts."""
        return ["--env", f"MPI4PY_LIBMPI={self.library}"] if self.package else []


MPIRUN = {major: Manager(f"Open MPI {major}", path) for major, path in MPIRUNS.items()}
WITHOUT_MPI = Manager("without MPI")
MPICH, INTEL_MPI = Manager("MPICH", package="mpich"), Manager("Intel MPI", package="impi-rt")
MANAGERS = (*MPIRUN.values(), WITHOUT_MPI, MPICH, INTEL_MPI)
