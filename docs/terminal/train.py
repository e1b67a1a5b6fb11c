"""The script of the terminal in README.md: its data may have an empty batch, or a batch that never comes."""

import argparse
from queue import SimpleQueue

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--data", choices=("good", "empty", "stuck"), default="good")
data = parser.parse_args().data


def load(step: int) -> torch.Tensor:
    """Return a batch; step 3 of rank 1 has what --data says."""
    if step == 3 and dist.get_rank() == 1 and data == "stuck":
        SimpleQueue().get()
    return torch.ones(0 if step == 3 and dist.get_rank() == 1 and data == "empty" else 4, 8)


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
for step in range(5):
    batch = load(step)
    if len(batch) == 0:
        raise ValueError(f"batch {step} is empty")
    model(batch).mean().backward()
dist.destroy_process_group()
