"""Large-model support on CPU tensors with a simulated device: gradients have the same bits."""

import copy
import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

import torch
from torch import Tensor, nn

from ddlrun.ddl.lms import LMS
from tests.ddl.lms_networks import FULL, NETWORKS, deep, gradients, half_full, same_bits, swap_all, train, train_plainly
from tests.ddl.simulated_device import ByteCounter, SimulatedDevice

pytestmark = [pytest.mark.extra, pytest.mark.usefixtures("no_garbage")]


@pytest.mark.parametrize("polls", [0, 2, FULL])
@pytest.mark.parametrize("backward_inside", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_the_same_bits(network: str, backward_inside: bool, polls: int) -> None:  # noqa: FBT001
    device = half_full(polls=polls)
    large = swap_all(device)
    assert same_bits(train_plainly(network), train(network, large, backward_inside=backward_inside))
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
    with ByteCounter() as counting:
        # The device is never out of memory: at frac 0 a real one has no less.
        device = SimulatedDevice(capacity, lambda: min(counting.live(), capacity), polls=polls)
        large = LMS(size_kb=0.1, frac=frac, window=window, device=device)
        assert same_bits(train_plainly(network), train(network, large, backward_inside=inside))
    assert device.at_fault() == []
    assert device.on_host() == 0


@pytest.mark.parametrize("polls", [0, FULL])
def test_a_retained_graph_can_run_again(polls: int) -> None:
    net, x, device = deep(6), torch.randn(32, 32), half_full(polls=polls)
    net(x).square().mean().backward()
    plain = gradients(net)
    with swap_all(device):
        loss = net(x).square().mean()
    for last in (False, False, True):
        net.zero_grad()
        loss.backward(retain_graph=not last)
        assert same_bits(plain, gradients(net))
    assert len(device.back) < 3 * len(device.out)  # the device is half full, so memory that came back stays
    assert device.at_fault() == []
    del loss
    assert device.on_host() == 0


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

    large = swap_all()
    assert same_bits(second(None), second(large))
    assert large.stats().back


def test_threads_share_an_lms() -> None:
    large = swap_all(half_full(polls=1))
    barrier = threading.Barrier(4)
    results: dict[int, tuple[Tensor, Tensor]] = {}

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
        results[number] = x, torch.cat([grad.flatten() for grad in gradients(net)])

    first: nn.Module = deep(4).double()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [0, 1, 2, 3]
    for x, slopes in results.values():
        net = copy.deepcopy(first)
        net(x.double()).square().mean().backward()
        assert torch.equal(slopes, torch.cat([grad.flatten() for grad in gradients(net)]))
    assert large.stats().out
    assert large.stats().back


def test_a_compiled_module_can_be_watched() -> None:
    net, x = deep(3), torch.randn(32, 32)
    net(x).square().sum().backward()
    plain = gradients(net)
    net.zero_grad()
    compiled = torch.compile(net, backend="eager")
    device = half_full()
    with swap_all(device):
        loss = compiled(x).square().sum()
    loss.backward()
    assert same_bits(plain, gradients(net))
    assert device.out


def test_watching_a_compiled_module() -> None:
    net, x = deep(3), torch.randn(32, 32)
    large = swap_all()
    compiled = torch.compile(net, backend="eager")
    large.around(compiled)  # type: ignore[arg-type]
    compiled(x).square().sum().backward()
    assert large.stats().saved


@pytest.mark.parametrize("kind", ["vmap", "nested", "jagged", "autocast"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_unusual_tensors_have_the_same_gradients(kind: str) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(16, requires_grad=True), torch.randn(8, 16)

    def nest(layout: torch.layout) -> Tensor:
        return torch.nested.as_nested_tensor([x * w, (x * w)[:3]], layout=layout).sin().relu()

    def loss() -> Tensor:
        if kind == "vmap":
            rows = torch.vmap(lambda row: torch.outer(row * w, row * w).sin().exp())(x * w)
            return rows.sum()  # type: ignore[no-any-return]
        if kind == "nested":
            return torch.nested.to_padded_tensor(nest(torch.strided), 0.0).sum()
        if kind == "jagged":
            return nest(torch.jagged).values().sum()
        with torch.autocast("cpu", torch.bfloat16):
            return ((x * w) @ torch.outer(w, w)).float().tanh().exp().exp().sum()

    loss().backward()
    plain, w.grad = w.grad, None
    with swap_all():
        value = loss()
    value.backward()
    assert plain is not None
    assert w.grad is not None
    assert same_bits([plain], [w.grad])


def test_a_change_in_place_raises_torchs_error() -> None:
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
    assert broken(swap_all()) == plain  # memory that could leave
    assert broken(LMS(10**6, 0, device=half_full())) == plain  # memory that could not


def test_a_change_after_memory_has_left_raises_torchs_error() -> None:
    large = swap_all()
    layer = nn.Linear(64, 64, bias=False)
    with large:
        loss = layer(layer(torch.randn(8, 64)).tanh()).square().sum()
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
