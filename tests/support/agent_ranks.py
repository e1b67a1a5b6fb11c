"""A script of ranks without MPI, which ddlrun's own process manager starts."""

TELL = """
import os, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(rank, os.uname().nodename, *sorted(os.sched_getaffinity(0)), size, flush=True)
open(f"{sys.argv[1]}/{rank}", "w").close()
while len(os.listdir(sys.argv[1])) < size or "stay" in sys.argv:
    time.sleep(0.02)
sys.exit(7 if rank == size - 1 else 0)
"""
"""Each rank prints its host and its CPUs. The last one fails once all have printed, or all stay.

Its first argument is an empty folder that all hosts share.
"""
