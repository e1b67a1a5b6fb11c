"""The data and the network of the recipes: handwritten digits, in 10 classes."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

CLASSES = 10


def load() -> TensorDataset:
    """Return the images, 64 pixels each, and their classes."""
    pixels, classes = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(classes))


def build() -> torch.nn.Sequential:
    """Return the network, with the same first weights on every rank."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, CLASSES))


def accuracy(network: torch.nn.Module, device: torch.device | str = "cpu") -> float:
    """Return the share of images whose class the network finds."""
    images, classes = load().tensors
    with torch.no_grad():
        return float((network(images.to(device)).argmax(1).cpu() == classes).float().mean())
