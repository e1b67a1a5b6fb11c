"""The process manager and MPI that are installed on this machine."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.environment.framework_builds import PROGRAM, FrameworkBuild, parse_build
from ddlrun.environment.open_mpi import ROOT
from ddlrun.errors import PreflightError
from ddlrun.managers import GROUP, ProcessManager
from ddlrun.managers.openmpi import OpenMpi
from ddlrun.managers.openmpi.dialects import REMEDY, parse_program
from ddlrun.managers.slurm import Srun, query_srun
from ddlrun.plugins import load_plugin_classes
from ddlrun.remote.processes import FinishedProcess, start_command

SRUN_REMEDY = "load the site's Slurm module, or leave out `--process-manager` srun"
# Files and variables by which Docker, Podman, Apptainer, Kubernetes and systemd-nspawn can be told in a container.
CONTAINER_FILES = (".dockerenv", "run/.containerenv", ".singularity.d", "run/systemd/container")
CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
# Importing TensorFlow from a slow file system may take minutes.
BUILD_SECONDS = 300.0


class Installation(NamedTuple):
    """The software of this machine that starts a job."""

    manager: ProcessManager
    mca_files: Mapping[str, str]
    """Path -> text of the files in which a user or a site sets MCA parameters."""
    mpi_library: str | None
    """The MPI library that belongs to the manager; None: it was not found."""
    horovod: Mapping[str, FrameworkBuild]
    """Library -> build; empty where no setting depends on how Horovod is built."""
    root: bool
    """Whether ddlrun runs as root."""


class PendingVersion:
    """A query of a manager's version, so that other work can go on until the reply is needed."""

    def __init__(self, path: str, reason: str, environ: Mapping[str, str]) -> None:
        """Start `PATH --version`."""
        self._path, self._reason, self._environ = path, reason, environ
        self._finish: Callable[[], FinishedProcess] = start_command([path, "--version"])
        self._manager: ProcessManager | None = None

    def discard(self) -> None:
        """Wait for the end of the query, whose result is not needed."""
        self._finish()

    def result(self) -> ProcessManager:
        """Wait for the version. Raises PreflightError where the program fails or is of an unknown kind."""
        if self._manager is None:
            reply = self._finish()
            version = Srun.parse_version(reply.out) if reply.code == 0 else None
            if version is not None:
                self._manager = query_srun(self._path, version, self._reason, self._environ)
            else:
                self._manager = _parse_reply(reply, self._path, self._reason)
        return self._manager


def allows_root(environ: Mapping[str, str], root: str = "/") -> bool:
    """Check if root may start mpirun: the site has set its variables, or this is a container, where root is usual."""
    if all(environ.get(name) == "1" for name in ROOT):
        return True
    inside = any(environ.get(name) for name in CONTAINER_VARIABLES)
    return inside or any(os.path.exists(os.path.join(root, name)) for name in CONTAINER_FILES)


class FoundProgram(NamedTuple):
    """The path of a program, and why this one."""

    path: str
    reason: str


def find_program(named: str | None, environ: Mapping[str, str]) -> FoundProgram | None:
    """Find a process manager: the named program, else mpirun beside this Python or on PATH; None where there is none.

    The one beside this Python comes first: mpi4py loads the MPI of its own environment, and ranks that
    another mpirun starts would not find each other.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    if named is not None:
        path, reason = shutil.which(named, path=environ.get("PATH")), "--mpirun"
    elif os.access(beside, os.X_OK):
        path, reason = beside, "beside this Python, whose mpi4py loads the same MPI"
    else:
        path, reason = shutil.which("mpirun", path=environ.get("PATH")), "first on PATH"
    return None if path is None else FoundProgram(os.path.abspath(path), reason)


def start_version_query(named: str | None, environ: Mapping[str, str]) -> PendingVersion:
    """Find the program of a process manager, and query its version. Raises PreflightError where there is none."""
    program = find_program(named, environ)
    if program is None:
        raise PreflightError(f"{named or 'mpirun'} does not exist or cannot be run; {REMEDY}")
    return PendingVersion(program.path, program.reason, environ)


def start_srun_query(named: str | None, environ: Mapping[str, str]) -> PendingVersion:
    """Find Slurm's srun, and query its version. Raises PreflightError where there is none."""
    srun = find_program(named or "srun", environ)
    if srun is None:
        problem = f"{named or 'srun'} does not exist or cannot be run"
        raise PreflightError(f"`--process-manager` srun: {problem}; {SRUN_REMEDY}")
    return PendingVersion(srun.path, "--process-manager srun", environ)


def _parse_reply(reply: FinishedProcess, path: str, reason: str) -> ProcessManager:
    if reply.code != 0:
        lines = (reply.err or reply.out).strip().splitlines()
        raise PreflightError(f"{path} --version fails ({lines[0] if lines else reply.code}); {REMEDY}")
    if OpenMpi.parse_version(reply.out) is None:
        for kind in load_plugin_classes(GROUP, ProcessManager):  # type: ignore[type-abstract]
            version = kind.parse_version(reply.out)
            if version is not None:
                return kind(path, version, reason)
    return parse_program(reply.out, path, reason)


def probe_builds(python: str, libraries: Sequence[str], environ: Mapping[str, str]) -> dict[str, FrameworkBuild]:
    """Import libraries in a Python with additional variables, one process each, and return their builds."""
    setting = [f"{name}={value}" for name, value in environ.items()]
    started = {
        name: start_command(["env", *setting, python, "-c", PROGRAM, name], "", BUILD_SECONDS) for name in libraries
    }
    replies = {name: finish() for name, finish in started.items()}
    return {name: parse_build(reply.out, reply.err, reply.code) for name, reply in replies.items()}


def probe_horovod(python: str, environ: Mapping[str, str]) -> dict[str, FrameworkBuild]:
    """Return the builds of Horovod for PyTorch and, where that does not work, for TensorFlow."""
    builds = probe_builds(python, ["horovod.torch"], environ)
    if not builds["horovod.torch"].works:
        builds |= probe_builds(python, ["horovod.tensorflow"], environ)
    return builds
