"""Train with Lightning, whose processes ddlrun has started already.

ddlrun launch lightning_fit.py [BACKEND]
"""

from __future__ import annotations

import os
import sys

import lightning
import torch
import torch.distributed as dist
from digits_data import accuracy, build, load
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    """The network and its training step."""

    def __init__(self) -> None:
        super().__init__()
        self.network = build()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        images, classes = batch
        return cross_entropy(self.network(images), classes)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    """Train over all ranks."""
    size, local_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    strategy = DDPStrategy(process_group_backend=sys.argv[1] if sys.argv[1:] else None)
    trainer = lightning.Trainer(
        max_epochs=3, strategy=strategy, devices=local_size, num_nodes=size // local_size,
        accelerator="gpu" if torch.cuda.is_available() else "cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Classifier()
    trainer.fit(model, DataLoader(load(), batch_size=32, shuffle=True))
    if trainer.is_global_zero:
        print(f"accuracy {accuracy(model.network):.2f} with {trainer.world_size} ranks over {dist.get_backend()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
