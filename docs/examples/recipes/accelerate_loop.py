"""Train with Hugging Face's accelerate.

ddlrun launch accelerate_loop.py [BACKEND]
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from digits_data import accuracy, build, load
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

for backend in sys.argv[1:]:
    dist.init_process_group(backend)  # which accelerate keeps
accelerator = Accelerator(cpu=not torch.cuda.is_available())
model = build()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = DataLoader(load(), batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(3):
    for images, classes in loader:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(images), classes))
        optimizer.step()

share = accuracy(accelerator.unwrap_model(model), accelerator.device)
if accelerator.is_main_process:  # accelerator.print would print once per host
    print(f"accuracy {share:.2f} with {accelerator.num_processes} ranks over {dist.get_backend()}")
accelerator.end_training()
