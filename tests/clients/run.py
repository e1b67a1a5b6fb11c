"""Runs of other projects' test suites: their files from PyPI, and stand-ins of mpiexec that call ddlrun."""

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path

from ddlrun.managers.openmpi.installation import find_mpi_library
from tests.clients.suites import Column, Result, Suite
from tests.cluster.two_hosts import TwoHosts
from tests.conftest import MPIRUNS

# An environment that has the packages of this one, too: a suite may bring a plug-in for pytest, for itself alone.
FOLDER = Path(sys.prefix, "clients")
PYTHON = FOLDER / "bin" / "python"
PIP = (str(PYTHON), "-m", "pip", "--disable-pip-version-check")
PACKAGES = ("lightning==2.6.6", "expecttest==0.3.0")
DEBIAN = FOLDER / "debian"
# Programs of this project, for frameworks whose distributions have none.
PROGRAMS = Path(__file__).with_name("programs")
# A suite that takes longer counts as failed.
SECONDS = 5400
# Open MPI's own mpiexec does what ddlrun does: more ranks than cores are not an error.
OVERSUBSCRIBED = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
LAUNCH = "--quiet --heartbeat 300 --start-timeout 300"


def install(suites: Collection[Suite]) -> None:
    """Install the packages of suites, and unpack their source distributions; nothing is fetched twice."""
    if not PYTHON.exists():
        site = next(Path(sys.prefix).glob("lib/python3.*/site-packages"))
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        own = next(FOLDER.glob("lib/python3.*/site-packages"))
        (own / "ddlrun.pth").write_text(f"import site; site.addsitedir({str(site)!r})\n")
    (FOLDER / "pytest.ini").write_text("[pytest]\n")  # or a suite takes this project's: warnings are not errors there
    from_pypi = [suite for suite in suites if not suite.debian]
    _install_packages({*PACKAGES, *(requirement for suite in from_pypi for requirement in suite.requirements)})
    for suite in from_pypi:
        if suite.folder and not (FOLDER / suite.folder).exists():
            _unpack(suite)
    for suite in suites:
        if suite.debian and not (DEBIAN / "usr/share/doc" / suite.distribution).exists():
            _unpack_debian(suite)


def _install_packages(requirements: set[str]) -> None:
    """Install packages, unless earlier calls have installed all of them."""
    installed = FOLDER / "requirements.txt"
    before = set(installed.read_text().split()) if installed.exists() else set()
    if requirements <= before:
        return
    # DeepSpeed's build reads the PyTorch that is installed.
    subprocess.run([*PIP, "install", "--quiet", "--no-build-isolation", *sorted(requirements)], check=True)
    installed.write_text("\n".join(sorted(before | requirements)))


def _unpack(suite: Suite) -> None:
    """Download a source distribution and unpack it."""
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(FOLDER)]
    subprocess.run([*PIP, "download", *options, suite.requirement], check=True)
    with tarfile.open(FOLDER / f"{suite.folder}.tar.gz") as archive:
        archive.extractall(FOLDER, filter="data")


def _unpack_debian(suite: Suite) -> None:
    """Download packages of Debian and unpack them; nothing is installed."""
    names = [suite.distribution, *suite.also.split()]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-qq", *names], cwd=folder, check=True)
        for archive in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", archive, DEBIAN], check=True)


def folder_of(suite: Suite) -> Path:
    """Return the folder in which a suite is run."""
    site = next(FOLDER.glob("lib/python3.*/site-packages"))
    if suite.package:
        return site / suite.package
    if suite.repository:
        return FOLDER / "repositories" / suite.distribution
    return FOLDER / suite.folder if suite.folder else PROGRAMS


def write_stand_ins(folder: Path, launcher: list[str]) -> None:
    """Write an mpiexec and an mpirun that call a launcher."""
    words = shlex.join(launcher)
    for name in ("mpiexec", "mpirun"):
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)


def places_of(*, hosts: bool, folder: Path) -> dict[str, str]:
    """Return what stands for the names in braces of a command: for one host or two, and a folder for results.

    Programs have the path of Python: mpirun 4.1 puts its own folder first in PATH, and here it has another Python.
    """
    places = {"hosts": "-H h1,h2", "local": "1", "nodes": "2"} if hosts else {"hosts": "", "local": "2", "nodes": "1"}
    return {**places, "python": str(PYTHON), "folder": str(folder), "debian": str(DEBIAN), "programs": str(PROGRAMS)}


def environment(suite: Suite, library: str) -> dict[str, str]:
    """Return the variables for a suite, with the library of an Open MPI."""
    environ = {
        "PYTEST_ADDOPTS": "-p no:randomly -p no:cacheprovider --color=no",
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(FOLDER / "extensions"), "MPI4PY_LIBMPI": library,
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # on a busy machine, a rank that spins holds up its peer
    }  # fmt: skip
    if suite.debian:  # for Debian's Open MPI, whose interface each of them has
        folders = [Path(library).parent, *DEBIAN.glob("usr/lib/*-linux-gnu"), *DEBIAN.glob("usr/lib/*-linux-gnu/blas")]
        environ["LD_LIBRARY_PATH"] = ":".join(map(str, folders))
    return environ


def run(suite: Suite, column: Column, folder: Path, *, hosts: TwoHosts | None = None) -> Result:
    """Run a suite once; return its result.

    Args:
        suite: The suite.
        column: The launcher and the major version of Open MPI.
        folder: An empty folder.
        hosts: Two hosts, of which the first runs the command; None: this host.
    """
    major = suite.own_major if column.launcher == "own" else column.major
    mpirun = shutil.which(MPIRUNS[major])
    assert mpirun is not None
    ours = [str(PYTHON), "-m", "ddlrun", "launch", *LAUNCH.split(), "--mpirun", mpirun]
    plain = column.launcher != "ddlrun"
    variables = environment(suite, find_mpi_library(mpirun) or "")
    # Open MPI 4.1 passes no other variables to another host than its own.
    exports = [word for name in variables if hosts and not name.startswith("OMPI_") for word in ("-x", name)]
    write_stand_ins(folder, [mpirun, *exports] if plain else ours)
    path = f"{folder}:{PYTHON.parent}:{Path(mpirun).parent}:{sys.prefix}/bin:{DEBIAN}/usr/bin:{os.environ['PATH']}"
    command = (suite.own if column.launcher == "own" else "") or suite.command
    command = command.format(**places_of(hosts=hosts is not None, folder=folder))
    environ = {
        **os.environ, **variables, **(OVERSUBSCRIBED if plain else {}),
        # Or a process without mpirun aborts.
        **({"OPAL_PREFIX": str(Path(mpirun).parents[1])} if major == 4 else {}),
        "PATH": path, "XDG_STATE_HOME": str(folder),
    }  # fmt: skip
    argv = ["timeout", "--kill-after=30", str(SECONDS), *shlex.split(command)]
    if hosts:  # whose folder has their ssh
        argv = hosts.argv("h1", ["env", f"--chdir={folder_of(suite)}", f"PATH={hosts.folder}:{path}", *argv])
    done = subprocess.run(
        argv, cwd=folder_of(suite), env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    (folder / "output").write_text(done.stdout)
    return suite.result(done.stdout, done.returncode)
