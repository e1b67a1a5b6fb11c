"""DeepSpeed's ZeRO, stage 2, on a small network."""

import argparse

import deepspeed
import torch

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)  # DeepSpeed's own launcher gives it
parser.parse_args()
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
torch.manual_seed(deepspeed.comm.get_rank())
losses = []
for _ in range(8):
    data = torch.randn(4, 16)
    loss = (engine(data) - data.sum(dim=1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
weight = next(engine.module.parameters()).detach().clone()
total = weight.clone()
deepspeed.comm.all_reduce(total)
assert torch.allclose(total, deepspeed.comm.get_world_size() * weight)
if deepspeed.comm.get_rank() == 0:
    print("trained by", deepspeed.comm.get_world_size())
deepspeed.comm.destroy_process_group()
