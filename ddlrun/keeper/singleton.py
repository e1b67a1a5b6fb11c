"""The look for singletons: Python ranks whose MPI does not find what started them, so that each is rank 0 of 1.

It is a look from outside, at the libraries of the program's process and at the variables that it was started with:
Open MPI finds the other ranks by PMIx; MPICH, Intel MPI and Cray MPICH do by PMI.
"""

from __future__ import annotations

import os

from ddlrun.keeper import record
from ddlrun.keeper.proc_files import read_file, read_text
from ddlrun.keeper.processes import is_python
from ddlrun.keeper.task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Part of a path in /proc/PID/maps -> the package that calls MPI_Init.
USERS = {"/mpi4py/MPI.": "mpi4py", "/mpi_lib": "Horovod"}
OPEN_MPI, MPICH = ("libmpi.so.40", "libmpi.so.20"), ("libmpi.so.12", "libmpi_cray", "libmpich")
# Libraries by which MPI finds the other ranks with other variables, such as those of Slurm.
CLIENTS, PMIX_CLIENT = ("/libpmi.so", "/libpmi2.so"), "/libpmix.so"
# Open MPI 4 may have clients of PMI, and loads them in MPI_Init.
OPEN_MPI_4 = "/libopen-rte.so"
CLIENT_SECONDS = 5.0
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 60.0
UPGRADE = "pip install --force-reinstall 'mpi4py>=4.1', which loads the MPI that started it"


@record
class WorldFinding:
    """The result of a look."""

    text: str = ""
    """The message to the user; empty: the rank finds the others."""
    ends: bool = False
    """Whether the rank must end."""
    seconds: float = 0.0
    """The time after which this is certain."""


class SingletonWatch(Task):
    """The looks at a program: often at first, and until it has loaded MPI."""

    def __init__(self, pid: int, size: int, started_at: float, report: Callable[[WorldFinding], None]) -> None:
        """Take the program, the number of ranks of the job, and what reports a finding that has a text."""
        self._pid, self._size, self._started_at, self._report = pid, size, started_at, report
        self._mapped_at, self._next = 0.0, started_at
        self._pages: dict[int, bytes] = {}
        """The size of the memory of each process in which no MPI was."""

    def deadline(self) -> float:
        """Return the time of the next look."""
        return self._next

    def on_time(self, now: float) -> None:
        """Look at the program."""
        self._next = now + min(max(SHORTEST_INTERVAL, (now - self._started_at) / 5), LONGEST_INTERVAL)
        finding = next(filter(None, map(self._examine, find_pythons(self._pid))), None)
        if finding is None:
            return
        self._mapped_at = self._mapped_at or now
        if now >= self._mapped_at + finding.seconds:
            self.leave()
            if finding.text:
                self._report(finding)

    def _examine(self, pid: int) -> WorldFinding | None:
        """Return the finding about a process; None if it has not loaded MPI."""
        pages = read_file(f"/proc/{pid}/statm").partition(b" ")[0]
        if self._pages.get(pid) == pages:  # it has loaded no library since the last look
            return None
        maps = read_text(f"/proc/{pid}/maps")
        user = next((user for part, user in USERS.items() if part in maps), None)
        if user is None:
            self._pages[pid] = pages
            return None
        words = (word.partition("=") for word in read_text(f"/proc/{pid}/environ").split("\0"))
        return judge(user, maps, {name: value for name, _, value in words}, self._size)


def find_pythons(pid: int) -> list[int]:
    """Return the first Python of each line of descent from a process, which may be a shell or a profiler."""
    if is_python(pid):
        return [pid]
    children = read_file(f"/proc/{pid}/task/{pid}/children").split()
    return [python for child in children for python in find_pythons(int(child))]


def judge(user: str, maps: str, environ: Mapping[str, str], size: int) -> WorldFinding | None:
    """Return the finding about a package that uses MPI; None if it has not loaded a library of MPI yet.

    Args:
        user: The package.
        maps: The content of /proc/PID/maps.
        environ: The variables of the process.
        size: The number of ranks of the job.
    """
    paths = dict.fromkeys(line[line.find("/") :] for line in maps.split("\n") if "/libmpi" in line)
    libraries = [path for path in paths if os.path.basename(path).startswith((*OPEN_MPI, *MPICH))]
    if user == "Horovod" and (not libraries or environ.get("HOROVOD_CONTROLLER") == "gloo"):
        text = f"{user} uses Gloo, and HOROVOD_SIZE is not set: unless the script sets it, the rank sees 1 process"
        return WorldFinding(text="" if "HOROVOD_SIZE" in environ else text)
    if not libraries:
        return None
    library, mpich = libraries[0], all(map(_is_mpich, libraries))
    known = any(name in maps for name in (*CLIENTS, *([PMIX_CLIENT] if mpich else [])))
    variables = ("PMI_", "PALS_") if mpich else ("PMIX_",)
    title = "MPICH or Intel MPI" if _is_mpich(library) else "Open MPI"
    use = f"{user} uses {title} ({library}), but {_starter(environ)}"
    if not (known or any(name.startswith(variables) for name in environ)):
        alone = f"it would see 1 process, the job has {size}"
        seconds = CLIENT_SECONDS if _by_srun(environ) and OPEN_MPI_4 in maps else 0.0
        return WorldFinding(text=f"{use}: {alone}; {_remedy(user, library, environ)}", ends=True, seconds=seconds)
    if os.environ.get("DDLRUN_PMI") == "pmix5" and OPEN_MPI_4 in maps and not mpich:
        return WorldFinding(text=f"{use}: MPI_Init may fail; {_remedy(user, library, environ)}")
    return WorldFinding()


def _is_mpich(library: str) -> bool:
    return os.path.basename(library).startswith(MPICH)


def _starter(environ: Mapping[str, str]) -> str:
    how = f" with --mpi={environ['SLURM_MPI_TYPE']}" if _by_srun(environ) else ""
    return f"{os.environ.get('DDLRUN_STARTED_BY', 'another MPI')} started it{how}"


def _by_srun(environ: Mapping[str, str]) -> bool:
    return os.environ.get("DDLRUN_PMI") == "slurm" and "SLURM_MPI_TYPE" in environ


def _remedy(user: str, library: str, environ: Mapping[str, str]) -> str:
    """Return the remedy, from the library and the variables that choose one for mpi4py."""
    mpich = _is_mpich(library)
    if _by_srun(environ):
        return f"use --mpi-args --mpi={'pmi2' if mpich else 'pmix'}"
    if not mpich and os.environ.get("DDLRUN_PMI") == "pmi1":
        return "use --process-manager openmpi"
    prefix = os.path.dirname(os.path.dirname(library))
    paths = [f"{folder}/bin/mpirun" for folder in (prefix, os.path.dirname(prefix)) if not mpich]
    other = ", or use --process-manager ddlrun" if mpich else ""
    own = next((f", or --mpirun {path}" for path in paths if os.path.exists(path)), other)
    if user != "mpi4py":
        return f"build {user} with the MPI that starts the ranks{own}"
    chosen = next((name for name in ("MPI4PY_MPIABI", "MPI4PY_LIBMPI") if name in environ), None)
    return f"{UPGRADE if chosen is None else f'unset {chosen}'}{own}"
