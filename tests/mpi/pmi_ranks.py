"""A rank of test_pmi_libraries.py: it prints what its MPI library and ddlrun.ddl found and summed."""

import os
import signal
import sys
import zlib

import numpy as np
from mpi4py import MPI

from ddlrun import ddl

world = MPI.COMM_WORLD
if sys.argv[1:] == ["abort"] and world.rank == world.size - 1:
    world.Abort(7)
if sys.argv[1:] == ["spawn"]:
    try:
        MPI.COMM_SELF.Spawn(sys.executable, ["-c", "pass"])
    except MPI.Exception:
        print("refused", flush=True)
    world.Barrier()
    sys.exit()
if sys.argv[1:] in (["kill"], ["stay"]):
    with open("/proc/self/maps") as maps:
        print(*{line.split()[-1] for line in maps if "/mpich_shm_" in line}, flush=True)
    world.Barrier()
    os.kill(os.getpid(), signal.SIGKILL if sys.argv[1:] == ["kill"] else signal.SIGSTOP)
node = world.Split_type(MPI.COMM_TYPE_SHARED)
sums = [world.allreduce(world.rank + 1), node.size]
for options in ("-mode r", "-mode m"):
    ddl.init(options)
    array = np.random.default_rng(world.rank).normal(size=10007).astype(np.float32)
    array = ddl.all_reduce(array)
    sums.append(zlib.crc32(array.tobytes()) if options == "-mode r" else int(np.isfinite(array).all()))
print(world.rank, os.uname().nodename, *sums, flush=True)
