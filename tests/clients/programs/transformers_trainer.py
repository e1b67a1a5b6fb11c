"""Transformers' Trainer on a small Llama with random weights, and on as many processes as the command line says.

transformers_trainer.py PROCESSES FOLDER
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
)  # fmt: skip
words = torch.arange(64).repeat(32, 1)
rows = [{"input_ids": row, "labels": row} for row in words]
torch.manual_seed(0)
arguments = TrainingArguments(
    output_dir=sys.argv[2], use_cpu=True, max_steps=8, per_device_train_batch_size=2, learning_rate=0.01,
    logging_steps=4, save_strategy="no", report_to="none", disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows)
trainer.train()
assert arguments.world_size == int(sys.argv[1]), arguments.world_size
first, last = (entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
assert float(last) < float(first), trainer.state.log_history
if trainer.is_world_process_zero():
    print("trained")
