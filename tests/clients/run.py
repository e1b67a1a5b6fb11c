"""Runs of other projects' test suites: their files from PyPI, and stand-ins of mpiexec that call ddlrun."""

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from ddlrun.process_managers.installation import find_mpi_library
from tests.clients.suites import SUITES, Suite
from tests.cluster.two_hosts import TwoHosts
from tests.conftest import MPIRUNS

# An environment that has the packages of this one, too: a suite may bring a plug-in for pytest, for itself alone.
FOLDER = Path(sys.prefix, "clients")
PYTHON = FOLDER / "bin" / "python"
PACKAGES = ("lightning==2.6.6",)
# A suite that takes longer counts as failed.
SECONDS = 1800
# Open MPI's own mpiexec as --overload lets ddlrun: more ranks than cores.
OVERSUBSCRIBED = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
LAUNCH = "--quiet --heartbeat 300 --start-timeout 300 --overload"


def install() -> None:
    """Install the packages of all suites, and unpack their source distributions."""
    site = next(Path(sys.prefix).glob("lib/python3.*/site-packages"))
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        own = next(FOLDER.glob("lib/python3.*/site-packages"))
        (own / "ddlrun.pth").write_text(f"import site; site.addsitedir({str(site)!r})\n")
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check"]
    wheels = {suite.requirement for suite in SUITES.values() if suite.distribution != "horovod"}
    subprocess.run([*pip, "install", "--quiet", *sorted(wheels), *PACKAGES], check=True)
    for suite in SUITES.values():
        if suite.folder and not (FOLDER / suite.folder).exists():
            _unpack(suite, pip)


def _unpack(suite: Suite, pip: list[str]) -> None:
    """Download a source distribution and unpack it."""
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(FOLDER)]
    subprocess.run([*pip, "download", *options, suite.requirement], check=True)
    with tarfile.open(FOLDER / f"{suite.folder}.tar.gz") as archive:
        archive.extractall(FOLDER, filter="data")


def folder_of(suite: Suite) -> Path:
    """Return the folder in which a suite is run."""
    site = next(FOLDER.glob("lib/python3.*/site-packages"))
    return FOLDER / suite.folder if suite.folder else site / suite.package


def write_stand_ins(folder: Path, launcher: list[str]) -> None:
    """Write an mpiexec and an mpirun that call a launcher."""
    words = shlex.join(launcher)
    for name in ("mpiexec", "mpirun"):
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)


def run(suite: Suite, major: int, folder: Path, *, own: bool = False, hosts: TwoHosts | None = None) -> str:
    """Run a suite with one of its launchers; return its result.

    Args:
        suite: The suite.
        major: The major version of Open MPI.
        folder: An empty folder.
        own: Whether the launcher is the project's own or Open MPI's mpiexec, instead of ddlrun.
        hosts: Two hosts, of which the first runs the command; None: this host.
    """
    mpirun = shutil.which(MPIRUNS[major])
    assert mpirun is not None
    ours = [str(PYTHON), "-m", "ddlrun", "launch", *LAUNCH.split(), "--mpirun", mpirun]
    write_stand_ins(folder, [mpirun] if own else ours)
    path = f"{folder}:{PYTHON.parent}:{Path(mpirun).parent}:{sys.prefix}/bin:{os.environ['PATH']}"
    command = (suite.own if own else "") or suite.command
    environ = {
        **os.environ, "PATH": path,
        "PYTEST_ADDOPTS": "-p no:randomly -p no:cacheprovider",
        "MPI4PY_LIBMPI": find_mpi_library(mpirun) or "",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **(OVERSUBSCRIBED if own else {}),
    }  # fmt: skip
    argv = ["timeout", "--kill-after=30", str(SECONDS), *shlex.split(command.format(hosts="-H h1,h2" if hosts else ""))]
    argv = hosts.argv("h1", ["env", f"PATH={path}", *argv]) if hosts else ["env", *argv]
    done = subprocess.run(
        argv, cwd=folder_of(suite), env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    (folder / "output").write_text(done.stdout)
    return suite.result(done.stdout, done.returncode)
