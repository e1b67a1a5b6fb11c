"""A job of 2 x 2 ranks with groups of PyTorch, of which one leaves out a collective: mesh.py RANK [FOLDER].

Each rank writes its flight recorder to the folder, again and again, as PyTorch does once when it ends such a job.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

BLOCK = 2


def write_dumps(folder: Path, rank: int) -> None:
    while True:
        for name, function in (("pickles", "_dump_fr_trace"), ("json", "_dump_fr_trace_json")):
            (folder / name).mkdir(exist_ok=True)
            (folder / f"new{rank}").write_bytes(getattr(c10d, function)())
            (folder / f"new{rank}").rename(folder / name / f"nccl_trace_rank_{rank}")
        time.sleep(0.1)


def main() -> None:
    dist.init_process_group(os.environ.get("BACKEND", "gloo"))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    rank = dist.get_rank()
    if len(sys.argv) > 2:
        threading.Thread(target=write_dumps, args=(Path(sys.argv[2]), rank), daemon=True).start()
    x = torch.ones(8)
    for block in range(5):
        if not (rank == int(sys.argv[1]) and block == BLOCK):
            dist.all_reduce(x, group=mesh["tp"].get_group())  # tp
        dist.all_reduce(x, group=mesh["dp"].get_group())  # dp
        print("block", block, flush=True)
    dist.barrier()  # end


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
