"""Train with the Trainer of Hugging Face's transformers.

ddlrun launch trainer.py [BACKEND]
"""

from __future__ import annotations

import sys
import tempfile

import torch
import torch.distributed as dist
from digits_data import accuracy, build, load
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments


class Classifier(torch.nn.Module):
    """The network, with the loss that the Trainer expects of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.network = build()

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and the scores of a batch."""
        scores = self.network(pixels)
        return {"loss": cross_entropy(scores, labels), "logits": scores}


def main() -> None:
    """Train over all ranks."""
    for backend in sys.argv[1:]:
        dist.init_process_group(backend)  # which the Trainer keeps
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), num_train_epochs=3, per_device_train_batch_size=32, learning_rate=3e-3,
        report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
        ddp_backend="nccl" if torch.cuda.is_available() else "gloo",
    )  # fmt: skip
    model = Classifier()
    data = [{"pixels": pixels, "labels": label} for pixels, label in load()]
    Trainer(model=model, args=arguments, train_dataset=data).train()
    share = accuracy(model.network, arguments.device)
    if arguments.process_index == 0:
        print(f"accuracy {share:.2f} with {arguments.world_size} ranks over {dist.get_backend()}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
