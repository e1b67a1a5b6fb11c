"""Large-model support: `python -m tests.bench.lms [--gib N]`. Prints tables without goals.

On a CUDA device: the largest image that a 3D U-Net trains on, with and without; images/s at the largest that fits
without; bytes copied per second as a share of the rate of a plain pinned copy in the same run. --gib limits the memory
that torch uses. On any machine: the processor time of the hooks for each saved tensor, without copies.
"""

import statistics
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ddlrun.ddl.lms import LMS
from ddlrun.ddl.lms.device import PendingCopy
from ddlrun.ddl.lms.stats import format_bytes
from tests.bench.options import bench_parser

MIB, GIB = 1 << 20, 1 << 30
TENSOR_BYTES = 4096


class Sizes(NamedTuple):
    """Rounds of each measurement, tensors of a pass on the host, and GiB of the device; None for all."""

    rounds: int
    tensors: int
    gib: float | None


FULL = Sizes(rounds=7, tensors=1000, gib=None)
SMOKE = Sizes(rounds=1, tensors=10, gib=1.0)


class Nowhere:
    """A device whose copies take no time and move nothing, so that only bookkeeping is measured."""

    capacity = 1 << 40

    def __init__(self, full: float) -> None:
        self._used = int(full * self.capacity)

    def used(self) -> int:
        return self._used

    def stream(self) -> int:
        return 0

    def take_out(self, block: Tensor, _streams: Collection[Any]) -> tuple[Tensor, PendingCopy]:
        return block[:0], self

    def bring_back(self, _host: Tensor, _after: PendingCopy | None) -> tuple[Tensor, PendingCopy]:
        return torch.empty(TENSOR_BYTES, dtype=torch.uint8), self

    def lend(self, block: Tensor, streams: Collection[Any]) -> None:
        pass

    def done(self) -> bool:
        return True

    def wait(self, streams: Collection[Any] = ()) -> None:
        pass


def host_side(sizes: Sizes) -> None:
    """Print the processor time per saved and fetched tensor, in excess of a pass without hooks."""

    def one_pass() -> None:
        x = torch.zeros(TENSOR_BYTES // 4, requires_grad=True).clone()
        for _ in range(sizes.tensors):
            x = x.sin()  # saves its input
        x.sum().backward()

    variants: dict[str, Callable[[], Any]] = {
        "hooks that do nothing": lambda: saved_tensors_hooks(lambda x: x.detach(), lambda x: x),
        "too small to swap": lambda: LMS(1000, 0.5, device=Nowhere(0)),
        "the device has room": lambda: LMS(1, 0.5, device=Nowhere(0)),
        "swapped out and in": lambda: LMS(1, 0.5, device=Nowhere(0.8)),
    }
    samples: dict[str, list[float]] = {name: [] for name in ("", *variants)}
    for _ in range(sizes.rounds + 1):
        for name, times in samples.items():
            start = time.process_time()
            if name:
                with variants[name]():
                    one_pass()
            else:
                one_pass()
            times.append(time.process_time() - start)
    bare = statistics.median(samples.pop("")[1:])
    passes = f"{sizes.tensors} tensors, median of {sizes.rounds} passes in turn"
    print(f"{passes}; without hooks {bare / sizes.tensors * 1e6:.1f} us each")
    for name, times in samples.items():
        print(f"  {name:24} +{(statistics.median(times[1:]) - bare) / sizes.tensors * 1e6:5.1f} us per tensor")


class UNet(nn.Module):
    """A 3D U-Net of three levels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [1, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(_convolutions(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.up = nn.ModuleList(_convolutions(a + b, b) for a, b in ((widths[3], widths[2]), (widths[2], widths[1])))
        self.last = nn.Conv3d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for number, level in enumerate(self.down):
            x = level(x if number == 0 else nn.functional.max_pool3d(x, 2))
            outputs.append(x)
        outputs.pop()
        for level in self.up:
            x = level(torch.cat([nn.functional.interpolate(x, scale_factor=2), outputs.pop()], 1))
        return self.last(x)  # type: ignore[no-any-return]


def _convolutions(a: int, b: int) -> nn.Module:
    parts = [nn.Conv3d(a, b, 3, padding=1), nn.BatchNorm3d(b), nn.ReLU(), nn.Conv3d(b, b, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*parts)


def step(net: nn.Module, edge: int, large: LMS) -> None:
    net.zero_grad()
    with large:
        loss = net(torch.ones(1, 1, edge, edge, edge, device="cuda")).square().mean()
    loss.backward()


def trains(net: nn.Module, edge: int, large: LMS) -> bool:
    """Return True if an image with this edge fits."""
    try:
        step(net, edge, large)
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        net.zero_grad()
        torch.cuda.empty_cache()
    return True


def largest(net: nn.Module, make: Callable[[], LMS]) -> int:
    """Return the longest edge, a multiple of 16, that fits."""
    low, high = 0, 1
    while trains(net, 16 * high, make()):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if trains(net, 16 * middle, make()) else (low, middle)
    return 16 * low


def seconds(work: Callable[[], Any], rounds: int) -> float:
    """Return the median time of some calls, after one to warm up."""
    times = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def limits(rounds: int) -> tuple[float, float]:
    """Return the bytes per second of plain pinned copies to the host and back."""
    host, there = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True), torch.empty(256 * MIB, dtype=torch.uint8)
    there = there.cuda()
    out = seconds(lambda: host.copy_(there, non_blocking=True), rounds)
    return host.numel() / out, host.numel() / seconds(lambda: there.copy_(host, non_blocking=True), rounds)


def device_side(sizes: Sizes) -> None:
    gib = sizes.gib
    total = torch.cuda.mem_get_info()[1]
    if gib is not None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, gib * GIB / total))
    out, back = limits(sizes.rounds)
    memory = format_bytes(min(total, (gib or 1e9) * GIB))
    rates = f"{out / 1e9:.1f} GB/s out, {back / 1e9:.1f} back"
    print(f"{torch.cuda.get_device_name()}, {memory}; pinned copies {rates}")
    net = UNet().cuda()
    plain = largest(net, lambda: LMS(0))
    print(f"largest image without: {plain}^3, with: {largest(net, LMS)}^3")
    for name, make in {"without": lambda: LMS(0), "with": LMS, "with, frac 0": lambda: LMS(frac=0)}.items():
        large = make()
        each = seconds(lambda large=large: step(net, plain, large), sizes.rounds)  # type: ignore[misc]
        stats, steps = large.stats(), sizes.rounds + 1
        rate_out, rate_back = stats.bytes_out / steps / each, stats.bytes_in / steps / each
        share = f"out {rate_out / out:4.0%}, back {rate_back / back:4.0%} of the link over the whole step"
        print(f"  {plain}^3 {name:14} {1 / each:7.2f} images/s; {share}")
        print(f"    {stats}")


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--gib", type=float, help="use up to N GiB of the device", metavar="N")
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else FULL._replace(gib=options.gib)
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        device_side(sizes)
    else:
        print("no CUDA device: only the processor time of the host is measured")
    host_side(sizes)


if __name__ == "__main__":
    main()
