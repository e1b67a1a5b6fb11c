"""The choice of the process manager: Open MPI's mpirun, a plug-in's program, or ddlrun's own."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.process_managers import AUTO, OPEN_MPI, OWN, SRUN
from ddlrun.process_managers.agents import own_manager
from ddlrun.process_managers.installation import PendingMpirun, find_mpirun, start_mpirun_query, start_srun_query
from ddlrun.process_managers.openmpi import Mpirun
from ddlrun.remote.processes import FinishedProcess, start_command

# Packages whose programs use MPI.
MPI_PACKAGES = ("mpi4py", "horovod")
_PROBE = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if u.find_spec(name)))"


class ManagerRequest(NamedTuple):
    """What is known of a job before its process manager is chosen."""

    manager: str = AUTO
    """One of MANAGERS."""
    mpirun: str | None = None
    """--mpirun."""
    program: tuple[str, ...] = ()
    """The command line of the program."""
    openmpi_options: tuple[str, ...] = ()
    """Options that were given and that Open MPI alone has."""
    foreign_launcher: bool = False
    """Whether other hosts are reached by a launcher through which ddlrun's own process manager cannot start agents."""


class PendingManager:
    """A process manager that is being chosen, so that other work can go on until it is needed."""

    def __init__(self, request: ManagerRequest, environ: Mapping[str, str]) -> None:
        """Start the queries on which the choice depends. Raises InputError or PreflightError."""
        self._request = request
        self._mpirun: PendingMpirun | None = None
        self._packages: Callable[[], tuple[str, ...]] | None = None
        self._chosen = _check_own(request) if request.manager == OWN else None
        if self._chosen is not None:
            return
        if request.manager == SRUN:
            self._mpirun = start_srun_query(request.mpirun, environ)
            return
        if _wants_openmpi(request):
            self._mpirun = start_mpirun_query(request.mpirun, environ)
            return
        if find_mpirun(None, environ) is None:
            self._chosen = own_manager("no mpirun is installed")
            return
        self._mpirun = start_mpirun_query(None, environ)
        python = _python_of(request.program)
        self._packages = None if python is None else _start_search(python)

    def result(self) -> Mpirun:
        """Wait for the choice. Raises PreflightError where the mpirun that has to be used fails or is unknown."""
        if self._chosen is None:
            self._chosen = self._choose()
        return self._chosen

    def _choose(self) -> Mpirun:
        if self._mpirun is None or self._packages is None:
            if self._mpirun is None:
                raise AssertionError("a query was started, or the choice is made")
            return self._mpirun.result()
        python = _python_of(self._request.program)
        if not self._packages():
            self._mpirun.discard()
            return own_manager(f"{python} has neither {' nor '.join(MPI_PACKAGES)}")
        return self._mpirun.result()


def _check_own(request: ManagerRequest) -> Mpirun:
    """Return ddlrun's own process manager. Raises InputError for an option that it does not have."""
    options = (*request.openmpi_options, *(["--mpirun"] if request.mpirun is not None else []))
    if options:
        raise InputError(f"{options[0]} is for Open MPI: leave it out, or take --process-manager openmpi")
    return own_manager("--process-manager ddlrun")


def _wants_openmpi(request: ManagerRequest) -> bool:
    """Return True where an mpirun is needed, whatever is installed."""
    named = request.manager == OPEN_MPI or request.mpirun is not None
    return named or bool(request.openmpi_options) or request.foreign_launcher


def _python_of(program: tuple[str, ...]) -> str | None:
    """Return the Python that runs a program; None for a program in another language."""
    is_python = bool(program) and os.path.basename(program[0]).startswith("python")
    return program[0] if is_python else None


def _start_search(python: str) -> Callable[[], tuple[str, ...]]:
    """Start to search a Python for MPI_PACKAGES; return a function that returns those that it has.

    Where it cannot be searched, it counts as having all.
    """
    if python == sys.executable:
        from importlib.util import find_spec  # noqa: PLC0415 - where an mpirun is installed alone

        installed = tuple(name for name in MPI_PACKAGES if find_spec(name) is not None)
        return lambda: installed
    finish = start_command([python, "-c", _PROBE, *MPI_PACKAGES])
    return lambda: _parse_search(finish())


def _parse_search(reply: FinishedProcess) -> tuple[str, ...]:
    return tuple(reply.out.split()) if reply.code == 0 else MPI_PACKAGES
