"""A rank of a job that hangs, or of a healthy one: python -m tests.hangs.kinds FAMILY KIND BACKEND PARAMETERS FOLDER.

The module FAMILY of this folder has a function for each of its kinds. A comment marks the lines at which ranks at fault
are, `guilty`, and those at which others wait, `waiting`.
"""

import importlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hangs.kinds.job import Job

Start = tuple[int, int, Callable[[], object], Callable[[], dict[str, Any]]]


def start_torch(backend: str) -> Start:
    """Join the default group; the facts are torch's server of records, and the members of groups."""
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    torch.set_num_threads(1)
    if backend == "ddl":
        import ddlrun.ddl.torch  # noqa: F401
    dist.init_process_group(backend)
    server = c10d._WorkerServer("::", 0)

    def describe() -> dict[str, Any]:
        world = dist.distributed_c10d._world
        groups = {
            name: {"name": name, "desc": group.group_desc, "ranks": str(sorted(world.pg_group_ranks[group]))}
            for group, name in world.pg_names.items()
        }
        return {"server": f"http://{socket.gethostname()}:{server.port}", "groups": groups}

    return dist.get_rank(), dist.get_world_size(), dist.barrier, describe


def start_mpi(_backend: str) -> Start:
    """Begin MPI."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.rank, world.size, world.Barrier, dict


def start_jax(_backend: str) -> Start:
    """Join the processes of JAX."""
    import jax
    from jax.experimental import multihost_utils

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize()
    sync = multihost_utils.sync_global_devices
    return jax.process_index(), jax.process_count(), lambda: sync("step"), dict


def start_horovod(_backend: str) -> Start:
    """Begin Horovod."""
    import horovod.torch as hvd

    hvd.init()
    return hvd.rank(), hvd.size(), hvd.barrier, dict


STARTS = {"gloo": start_torch, "ddl": start_torch, "mpi": start_mpi, "jax": start_jax, "horovod": start_horovod}


def main() -> None:
    """Run the function of the kind."""
    family, kind, backend, parameters, folder = sys.argv[1:]
    rank, ranks, barrier, describe = STARTS[backend](backend)
    job = Job(rank=rank, ranks=ranks, folder=Path(folder), barrier=barrier, describe=describe, **json.loads(parameters))
    getattr(importlib.import_module(f"tests.hangs.kinds.{family}"), kind)(job)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
