"""Networks and devices for the tests of large-model support."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ddlrun.ddl.lms import LMS
from tests.ddl.simulated_device import SimulatedDevice

UNIT = 1 << 17


FULL = 1 << 50


def half_full(capacity: int = 1 << 40, **options: Any) -> SimulatedDevice:
    """Return a device that is always half full: with a lower `frac`, all memory leaves that may."""
    return SimulatedDevice(capacity, lambda: capacity // 2, **options)


def swap_all(device: SimulatedDevice | None = None) -> LMS:
    """Return an LMS by which all memory leaves that may, and all copies but the last are waited for."""
    return LMS(size_kb=0.01, frac=0, window=0, device=device or half_full(polls=0))


def save_two() -> Tensor:
    """Save two tensors, so that memory that was saved before leaves, and has left."""
    return torch.ones(9, requires_grad=True).clone().exp().exp()


class Conv(nn.Module):
    """Convolutions with batch norm, in-place relu and a skip connection, as in a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.middle, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = functional.relu(self.norm(self.down(x)), inplace=True)
        y = functional.max_pool2d(skipped, 2)
        y = functional.interpolate(functional.gelu(self.middle(y)), scale_factor=2)
        return self.up(torch.cat([skipped, y], 1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention with one projection for queries, keys and values: three views of the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
        scores = torch.softmax(q @ k.transpose(-1, -2) / 3, -1)
        return y + self.out((scores @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.Tanh()) for _ in range(4))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        for part in self.parts:
            x = checkpoint(part, x * 1.5, use_reentrant=self.reentrant)
        return x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16, num_layers=2, dropout=0.2)
        self.gru = nn.GRU(16, 16, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(self.lstm(x)[0])[0]  # type: ignore[no-any-return]


class Odd(nn.Module):
    """Views of many kinds: with strides, of other types, complex, overlapping, conjugate, broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.w * 0.2
        parts = [x.t() @ x, x[::2, 1::3].exp(), x.flip(0)[3:].sin(), x.unfold(1, 4, 2).pow(3).sum(-1)]
        y = torch.view_as_complex(x.reshape(-1, 8, 2).contiguous())
        parts += [(y * y.conj()).abs(), torch.view_as_real(y.conj() * (2 + 1j)).square(), x[0].expand(5, 16).pow(2)]
        parts += [(x.double() * x.to(torch.bfloat16).double()).square(), x.contiguous().view(-1)[5:].square()]
        return torch.stack([part.double().mean() for part in parts]) * 0.01


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


ROWS = torch.randn(12, 16, generator=torch.Generator().manual_seed(2))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)), ROWS),
    "conv": (Conv, IMAGES),
    "attention": (Attention, torch.arange(48).reshape(4, 12)),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), ROWS[None]),
    "checkpointed": (lambda: Checkpointed(reentrant=False), ROWS),
    "checkpointed, reentrant": (lambda: Checkpointed(reentrant=True), ROWS),
    "recurrent": (Recurrent, ROWS[:, None]),
    "odd": (Odd, ROWS),
}


@cache
def train_plainly(network: str) -> list[Tensor]:
    """Train without large-model support."""
    return train(network, None)


def train(network: str, large: LMS | None, *, backward_inside: bool = True, steps: int = 2) -> list[Tensor]:
    """Return the losses and gradients of some steps, and then the buffers."""
    torch.manual_seed(5)
    make, x = NETWORKS[network]
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    results: list[Tensor] = []
    for _ in range(steps):
        optimizer.zero_grad()
        if large is None:
            loss = net(x).square().mean()
            loss.backward()
        else:
            with large:
                loss = net(x).square().mean()
                if backward_inside:
                    loss.backward()
            if not backward_inside:
                loss.backward()
        results += [loss.detach(), *(grad.clone() for grad in gradients(net))]
        optimizer.step()
    return [*results, *(b.clone() for b in net.buffers())]


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


def same_bits(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(
        a.dtype == b.dtype and torch.equal(a, b) and not a.isnan().any() for a, b in zip(left, right, strict=True)
    )


def deep(layers: int = 16) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(32, 32), nn.Tanh())))
