"""Lightning's command line with the model and the data of its own demos."""

from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, DemoModel

if __name__ == "__main__":
    LightningCLI(DemoModel, BoringDataModule)
