"""One rank: prints as JSON who it is, where it may run, and what an MPI_Allreduce over all ranks gave.

ctypes on the library that mpirun itself puts on the path, so one program serves both majors.
"""

import ctypes
import json
import os
import socket
import sys


def main() -> None:
    """Add rank + 1 over all ranks and print one line."""
    mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
    world, integer, addition = (
        ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")) for name in ("comm_world", "int", "op_sum")
    )
    rank, total = ctypes.c_int(), ctypes.c_int()
    mpi.MPI_Init(None, None)
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))
    mpi.MPI_Allreduce(ctypes.byref(ctypes.c_int(rank.value + 1)), ctypes.byref(total), 1, integer, addition, world)
    cores = sorted(os.sched_getaffinity(0))
    line = json.dumps({"rank": rank.value, "host": socket.gethostname(), "cores": cores, "sum": total.value})
    sys.stdout.write(f"{line}\n")  # one write: under PYTHONUNBUFFERED print() makes two, and mpirun mixes them
    sys.stdout.flush()
    mpi.MPI_Finalize()


if __name__ == "__main__":
    main()
