"""The communication hook that sends the largest gradients only."""

from collections.abc import Iterator
from typing import Any

import pytest

from ddlrun.errors import InputError
from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

import torch
from torch import distributed as torch_distributed
from torch import nn

from ddlrun.ddl.torch import TopK, top_k_hook

pytestmark = pytest.mark.extra
distributed: Any = torch_distributed  # its stubs do not export HashStore


class Product(nn.Module):
    """The sum of its parameters' products with fixed gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

    def forward(self) -> torch.Tensor:
        """Use `second` first: DistributedDataParallel then changes their order in the bucket after the first step."""
        second = (self.second * torch.tensor([2.0, 1.0])).sum()
        return second + (self.first * torch.tensor([4.0, 3.0])).sum()


@pytest.fixture
def alone() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_what_was_not_sent_is_added_to_the_next_step() -> None:
    model: Any = nn.parallel.DistributedDataParallel(Product())
    model.register_comm_hook(TopK(0.25), top_k_hook)
    optimizer, sent = torch.optim.SGD(model.parameters(), 1), []
    for _ in range(4):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        sent.append([*model.module.first.grad.tolist(), *model.module.second.grad.tolist()])
    assert sent == [[4, 0, 0, 0], [0, 6, 0, 0], [8, 0, 0, 0], [0, 0, 8, 0]]


@pytest.mark.parametrize("share", [0, -0.1, 1.5])
def test_a_share_is_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(InputError, match=r"TopK: share .* is not above 0 and at most 1"):
        TopK(share)
