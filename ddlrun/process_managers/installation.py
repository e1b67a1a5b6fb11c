"""What this machine has: which mpirun, its version, its library, the settings of user and site; frameworks."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from ddlrun.environment.framework_builds import PROGRAM, FrameworkBuild, parse_build
from ddlrun.errors import PreflightError
from ddlrun.process_managers.openmpi import REMEDY, Mpirun, parse_version
from ddlrun.remote.processes import FinishedProcess, start_command

# Importing TensorFlow from a slow file system.
BUILD_SECONDS = 60.0


def find_mpirun(named: str | None, environ: Mapping[str, str]) -> Callable[[], Mpirun]:
    """Find mpirun and ask for its version: --mpirun, else beside this Python, else on PATH.

    What it returns waits for the answer, so that the hosts can be asked meanwhile.

    The one beside this Python comes first: mpi4py loads the MPI of its own environment, and ranks
    started by another one would not find each other. Raises PreflightError with the remedy.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    if named is not None:
        path, reason = _which(named, environ), "--mpirun"
    elif os.access(beside, os.X_OK):
        path, reason = beside, "beside this Python, whose mpi4py loads the same MPI"
    else:
        path, reason = _which("mpirun", environ), "first on PATH"
    if path is None:
        raise PreflightError(f"{named or 'mpirun'} is not there or cannot be run; {REMEDY}")
    return cache(partial(_version, os.path.abspath(path), reason, start_command([path, "--version"])))


def _version(path: str, reason: str, answered: Callable[[], FinishedProcess]) -> Mpirun:
    answer = answered()
    if answer.code != 0:
        said = (answer.err or answer.out).strip().splitlines()[:1]
        raise PreflightError(f"{path} --version fails ({said[0] if said else answer.code}); {REMEDY}")
    return parse_version(answer.out, path, reason)


def _which(name: str, environ: Mapping[str, str]) -> str | None:
    import shutil  # noqa: PLC0415 - 2 ms that an mpirun beside this Python spares

    return shutil.which(name, path=environ.get("PATH"))


def _prefix(mpirun: str) -> str:
    return os.path.dirname(os.path.dirname(os.path.realpath(mpirun)))


def ask_builds(python: str, libraries: Sequence[str], environ: Mapping[str, str]) -> dict[str, FrameworkBuild]:
    """Ask libraries of a Python what they are built with, all at once: a process each."""
    setting = [f"{name}={value}" for name, value in environ.items()]
    asked = {
        name: start_command(["env", *setting, python, "-c", PROGRAM, name], "", BUILD_SECONDS) for name in libraries
    }
    said = {name: finish() for name, finish in asked.items()}
    return {name: parse_build(one.out, one.err, one.code) for name, one in said.items()}


def mca_files(mpirun: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the text of the files in which a user or a site sets MCA parameters."""
    prefix = _prefix(mpirun)
    system = "/etc/openmpi" if prefix == "/usr" else f"{prefix}/etc"
    user = f"{environ.get('HOME', '')}/.openmpi"
    names = ("mca-params.conf", "openmpi-mca-params.conf", "openmpi-mca-params-override.conf")
    found: dict[str, str] = {}
    for path in [f"{folder}/{name}" for folder in (user, system) for name in names]:
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                found[path] = file.read()
    return found


def mpi4py_library(mpirun: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Tell mpi4py to load the library of this mpirun: another one would make each rank a job of its own."""
    if "MPI4PY_LIBMPI" in environ or "MPI4PY_MPIABI" in environ:
        return {}
    architecture = os.uname().machine.replace("ppc64le", "powerpc64le")
    folders = ("lib", "lib64", f"lib/{architecture}-linux-gnu")  # the last is Debian's
    paths = [f"{_prefix(mpirun)}/{folder}/libmpi.so.40" for folder in folders]
    found = [path for path in paths if os.path.exists(path)]
    return {"MPI4PY_LIBMPI": found[0]} if found else {}
