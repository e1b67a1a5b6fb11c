"""Large-model support on a CUDA device. Without one all tests are skipped."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

import torch
from torch import Tensor, nn

from ddlrun.ddl.lms import LMS
from ddlrun.ddl.lms.policy import PASSES

if not torch.cuda.is_available():
    needs.skip("no CUDA device", module=True)

pytestmark = pytest.mark.extra

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Have the same kernels add in the same order each time."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.cuda.empty_cache()
    yield
    torch.use_deterministic_algorithms(mode=False)


def deep(layers: int = 24) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(512, 512), nn.Tanh()))).cuda()


def grads(net: nn.Module) -> list[Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


def run_passes(net: nn.Module, large: LMS | None) -> tuple[list[Tensor], int]:
    """Return the gradients of some passes, and the most bytes that were allocated in the last, which does not learn."""
    x = torch.randn(16384, 512, generator=torch.Generator().manual_seed(4)).cuda()  # 32 MiB
    gradients = []
    for _ in range(PASSES + 1):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        net.zero_grad()
        if large is None:
            net(x).square().mean().backward()
        else:
            with large:
                loss = net(x).square().mean()
            loss.backward()
        gradients += [grad.cpu() for grad in grads(net)]
    return gradients, torch.cuda.max_memory_allocated()


def share(mib: int) -> float:
    """Return the share of the device that is in use now plus `mib` MiB."""
    free, total = torch.cuda.mem_get_info()
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    return (total - free - reserved + allocated + mib * MIB) / total


@pytest.mark.parametrize("window", [0, 0.0005, 0.05])
@pytest.mark.parametrize("mib", [0, 200])
def test_gradients_are_the_same_bits(mib: int, window: float) -> None:
    net = deep()
    plain, before = run_passes(net, None)
    large = LMS(1000, share(mib), window=window)
    swapped, after = run_passes(net, large)
    assert all(torch.equal(a, b) for a, b in zip(plain, swapped, strict=True))
    assert large.stats().out
    assert large.stats().back
    if window == 0:
        assert after < before


def test_the_device_holds_less() -> None:
    net = deep(48)
    _, before = run_passes(net, None)
    large = LMS(1000, share(200), window=0)
    run_passes(net, large)  # the first passes bring nothing back ahead
    missed = large.stats().missed
    _, after = run_passes(net, large)
    assert after < before / 2
    assert torch.cuda.memory_allocated() < after
    assert large.stats().missed - missed <= 2 * (PASSES + 1)


def test_a_model_that_fits_keeps_all() -> None:
    """torch is limited to a part of the device: a pass fits in nine tenths of it."""
    net = deep()
    _, before = run_passes(net, None)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, (before * 1.2 + 64 * MIB) / total))
    try:
        large = LMS(1000, 1)
        run_passes(net, large)
        out = large.stats().out
        _, after = run_passes(net, large)
        assert out
        assert large.stats().out == out
        assert after <= before + MIB
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_side_streams_of_the_script() -> None:
    net = deep()
    x = torch.randn(4096, 512, device="cuda")
    side = torch.cuda.Stream()

    def run(large: LMS) -> list[Tensor]:
        net.zero_grad()
        side.wait_stream(torch.cuda.current_stream())
        with large:
            y = net[:20](x)  # type: ignore[index]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y.record_stream(side)
                z = net[20:](y)  # type: ignore[index]
                loss = z.square().mean()
                loss.backward()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        return [grad.clone() for grad in grads(net)]

    plain = run(LMS(0))
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(plain, run(LMS(1000, 0, window=0)), strict=True))


def test_a_model_that_does_not_fit_trains() -> None:
    """torch is limited to a part of the device that is too small for a pass without large-model support."""
    net = deep(64)
    x = torch.randn(16384, 512, device="cuda")
    torch.cuda.synchronize()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + 800 * MIB) / total))
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            net(x).square().mean().backward()
        net.zero_grad()
        torch.cuda.empty_cache()
        with LMS(1000, 0.4, window=0.1) as large:
            loss = net(x).square().mean()
        loss.backward()
        assert large.stats().out
        assert all(torch.isfinite(grad).all() for grad in grads(net))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_host_memory_is_pinned() -> None:
    from ddlrun.ddl.lms.device import Cuda  # noqa: PLC0415 - no CUDA, no need

    device = Cuda(torch.cuda.current_device())
    block = torch.arange(256, dtype=torch.uint8, device="cuda")
    host, copy = device.take_out(block, {device.stream()})
    assert host.is_pinned()
    copy.wait()
    back, copy = device.bring_back(host, copy)
    copy.wait()
    assert torch.equal(back, block)


NODES = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))


@pytest.mark.skipif(len(NODES) < 2, reason="one NUMA node")
def test_host_memory_lies_where_the_process_is_bound() -> None:
    """torch allocates pinned memory in the calling thread, and Linux on the NUMA node where that thread runs."""
    from ddlrun.ddl.lms.device import Cuda  # noqa: PLC0415 - no CUDA, no need

    before = os.sched_getaffinity(0)
    cpus = {cpu for cpu in before if (NODES[-1] / f"cpu{cpu}").exists()}
    if not cpus:
        pytest.skip(f"no CPU of {NODES[-1].name} belongs to this process")
    os.sched_setaffinity(0, cpus)
    try:
        device = Cuda(torch.cuda.current_device())
        host, copy = device.take_out(torch.ones(64 * MIB + 1, dtype=torch.uint8, device="cuda"), {device.stream()})
        copy.wait()
        torch.cuda.synchronize()
        pages = pages_by_node(host.data_ptr())
        if not pages:
            pytest.skip("the driver does not show where this memory lies")
        assert max(pages, key=lambda node: pages[node]) == int(NODES[-1].name.removeprefix("node"))
    finally:
        os.sched_setaffinity(0, before)


def pages_by_node(address: int) -> dict[int, int]:
    """Return the number of pages on each NUMA node of the mapping at an address."""
    lines = [line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines()]
    at = [words for words in lines if int(words[0], 16) <= address]
    counts = (re.fullmatch(r"N(\d+)=(\d+)", word) for word in max(at, key=lambda words: int(words[0], 16), default=[]))
    return {int(match[1]): int(match[2]) for match in counts if match}
