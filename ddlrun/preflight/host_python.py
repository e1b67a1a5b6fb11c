"""The Python of this host and its packages; a part of the task host_facts.py."""

from __future__ import annotations

import os
import sys
from mmap import PROT_READ, mmap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

PACKAGES = ("mpi4py", "torch", "horovod")
# The MPI libraries for which mpi4py may be built: Open MPI's, MPICH's and Intel's, Cray's.
MPI_LIBRARIES = (b"libmpi.so.40", b"libmpi.so.12", b"libmpi_cray.so.12")
_LIBRARY = b"libmpi"


def describe_python(task: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts of the Python that runs this, which may be that of the ranks."""
    version = sys.version.split()[0]
    yield f"agent {version}"
    if sys.executable == task["python"]:
        yield f"python {version}"
        if task["encryption"] and _can_encrypt(task["encryption"]):  # before other folders are known
            yield "encryption"
        packages = dict(find_packages(_package_folders()))
        for name, (version, folder) in packages.items():
            yield f"package {name} {version} {folder}"
        if task["library"] and "mpi4py" in packages:
            yield " ".join(["libraries", *find_libraries(packages["mpi4py"][1])])


def _package_folders() -> list[str]:
    """Return the folders of packages, without those that a variable adds for this process."""
    import site  # noqa: PLC0415 - 2 ms, where the agent is the Python of the ranks

    if sys.flags.no_site:
        site.main()
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [folder for folder in sys.path if folder not in given]
    return [*own, *site.getsitepackages(), site.getusersitepackages()]


def find_packages(folders: Iterable[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each package with its version and its folder, of which the first counts.

    importlib.metadata takes four times as long.
    """
    missing = set(PACKAGES)
    for folder in dict.fromkeys(folders):
        for entry in sorted(os.listdir(folder)) if missing and os.path.isdir(folder) else ():
            name, _, version = os.path.splitext(entry)[0].partition("-")
            if name in missing and entry.endswith("-info"):
                missing.remove(name)
                yield name, (version.partition("-py")[0], folder)


def find_libraries(folder: str) -> list[str]:
    """Return the MPI libraries that the modules of mpi4py name, which is in a folder of packages."""
    libraries = set()
    package = os.path.join(folder, "mpi4py")
    for entry in os.listdir(package) if os.path.isdir(package) else ():
        if entry.startswith("MPI") and entry.endswith(".so"):
            with open(os.path.join(package, entry), "rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as code:
                at = code.find(_LIBRARY)  # a search takes a millisecond
                while at >= 0:
                    libraries.add(code[at : code.find(b"\0", at)])
                    at = code.find(_LIBRARY, at + 1)
    return [library.decode() for library in MPI_LIBRARIES if library in libraries]


def _can_encrypt(folder: str) -> bool:
    sys.path.append(folder)
    try:
        from ddlrun.wire.authentication import Encryption, KeyExchange  # noqa: PLC0415 - 50 ms, for --encrypt alone

        Encryption(KeyExchange().nonce)
    except Exception:  # noqa: BLE001 - a package that is broken in any way
        return False
    finally:
        sys.path.remove(folder)
    return True
