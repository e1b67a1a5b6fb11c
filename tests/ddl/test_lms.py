"""Large-model support on tensors of the CPU, whose memory a pretended device counts: the same bits, less of it."""

import copy
import gc
import importlib.util
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if importlib.util.find_spec("torch") is None:
    pytest.skip("no torch: the extra `torch` has it", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ddlrun.ddl.lms import LMS, Policy, enable
from ddlrun.ddl.lms.swap import Swap
from tests.ddl.pretended_device import Counting, Pretended

UNIT = 1 << 17
FULL = 1 << 50


def full(capacity: int = 1 << 40, **more: Any) -> Pretended:
    """Return a device that is always half full: with a lower share, all goes that can."""
    return Pretended(capacity, lambda: capacity // 2, **more)


def everything(device: Pretended | None = None) -> LMS:
    """Let all go that can, and wait for all but the last of it."""
    return LMS(size_kb=0.01, frac=0, window=0, device=device or full(polls=0))


def save_two() -> Tensor:
    """Save twice, so that what was saved before leaves, and has left."""
    return torch.ones(9, requires_grad=True).clone().exp().exp()


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    """Nothing here may need the garbage collector to be freed."""
    gc.collect()
    gc.disable()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these tensors are small
    yield
    torch.set_num_threads(threads)
    gc.enable()


class Conv(nn.Module):
    """Convolutions with batch norm, in-place relu and what a U-Net keeps for later."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.middle, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = functional.relu(self.norm(self.down(x)), inplace=True)
        y = functional.max_pool2d(kept, 2)
        y = functional.interpolate(functional.gelu(self.middle(y)), scale_factor=2)
        return self.up(torch.cat([kept, y], 1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """One projection for queries, keys and values: three views of one memory."""

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
    """Views of many kinds: strides, other types, complex, overlapping, conjugate, broadcast."""

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
def plain(network: str) -> list[Tensor]:
    return trained(network, None)


def trained(network: str, large: LMS | None, *, backward_inside: bool = True, steps: int = 2) -> list[Tensor]:
    """Return gradients, buffers and losses of some steps."""
    torch.manual_seed(5)
    make, x = NETWORKS[network]
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    found: list[Tensor] = []
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
        found += [loss.detach(), *(grad.clone() for grad in grads(net))]
        optimizer.step()
    return [*found, *(b.clone() for b in net.buffers())]


def grads(net: nn.Module) -> list[Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and torch.equal(a, b) and not a.isnan().any() for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("polls", [0, 2, FULL])
@pytest.mark.parametrize("backward_inside", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_the_same_bits(network: str, backward_inside: bool, polls: int) -> None:  # noqa: FBT001
    device = full(polls=polls)
    large = everything(device)
    assert same(plain(network), trained(network, large, backward_inside=backward_inside))
    assert device.out
    assert device.back
    assert device.at_fault() == []
    assert device.on_host() == 0


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(list(NETWORKS)), st.floats(0, 1), st.floats(0, 0.3), st.integers(0, 5), st.integers(5_000, 50_000),
    st.booleans(),
)  # fmt: skip
def test_gradients_are_the_same_bits_at_any_setting(
    network: str,
    frac: float,
    window: float,
    polls: int,
    capacity: int,
    inside: bool,  # noqa: FBT001
) -> None:
    with Counting() as counting:
        # Never out of memory: real devices have no less at frac 0.
        device = Pretended(capacity, lambda: min(counting.live(), capacity), polls=polls)
        large = LMS(size_kb=0.1, frac=frac, window=window, device=device)
        assert same(plain(network), trained(network, large, backward_inside=inside))
    assert device.at_fault() == []
    assert device.on_host() == 0


def deep(layers: int = 16) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(32, 32), nn.Tanh())))


def passed(
    net: nn.Module, large: Callable[[Counting], LMS] | None, **more: Any
) -> tuple[list[Tensor], Counting, LMS | None]:
    """Return the gradients of one pass, and how many bytes it held at most."""
    x = torch.randn(1024, 32, generator=torch.Generator().manual_seed(4))  # one unit
    net.zero_grad()
    with Counting(x, *net.parameters()) as counting:
        lms = large(counting) if large is not None else None
        if lms is None:
            net(x).square().mean().backward(**more)
        else:
            with lms:
                loss = net(x).square().mean()
            loss.backward(**more)
    return grads(net), counting, lms


@pytest.mark.parametrize("polls", [0, 2, FULL])
@pytest.mark.parametrize(("units", "frac"), [(8, 0.5), (8, 0.8), (10, 0.6), (4, 0)])
def test_the_most_that_the_device_holds_falls(units: int, frac: float, polls: int) -> None:
    net = deep()
    device: list[Pretended] = []

    def large(counting: Counting) -> LMS:
        device.append(Pretended(units * UNIT, counting.live, polls=polls))
        return LMS(size_kb=120, frac=frac, device=device[0])

    plain, before, _ = passed(net, None)
    swapped, after, lms = passed(net, large)
    assert same(plain, swapped)
    assert before.peak > 17 * UNIT
    # What one operation needs, and what is on its way, comes on top.
    assert after.peak <= max(frac * units, 1) * UNIT + 5.2 * UNIT
    assert device[0].at_fault() == []
    assert lms is not None
    stats = lms.stats()
    assert stats.device_peak <= after.peak
    assert stats.bytes_out == sum(device[0].out) == stats.out * UNIT
    assert stats.bytes_in == sum(device[0].back) == stats.back * UNIT
    assert stats.host_peak == stats.bytes_out  # all are out at once, when forward ends
    assert stats.missed <= 1
    assert stats.saved == 17
    assert 9 <= stats.out <= 16
    assert stats.back in (stats.out - 1, stats.out)  # the last may be on its way out yet


def test_nothing_goes_while_there_is_room() -> None:
    _, counting, lms = passed(deep(), lambda counting: LMS(100, 0.9, device=Pretended(64 * UNIT, counting.live)))
    assert lms is not None
    assert (lms.stats().saved, lms.stats().out) == (17, 0)
    assert counting.peak > 17 * UNIT


def test_only_what_is_large_goes() -> None:
    _, _, lms = passed(deep(), lambda _: LMS(129, 0, device=full()))
    assert lms is not None
    assert lms.stats().saved == 0


def test_size_zero_and_no_device_switch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not LMS(0, device=full()).active
    assert LMS().active == torch.cuda.is_available()
    monkeypatch.setenv("DDLRUN_LMS", "0")
    assert not LMS(device=full()).active
    monkeypatch.setenv("DDLRUN_LMS", "4")
    monkeypatch.setenv("DDLRUN_LMS_FRAC", "0.25")
    assert LMS(device=full()).policy == Policy(4096, 0.25)
    off = LMS(0, device=full())
    assert same(plain("mlp"), trained("mlp", off))
    assert off.stats().saved == 0


def test_without_gradients_nothing_is_saved() -> None:
    large = everything()
    with large, torch.no_grad():
        deep()(torch.randn(8, 32))
    with large, torch.inference_mode():
        deep()(torch.randn(8, 32))
    assert large.stats().saved == 0


def test_one_memory_goes_once_whatever_lies_in_it() -> None:
    large = everything()
    x = torch.randn(64, 64, requires_grad=True)

    def loss() -> Tensor:
        y = x * 2
        # The same tensor thrice, its transpose, parts, another type of it.
        return (y * y).sum() + (y.t() @ y).sum() + (y[3:] * y[:-3]).sum() + y.view(-1)[7:].view(torch.int32).sum() * 0

    loss().backward()
    plain, x.grad = x.grad, None
    with large:
        one = loss()
        later = save_two()
    assert large.stats().out == 1
    one.backward()
    del later
    assert plain is not None
    assert x.grad is not None
    assert torch.equal(plain, x.grad)
    assert large.stats().back == 1


def test_parameters_and_what_others_hold_stay() -> None:
    large = everything()
    layer = nn.Linear(64, 64)
    held = torch.randn(32, 64)
    with large:
        kept = layer(held).tanh()
        loss = layer(kept).square().sum()
        later = save_two()
    assert large.stats().saved == 5
    assert large.stats().out == 1  # what square saved; `kept` and `held` are ours
    loss.backward()
    assert kept.shape == (32, 64)
    del later


def test_what_nobody_else_holds_any_more_goes_later() -> None:
    large = everything()
    with large:
        kept = torch.randn(32, 64, requires_grad=True).clone()
        loss = kept.square().sum() + save_two().sum()
        assert large.stats().bytes_out < 99
        del kept
        loss = loss + save_two().sum()
    assert large.stats().bytes_out > 32 * 64 * 4
    loss.backward()


@pytest.mark.parametrize("polls", [0, FULL])
def test_a_graph_can_be_kept_and_run_again(polls: int) -> None:
    net, x, device = deep(6), torch.randn(32, 32), full(polls=polls)
    net(x).square().mean().backward()
    plain = grads(net)
    with everything(device):
        loss = net(x).square().mean()
    for last in (False, False, True):
        net.zero_grad()
        loss.backward(retain_graph=not last)
        assert same(plain, grads(net))
    assert len(device.back) < 3 * len(device.out)  # half full: what is back stays
    assert device.at_fault() == []
    del loss
    assert device.on_host() == 0


def test_a_kept_graph_does_not_fill_the_device() -> None:
    net, faults = deep(), []
    x = torch.randn(1024, 32)
    with Counting() as counting:
        device = Pretended(8 * UNIT, counting.live)
        with LMS(120, 0.5, device=device):
            loss = net(x).square().mean()
        for _ in range(3):
            net.zero_grad()
            loss.backward(retain_graph=True)
        faults += device.at_fault()
    assert counting.peak < 10 * UNIT
    assert faults == []
    assert device.out_of_memory == 0
    assert len(device.back) > 2 * len(device.out)


@pytest.mark.parametrize("inside", [True, False])
def test_second_derivatives(inside: bool) -> None:  # noqa: FBT001
    def second(large: LMS | None) -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(20, 16, requires_grad=True)
        net = NETWORKS["mlp"][0]().eval()

        def first() -> Tensor:
            return (net(x * 1.1).tanh() ** 3).sum()

        if large is None:
            (slope,) = torch.autograd.grad(first(), x, create_graph=True)
        else:
            with large:
                value = first()
                if inside:
                    (slope,) = torch.autograd.grad(value, x, create_graph=True)
            if not inside:
                (slope,) = torch.autograd.grad(value, x, create_graph=True)
        slope.square().sum().backward()
        return [g for g in (x.grad, *(p.grad for p in net.parameters())) if g is not None]

    large = everything()
    assert same(second(None), second(large))
    assert large.stats().back


def test_changes_in_place_are_found_as_without() -> None:
    def broken(context: LMS | torch.enable_grad) -> str:
        with context:
            x = torch.randn(8, 64, requires_grad=True)
            y = x * 1
            z = y.exp() + y.square()
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            z.sum().backward()
        return re.sub(r", which is output .*?,", ",", str(error.value).split(";")[0])

    plain = broken(torch.enable_grad())
    assert broken(everything()) == plain  # memory that could leave
    assert broken(LMS(10**6, 0, device=full())) == plain  # memory that could not


def test_changes_after_memory_has_left_are_found_too() -> None:
    large = everything()
    layer = nn.Linear(64, 64, bias=False)
    with large:
        loss = layer(layer(torch.randn(8, 64)).tanh()).square().sum()
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_error_in_forward_or_backward_leaves_nothing() -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: Any, _grad: Tensor) -> Tensor:  # type: ignore[override]  # noqa: ARG004
            raise ValueError("on purpose")

    device = full()
    large = everything(device)

    class Net(nn.Module):
        def __init__(self, *, fails: bool) -> None:
            super().__init__()
            self.first, self.last, self.fails = deep(3), deep(3), fails

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            if self.fails:
                raise ValueError("on purpose")
            return self.last(Breaks.apply(y))  # type: ignore[no-any-return,no-untyped-call]

    for fails in (True, False):
        net = Net(fails=fails)
        large.around(net)
        with pytest.raises(ValueError, match="on purpose"):
            net(torch.randn(8, 32)).sum().backward()
        saved = large.stats().saved
        torch.randn(64, requires_grad=True).clone().exp()
        assert large.stats().saved == saved  # the hooks are gone
    large.disable()
    gc.collect()  # the tracebacks were cycles
    assert device.on_host() == 0
    assert same(plain("mlp"), trained("mlp", large))


def test_a_graph_that_is_thrown_away_leaves_nothing() -> None:
    net = deep()
    x = torch.randn(1024, 32)
    with Counting(x, *net.parameters()) as counting:
        device = Pretended(8 * UNIT, counting.live, polls=FULL)
        large = LMS(120, 0.3, device=device)
        for _ in range(3):
            with large:
                loss = net(x).square().mean()
            del loss
        large.stats()  # what is under way is let go here, or with the next save
        assert counting.live() == 0
    assert device.on_host() == 0
    assert device.at_fault() == []


def test_half_a_backward_pass_leaves_nothing() -> None:
    net = deep()
    x = torch.randn(1024, 32)
    with Counting(x, *net.parameters()) as counting:
        device = Pretended(8 * UNIT, counting.live, polls=FULL)
        large = LMS(120, 0.3, window=0.3, device=device)
        with large:
            y = net[:8](x)  # type: ignore[index]
            loss = net[8:](y).square().mean()  # type: ignore[index]
        (slope,) = torch.autograd.grad(loss, y)
        assert slope.shape == y.shape
        del loss, y, slope
        large.stats()
        assert counting.live() == 0
    assert device.at_fault() == []
    assert device.on_host() == 0


def test_what_was_brought_back_for_nothing_makes_room() -> None:
    """Two graphs, run in the order of their making: the first passes over what the second would need."""
    torch.manual_seed(0)
    nets, x = [deep(), deep()], torch.randn(1024, 32)

    def both(large: Callable[[Counting], LMS] | None) -> tuple[list[Tensor], Counting]:
        with Counting() as counting:
            lms = large(counting) if large is not None else LMS(0, device=full())
            with lms:
                losses = [net(x).square().mean() for net in nets]
            for loss in losses:
                loss.backward()
            found = [grad for net in nets for grad in grads(net)]
        for net in nets:
            net.zero_grad()
        return found, counting

    device: list[Pretended] = []

    def large(counting: Counting) -> LMS:
        device.append(Pretended(10 * UNIT, counting.live, polls=FULL))
        return LMS(120, 0.5, window=0.2, device=device[0])

    plain, before = both(None)
    swapped, after = both(large)
    assert same(plain, swapped)
    assert before.peak > 33 * UNIT
    assert after.peak < 14 * UNIT
    assert device[0].at_fault() == []


def test_threads_share_one() -> None:
    large = everything(full(polls=1))
    barrier = threading.Barrier(4)
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def work(number: int) -> None:
        random = torch.Generator().manual_seed(number)
        x = torch.randn(200, 32, generator=random)
        net = copy.deepcopy(first)
        barrier.wait()
        for _ in range(5):
            net.zero_grad()
            with large:
                loss = net(x.double()).square().mean()
            loss.backward()
        found[number] = x, torch.cat([grad.flatten() for grad in grads(net)])

    first: nn.Module = deep(4).double()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [0, 1, 2, 3]
    for x, slopes in found.values():
        net = copy.deepcopy(first)
        net(x.double()).square().mean().backward()
        assert torch.equal(slopes, torch.cat([grad.flatten() for grad in grads(net)]))
    assert large.stats().out
    assert large.stats().back


def test_a_host_without_room_keeps_tensors_on_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    device = full(room=3000)
    large = everything(device)
    assert same(plain("mlp"), trained("mlp", large))
    assert large.stats().refused
    assert large.stats().out
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("ddlrun.ddl.lms: no ")
    assert "of pinned memory, so tensors stay: pretended: the host is full" in told
    assert "stayed for lack of pinned memory" in str(large.stats())


def test_a_device_without_room_takes_that_of_what_came_ahead() -> None:
    with Counting() as counting:
        others = [0]
        device = Pretended(400_000, lambda: counting.live() + others[0], polls=0)
        swap = Swap(device, Policy(1, 0, window=0.5))
        saved = [swap.pack(torch.full((1000,), float(number))) for number in range(40)]
        assert saved[30].fetch()[0] == 30
        assert len(device.back) == 31
        others[0] = 350_000
        assert saved[35].fetch()[0] == 35
        assert device.out_of_memory == 1
        assert counting.live() < 20_000
        others[0] = 400_000
        with pytest.raises(torch.cuda.OutOfMemoryError):
            saved[20].fetch()
        others[0] = 0
        assert saved[20].fetch()[0] == 20
    assert device.at_fault() == []


def test_a_module_is_watched_until_it_is_not() -> None:
    net, x = deep(3), torch.randn(32, 32)
    large = enable(net, 0.01, 0, device=full())
    net(x).sum().backward()
    saved = large.stats().saved
    assert saved
    outside = x.clone().requires_grad_().clone().exp()
    outside.sum().backward()
    assert large.stats().saved == saved
    large.disable()
    net(x).sum().backward()
    assert large.stats().saved == saved


def test_a_watched_module_is_copied_and_saved_like_others() -> None:
    net, x = deep(3), torch.randn(32, 32)
    large = enable(net, 0.01, 0.5, device=full())
    twin = copy.deepcopy(net)
    before = large.stats().saved
    twin(x).sum().backward()
    assert large.stats().saved > before
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(x), net(x))
    assert loaded.state_dict().keys() == net.state_dict().keys()


def test_a_hook_that_fails_first_leaves_the_hooks_of_others() -> None:
    net = deep(1)

    def fails(_module: nn.Module, _args: Any) -> None:
        raise ValueError("on purpose")

    net.register_forward_pre_hook(fails)
    enable(net, 0.01, 0, device=full())
    outer = everything()
    with outer:
        with pytest.raises(ValueError, match="on purpose"):
            net(torch.randn(32, 32))
        torch.randn(64, requires_grad=True).clone().exp()
    assert outer.stats().saved == 1


def test_a_compiled_module_can_be_watched() -> None:
    net, x = deep(3), torch.randn(32, 32)
    net(x).square().sum().backward()
    plain = grads(net)
    net.zero_grad()
    compiled = torch.compile(net, backend="eager")
    device = full()
    with everything(device):
        loss = compiled(x).square().sum()
    loss.backward()
    assert same(plain, grads(net))
    assert device.out


def test_watching_a_compiled_module() -> None:
    net, x = deep(3), torch.randn(32, 32)
    large = everything()
    compiled = torch.compile(net, backend="eager")
    large.around(compiled)  # type: ignore[arg-type]
    compiled(x).square().sum().backward()
    assert large.stats().saved


@pytest.mark.parametrize("way", ["vmap", "nested", "jagged", "autocast"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_unusual_tensors_have_the_same_gradients(way: str) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(16, requires_grad=True), torch.randn(8, 16)

    def nest(layout: torch.layout) -> Tensor:
        return torch.nested.as_nested_tensor([x * w, (x * w)[:3]], layout=layout).sin().relu()

    def loss() -> Tensor:
        if way == "vmap":
            rows = torch.vmap(lambda row: torch.outer(row * w, row * w).sin().exp())(x * w)
            return rows.sum()  # type: ignore[no-any-return]
        if way == "nested":
            return torch.nested.to_padded_tensor(nest(torch.strided), 0.0).sum()
        if way == "jagged":
            return nest(torch.jagged).values().sum()
        with torch.autocast("cpu", torch.bfloat16):
            return ((x * w) @ torch.outer(w, w)).float().tanh().exp().exp().sum()

    loss().backward()
    plain, w.grad = w.grad, None
    with everything():
        value = loss()
    value.backward()
    assert plain is not None
    assert w.grad is not None
    assert same([plain], [w.grad])


def test_the_how_to_runs_without_a_gpu() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "large-models.md"
    script = "".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert " saved, " in done.stdout


def test_what_is_no_plain_memory_stays() -> None:
    large = everything()
    matrix = torch.tensor([[0.0, 1.0], [2.0, 0.0]]).to_sparse().requires_grad_()
    with large:
        dense = torch.randn(2, 40, requires_grad=True)
        loss = torch.sparse.mm(matrix, dense * 2).square().sum()
    loss.backward()
    assert dense.grad is not None
    assert torch.isfinite(dense.grad).all()


def test_blocks_die_with_their_graph() -> None:
    device = full()
    swap = Swap(device, Policy(1, 0))
    x = torch.randn(100)
    saved = [swap.pack(x), swap.pack(x[3:]), swap.pack(torch.randn(5))]
    assert torch.equal(saved[1].fetch(), x[3:])
    assert swap.stats.saved == 2
    del saved
    assert (swap.stats.saved, len(swap)) == (2, 0)


def test_memory_of_another_tensor_at_the_same_place_is_another() -> None:
    device = full(polls=0)
    swap = Swap(device, Policy(1, 0, 0))
    # What has left gives its place in memory to those that follow.
    saved = [swap.pack(torch.full((1000,), float(number))) for number in range(200)]
    assert swap.stats.saved == 200
    assert len(device.out) > 190
    for number in reversed(range(200)):
        assert torch.equal(saved.pop().fetch(), torch.full((1000,), float(number)))
    assert device.lent == 200


def test_a_full_host_is_not_asked_again_until_it_has_more_room() -> None:
    device = full(polls=0, room=8000)
    swap = Swap(device, Policy(1, 0, 0))
    saved = [swap.pack(torch.zeros(1000)) for _ in range(10)]
    assert (swap.stats.out, swap.stats.refused) == (2, 1)
    del saved[0]
    saved += [swap.pack(torch.zeros(1000)) for _ in range(10)]
    assert (swap.stats.out, swap.stats.refused) == (3, 2)


def test_memory_of_a_block_that_dies_meanwhile_may_be_another_ones() -> None:
    """Another thread may let a graph go while something comes back: its storage's name is free at once."""
    dying: list[Any] = []

    class Reuses(Pretended):
        def bring_back(self, host: Tensor, after: Any) -> tuple[Tensor, Any]:
            if dying:
                dying.pop()
            return super().bring_back(host, after)

    used = [100]
    device = Reuses(100, lambda: used[0], polls=0)
    swap = Swap(device, Policy(1, 0.5, 0))
    saved = [swap.pack(torch.full((1000,), float(number))) for number in range(20)]
    used[0] = 0  # now all stays
    dying += [swap.pack(torch.full((1000,), -1.0)) for _ in range(40)]
    used[0] = 95  # what is done with goes again
    for _ in range(3):
        for number in (7, 3, 12, 0, 19):
            assert saved[number].fetch()[0] == number
    assert len(device.back) == 12  # the last never left
    del saved
    assert len(swap) == 28


def test_what_was_passed_over_goes_again() -> None:
    device = full(polls=0)
    swap = Swap(device, Policy(1, 0, 0))
    saved = [swap.pack(torch.full((1000,), float(number))) for number in range(40)]
    saved[30].fetch()  # 29 comes along
    saved[10].fetch()  # so does 9, and 29 was not needed
    assert len(device.back) == 4
    assert saved[29].fetch()[0] == 29
    assert (swap.stats.missed, len(device.back)) == (3, 6)  # 29, and 28 along with it, in the place of 9
    assert saved[28].fetch()[0] == 28
    assert (swap.stats.missed, len(device.back)) == (3, 7)


SCRIPT = """
import torch
from ddlrun.ddl import lms
from tests.ddl.pretended_device import Pretended
large = lms.LMS(0.01, 0, device=Pretended(1 << 30, lambda: 1 << 29, polls=0))
with large:
    loss = torch.randn(64, 64, requires_grad=True).clone().exp().exp().exp().exp().sum()
loss.backward()
"""


@pytest.mark.parametrize(("options", "lines"), [("-dbg_level 1", 1), ("", 0), ("-mode r", 0)])
def test_one_line_at_the_end_on_request(options: str, lines: int) -> None:
    environ = {**os.environ, "DDL_OPTIONS": options}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environ, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr.count("\n") == lines
    assert not lines or done.stderr.startswith("ddlrun.ddl.lms: 4 saved, 2 out (32.0 KiB), ")
