"""Open MPI's files on this machine: its library, and the settings of user and site."""

import os
from collections.abc import Mapping


def _prefix(mpirun: str) -> str:
    return os.path.dirname(os.path.dirname(os.path.realpath(mpirun)))


def read_mca_files(mpirun: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the text of the files in which a user or a site sets MCA parameters, by path."""
    prefix = _prefix(mpirun)
    system = "/etc/openmpi" if prefix == "/usr" else f"{prefix}/etc"
    user = f"{environ.get('HOME', '')}/.openmpi"
    names = ("mca-params.conf", "openmpi-mca-params.conf", "openmpi-mca-params-override.conf")
    texts: dict[str, str] = {}
    for path in [f"{folder}/{name}" for folder in (user, system) for name in names]:
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                texts[path] = file.read()
    return texts


def find_mpi_library(mpirun: str) -> str | None:
    """Return the path of the libmpi that belongs to an mpirun; None where none is found."""
    architecture = os.uname().machine.replace("ppc64le", "powerpc64le")
    folders = ("lib", "lib64", f"lib/{architecture}-linux-gnu")  # the last is Debian's
    paths = [f"{_prefix(mpirun)}/{folder}/libmpi.so.40" for folder in folders]
    return next((path for path in paths if os.path.exists(path)), None)
