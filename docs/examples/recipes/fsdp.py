"""Train with PyTorch's fully_shard (FSDP): every rank holds a part of the parameters.

ddlrun launch fsdp.py [BACKEND]
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from digits_data import accuracy, build, load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

gpu = torch.cuda.is_available()
if gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
backend = sys.argv[1] if sys.argv[1:] else "nccl" if gpu else "gloo"
dist.init_process_group(backend)
device = "cuda" if gpu else "cpu"
mesh = init_device_mesh(device, (dist.get_world_size(),))

model = build().to(device)
for layer in model:
    if isinstance(layer, torch.nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

data = load()
sampler: DistributedSampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=32, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for images, classes in loader:
        optimizer.zero_grad()
        cross_entropy(model(images.to(device)), classes.to(device)).backward()
        optimizer.step()

share = accuracy(model, device)  # on all ranks, as each holds a part of the network
if dist.get_rank() == 0:
    print(f"accuracy {share:.2f} with {dist.get_world_size()} ranks over {dist.get_backend()}")
dist.destroy_process_group()
