"""The choice of the process manager: Open MPI's mpirun, srun, a plug-in's program, or ddlrun's own."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ddlrun.environment.open_mpi import ROOT
from ddlrun.errors import InputError, PreflightError
from ddlrun.managers import AUTO, OPEN_MPI, OWN, SRUN, ProcessManager
from ddlrun.managers.installation import PendingVersion, find_program, start_srun_query, start_version_query
from ddlrun.managers.openmpi.dialects import REMEDY
from ddlrun.managers.own import own_manager
from ddlrun.managers.program_mpi import MPI_PACKAGES, ProgramMpi, find_linked, python_of, start_search
from ddlrun.managers.slurm import make_srun, parse_features

WITHOUT_ROOT = "mpirun refuses root, so that ranks cannot use MPI; `--allow-run-as-root` allows it"


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
    """Whether other hosts are reached by a launcher that may not pass on standard input, which agents need."""
    variables: Mapping[str, str] = MappingProxyType({})
    """Variables of the job that are not in ddlrun's own environment."""
    in_container: bool = False
    """Whether the program is that of a container's image."""
    dry_run: bool = False
    """Whether the plan is only printed, perhaps far from the cluster."""
    unallowed_root: bool = False
    """Whether root starts the job, and neither the user nor the site nor a container allows root to start mpirun."""


class PendingManager:
    """A process manager that is being chosen, so that other work can go on until it is needed."""

    def __init__(self, request: ManagerRequest, environ: Mapping[str, str]) -> None:
        """Start the queries on which the choice depends. Raises InputError or PreflightError."""
        self._request = request
        self._query: PendingVersion | None = None
        self._search: Callable[[], ProgramMpi] = ProgramMpi
        self._chosen: ProcessManager | None = None
        if request.manager == OWN:
            self._chosen = _check_own(request, environ)
        elif request.manager == SRUN and request.dry_run and find_program(request.mpirun or SRUN, environ) is None:
            features = parse_features("", "")
            self._chosen = make_srun(SRUN, "not installed here", "--process-manager srun", features, environ)
        if self._chosen is not None:
            return
        if request.manager == SRUN:
            self._query = start_srun_query(request.mpirun, environ)
            return
        if _wants_openmpi(request):
            self._query = start_version_query(request.mpirun, environ)
            return
        if find_program(None, environ) is not None:
            self._query = start_version_query(None, environ)
        if self._query is None or python_of(request.program) is not None:
            self._search = start_search(request.program, {**environ, **request.variables})

    def result(self) -> ProcessManager:
        """Wait for the choice.

        Raises PreflightError where the program that has to be used fails, is unknown, or refuses root.
        """
        if self._chosen is None:
            self._chosen = self._choose()
        request = self._request
        if request.unallowed_root and self._chosen.refuses_root and not request.dry_run:
            raise PreflightError(
                "you are root, whom mpirun refuses, as a mistake in a job could harm the whole machine; use another "
                f"account, `--allow-run-as-root`, or set {'=1 and '.join(ROOT)}=1"
            )
        return self._chosen

    def _choose(self) -> ProcessManager:
        mpi = self._search()
        if self._query is None:
            _check_linked(self._request, mpi)
            return _without_mpirun(mpi)
        reason = _reason_for_own(mpi, python_of(self._request.program))
        warning = ""
        if reason is None and self._request.unallowed_root and not (mpi.linked or _wants_openmpi(self._request)):
            reason, warning = "mpirun refuses root", WITHOUT_ROOT
        if reason is None:
            return self._query.result()
        self._query.discard()
        return own_manager(reason, warning)


def _without_mpirun(mpi: ProgramMpi) -> ProcessManager:
    """Return ddlrun's own process manager, where no mpirun is installed."""
    if not mpi.library:
        return own_manager("no mpirun is installed")
    if mpi.is_mpich:
        return own_manager(f"mpi4py uses {mpi.library}")
    return own_manager(
        "no mpirun is installed",
        f"mpi4py uses {mpi.library}, and no mpirun is installed: ranks that use MPI would be singletons; {REMEDY}",
    )


def _reason_for_own(mpi: ProgramMpi, python: str | None) -> str | None:
    """Return the reason for ddlrun's own process manager where an mpirun is installed; None: mpirun is needed."""
    if not mpi.packages:
        return f"{python} has neither {' nor '.join(MPI_PACKAGES)}"
    return f"mpi4py uses {mpi.library}" if mpi.is_mpich else None


def _check_own(request: ManagerRequest, environ: Mapping[str, str]) -> ProcessManager:
    """Return ddlrun's own process manager.

    Raises InputError for an option that it does not have, and PreflightError for an Open MPI program.
    """
    if python_of(request.program) is None:
        _check_linked(request, find_linked(request.program, environ))
    options = (*request.openmpi_options, *(["`--mpirun`"] if request.mpirun is not None else []))
    if options:
        raise InputError(f"{options[0]} is for Open MPI: leave it out, or take `--process-manager` openmpi")
    return own_manager("--process-manager ddlrun")


def _check_linked(request: ManagerRequest, mpi: ProgramMpi) -> None:
    """Raise PreflightError if a program is linked with Open MPI: each of its processes would be rank 0 of 1.

    In Python programs the keeper recognizes that: see keeper/singleton.py.
    """
    if mpi.linked and not request.in_container:
        raise PreflightError(
            f"{request.program[0]} is linked with Open MPI ({mpi.linked}), which needs an mpirun: without it each "
            "process is rank 0 of 1; use `--process-manager` openmpi"
        )


def _wants_openmpi(request: ManagerRequest) -> bool:
    """Return True where an mpirun is needed, whatever is installed."""
    named = request.manager == OPEN_MPI or request.mpirun is not None
    return named or bool(request.openmpi_options) or request.foreign_launcher
