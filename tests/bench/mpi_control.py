"""Parameters of Open MPI at run time, by MPI_T, and communicators with selected collective components."""

import ctypes
from pathlib import Path

from mpi4py import MPI


class ControlError(Exception):
    """A call of MPI_T that failed."""


def write_control(name: str, value: int) -> None:
    """Set an integer parameter such as coll_tuned_allreduce_algorithm; communicators made later use it.

    Raises ControlError where the library has no such parameter.
    """
    mpi = ctypes.CDLL(_library())
    index, count, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    _check(mpi.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int())), name)
    _check(mpi.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)), name)
    _check(mpi.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)), name)
    _check(mpi.MPI_T_cvar_write(handle, ctypes.byref(ctypes.c_int(value))), name)
    _check(mpi.MPI_T_cvar_handle_free(ctypes.byref(handle)), name)
    _check(mpi.MPI_T_finalize(), name)


def prefer(comm: MPI.Intracomm, components: str) -> MPI.Intracomm:
    """Return a duplicate for which Open MPI chooses among the given collective components ("tuned,^han").

    coll/han itself makes communicators by this key.
    """
    info = MPI.Info.Create()
    info.Set("ompi_comm_coll_preference", components)
    duplicate = comm.Dup(info)
    info.Free()
    return duplicate


def force(comm: MPI.Intracomm, algorithm: int, segment: int = 0) -> MPI.Intracomm:
    """Return a duplicate on which coll/tuned uses one algorithm for each allreduce, in segments of `segment` bytes.

    The job must have started with OMPI_MCA_coll_tuned_use_dynamic_rules=1.
    """
    values = {"coll_tuned_allreduce_algorithm": algorithm, "coll_tuned_allreduce_algorithm_segmentsize": segment}
    for name, value in values.items():
        write_control(name, value)
    duplicate = prefer(comm, "tuned,^han")
    for name in values:
        write_control(name, 0)
    return duplicate


def _library() -> str:
    """Return the path of the MPI library that mpi4py has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libmpi.so" in line:
            return line.split(maxsplit=5)[5]
    raise ControlError("no libmpi.so is loaded")


def _check(code: int, name: str) -> None:
    if code:
        raise ControlError(f"{name}: MPI_T returned {code}")
