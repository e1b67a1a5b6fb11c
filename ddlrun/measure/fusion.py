"""Time of a step's gradients with Horovod."""

import statistics
import time

import horovod.torch as hvd
import torch
from mpi4py import MPI

# The number of tensors that hold the gradients, as in a model of about 20 layers.
TENSORS = 64
RUNS = 5


def time_horovod(comm: MPI.Intracomm, gradient: int) -> float:
    """Return the median over runs of the slowest rank's seconds for all gradients of a step.

    hvd.init() reads Horovod's settings from the environment. A second hvd.init() with other settings in the same
    process writes out of bounds, and ends in a segmentation fault (0.28.1).
    """
    hvd.init()
    try:
        device = f"cuda:{hvd.local_rank() % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
        tensors = [torch.ones(max(gradient // 4 // TENSORS, 1), device=device) for _ in range(TENSORS)]
        samples = []
        for _ in range(RUNS + 1):
            comm.Barrier()
            start = time.perf_counter()
            handles = [hvd.allreduce_async_(tensor, name=f"g{number}") for number, tensor in enumerate(tensors)]
            for handle in handles:
                hvd.synchronize(handle)
            samples.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        return float(statistics.median(samples[1:]))
    finally:
        hvd.shutdown()
