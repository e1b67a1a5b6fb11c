"""Large-model support on CPU tensors with a simulated device: the memory that leaves, stays and is freed."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

import torch
from torch import Tensor, nn

from ddlrun.ddl.lms import LMS
from tests.ddl.lms_networks import (
    FULL,
    UNIT,
    deep,
    gradients,
    half_full,
    same_bits,
    save_two,
    swap_all,
    train,
    train_plainly,
)
from tests.ddl.simulated_device import ByteCounter, SimulatedDevice

pytestmark = [pytest.mark.extra, pytest.mark.usefixtures("no_garbage")]


def run_pass(
    net: nn.Module, make_lms: Callable[[ByteCounter], LMS] | None, **options: Any
) -> tuple[list[Tensor], ByteCounter, LMS | None]:
    """Return the gradients of a pass, the counter of the bytes that it held, and its LMS."""
    x = torch.randn(1024, 32, generator=torch.Generator().manual_seed(4))  # one unit
    net.zero_grad()
    with ByteCounter(x, *net.parameters()) as counting:
        lms = make_lms(counting) if make_lms is not None else None
        if lms is None:
            net(x).square().mean().backward(**options)
        else:
            with lms:
                loss = net(x).square().mean()
            loss.backward(**options)
    return gradients(net), counting, lms


@pytest.mark.parametrize("polls", [0, 2, FULL])
@pytest.mark.parametrize(("units", "frac"), [(8, 0.5), (8, 0.8), (10, 0.6), (4, 0)])
def test_the_device_holds_less(units: int, frac: float, polls: int) -> None:
    net = deep()
    device: list[SimulatedDevice] = []

    def large(counting: ByteCounter) -> LMS:
        device.append(SimulatedDevice(units * UNIT, counting.live, polls=polls))
        return LMS(size_kb=120, frac=frac, device=device[0])

    plain, before, _ = run_pass(net, None)
    swapped, after, lms = run_pass(net, large)
    assert same_bits(plain, swapped)
    assert before.peak > 17 * UNIT
    # The memory of one operation, and memory that is being copied, comes on top.
    assert after.peak <= max(frac * units, 1) * UNIT + 5.2 * UNIT
    assert device[0].at_fault() == []
    assert lms is not None
    stats = lms.stats()
    assert stats.device_peak <= after.peak
    assert stats.bytes_out == sum(device[0].out) == stats.out * UNIT
    assert stats.bytes_in == sum(device[0].back) == stats.back * UNIT
    assert stats.host_peak == stats.bytes_out  # all are on the host when forward ends
    assert stats.missed <= 1
    assert stats.saved == 17
    assert 9 <= stats.out <= 16
    assert stats.back in (stats.out - 1, stats.out)  # the last one may still be leaving


def test_nothing_leaves_while_there_is_room() -> None:
    _, counting, lms = run_pass(
        deep(), lambda counting: LMS(100, 0.9, device=SimulatedDevice(64 * UNIT, counting.live))
    )
    assert lms is not None
    assert (lms.stats().saved, lms.stats().out) == (17, 0)
    assert counting.peak > 17 * UNIT


def test_only_large_memory_leaves() -> None:
    _, _, lms = run_pass(deep(), lambda _: LMS(129, 0, device=half_full()))
    assert lms is not None
    assert lms.stats().saved == 0


def test_without_gradients_nothing_is_saved() -> None:
    large = swap_all()
    with large, torch.no_grad():
        deep()(torch.randn(8, 32))
    with large, torch.inference_mode():
        deep()(torch.randn(8, 32))
    assert large.stats().saved == 0


def test_memory_of_several_tensors_leaves_once() -> None:
    large = swap_all()
    x = torch.randn(64, 64, requires_grad=True)

    def loss() -> Tensor:
        y = x * 2
        # The same tensor three times, its transpose, parts of it, and a view of another type.
        return (y * y).sum() + (y.t() @ y).sum() + (y[3:] * y[:-3]).sum() + y.view(-1)[7:].view(torch.int32).sum() * 0

    loss().backward()
    plain, x.grad = x.grad, None
    with large:
        value = loss()
        later = save_two()
    assert large.stats().out == 1
    value.backward()
    del later
    assert plain is not None
    assert x.grad is not None
    assert torch.equal(plain, x.grad)
    assert large.stats().back == 1


def test_parameters_and_tensors_with_other_owners_stay() -> None:
    large = swap_all()
    layer = nn.Linear(64, 64)
    held = torch.randn(32, 64)
    with large:
        output = layer(held).tanh()
        loss = layer(output).square().sum()
        later = save_two()
    assert large.stats().saved == 5
    assert large.stats().out == 1  # the memory that square saved; `output` and `held` have another owner
    loss.backward()
    assert output.shape == (32, 64)
    del later


def test_memory_leaves_later_when_it_has_no_other_owner_any_more() -> None:
    large = swap_all()
    with large:
        tensor = torch.randn(32, 64, requires_grad=True).clone()
        loss = tensor.square().sum() + save_two().sum()
        assert large.stats().bytes_out < 99
        del tensor
        loss = loss + save_two().sum()
    assert large.stats().bytes_out > 32 * 64 * 4
    loss.backward()


def test_sparse_tensors_stay() -> None:
    large = swap_all()
    matrix = torch.tensor([[0.0, 1.0], [2.0, 0.0]]).to_sparse().requires_grad_()
    with large:
        dense = torch.randn(2, 40, requires_grad=True)
        loss = torch.sparse.mm(matrix, dense * 2).square().sum()
    loss.backward()
    assert dense.grad is not None
    assert torch.isfinite(dense.grad).all()


def test_a_retained_graph_does_not_fill_the_device() -> None:
    net = deep()
    x = torch.randn(1024, 32)
    with ByteCounter() as counting:
        device = SimulatedDevice(8 * UNIT, counting.live)
        with LMS(120, 0.5, device=device):
            loss = net(x).square().mean()
        for _ in range(3):
            net.zero_grad()
            loss.backward(retain_graph=True)
        faults = device.at_fault()
    assert counting.peak < 10 * UNIT
    assert faults == []
    assert device.out_of_memory == 0
    assert len(device.back) > 2 * len(device.out)


def test_an_error_in_forward_or_backward_leaves_nothing() -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: Any, _grad: Tensor) -> Tensor:  # type: ignore[override]  # noqa: ARG004
            raise ValueError("on purpose")

    device = half_full()
    large = swap_all(device)

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
    assert same_bits(train_plainly("mlp"), train("mlp", large))


def test_a_discarded_graph_leaves_nothing() -> None:
    net = deep()
    x = torch.randn(1024, 32)
    with ByteCounter(x, *net.parameters()) as counting:
        device = SimulatedDevice(8 * UNIT, counting.live, polls=FULL)
        large = LMS(120, 0.3, device=device)
        for _ in range(3):
            with large:
                loss = net(x).square().mean()
            del loss
        large.stats()  # memory that is being copied is freed here, or with the next save
        assert counting.live() == 0
    assert device.on_host() == 0
    assert device.at_fault() == []


def test_half_a_backward_pass_leaves_nothing() -> None:
    net = deep()
    x = torch.randn(1024, 32)
    with ByteCounter(x, *net.parameters()) as counting:
        device = SimulatedDevice(8 * UNIT, counting.live, polls=FULL)
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


def test_memory_that_was_brought_back_in_vain_makes_room() -> None:
    """Two graphs run in the order of their creation: the first one passes over the memory of the second."""
    torch.manual_seed(0)
    nets, x = [deep(), deep()], torch.randn(1024, 32)

    def both(large: Callable[[ByteCounter], LMS] | None) -> tuple[list[Tensor], ByteCounter]:
        with ByteCounter() as counting:
            lms = large(counting) if large is not None else LMS(0, device=half_full())
            with lms:
                losses = [net(x).square().mean() for net in nets]
            for loss in losses:
                loss.backward()
            results = [grad for net in nets for grad in gradients(net)]
        for net in nets:
            net.zero_grad()
        return results, counting

    device: list[SimulatedDevice] = []

    def large(counting: ByteCounter) -> LMS:
        device.append(SimulatedDevice(10 * UNIT, counting.live, polls=FULL))
        return LMS(120, 0.5, window=0.2, device=device[0])

    plain, before = both(None)
    swapped, after = both(large)
    assert same_bits(plain, swapped)
    assert before.peak > 33 * UNIT
    assert after.peak < 14 * UNIT
    assert device[0].at_fault() == []


def test_a_host_without_room_keeps_tensors_on_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    device = half_full(room=3000)
    large = swap_all(device)
    assert same_bits(train_plainly("mlp"), train("mlp", large))
    assert large.stats().refused
    assert large.stats().out
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert message.startswith("ddlrun.ddl.lms: no ")
    assert "of pinned memory, so tensors stay: simulated: the host is full" in message
    assert "stayed for lack of pinned memory" in str(large.stats())
