"""Large-model support: `python -m tests.bench.lms [--gib N] [--network NAME]`. Prints tables without goals.

On a CUDA device, for a 3D U-Net and for a transformer: the largest image or batch that fits, and the seconds of a step,
without and with large-model support, and with PyTorch's alternatives; bytes copied per second as a share
of the rate of a plain pinned copy in the same run. --gib limits the memory that torch uses. On any machine: the
processor time of the hooks for each saved tensor, without copies.

On a GPU that is lent for minutes, `--gib 12 --network UNet` compares the largest images in about five; set
PYTORCH_ALLOC_CONF=expandable_segments:True, and run tests/ddl/test_lms_cuda.py before.
"""

import statistics
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import graph as saved_tensors
from torch.utils.checkpoint import checkpoint

from ddlrun.ddl.lms import LMS, Stats
from ddlrun.ddl.lms.device import MemoryUse, PendingCopy
from ddlrun.ddl.lms.policy import PASSES
from ddlrun.units import render_memory
from tests.bench.options import bench_parser

MIB, GIB = 1 << 20, 1 << 30
TENSOR_BYTES = 4096


class Sizes(NamedTuple):
    """Rounds of each measurement, tensors of a pass on the host, and GiB of the device; None for all."""

    rounds: int
    tensors: int
    gib: float | None


FULL = Sizes(rounds=7, tensors=1000, gib=None)
SMOKE = Sizes(rounds=1, tensors=10, gib=6.0)


class Nowhere:
    """A device whose copies take no time and move nothing, so that only bookkeeping is measured."""

    capacity = 1 << 40

    def __init__(self, full: float) -> None:
        self._used = int(full * self.capacity)

    def usage(self) -> MemoryUse:
        return MemoryUse(self._used, None)

    def reset_peak(self) -> None:
        pass

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
        "hooks that do nothing": lambda: saved_tensors.saved_tensors_hooks(lambda x: x.detach(), lambda x: x),
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


class Transformer(nn.Module):
    """Encoder layers with 2048 features, in bfloat16; with `recomputes`, each layer saves its input alone."""

    recomputes = False

    def __init__(self, layers: int = 16, width: int = 2048) -> None:
        super().__init__()
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True, "dtype": torch.bfloat16}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 16, 4 * width, **options) for _ in range(layers))
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputes else layer(x)
        return x


class Network(NamedTuple):
    """A network, and the shape of its input for a size, which is a multiple of `unit`."""

    module: Any
    input: Callable[[int], Tensor]
    unit: int
    words: str


def make_networks() -> Iterator[Network]:
    """Yield the networks, each when the one before is no longer used."""
    unet = UNet().cuda()
    yield Network(unet, lambda edge: torch.ones(1, 1, edge, edge, edge, device="cuda"), 16, "edge of the image")
    transformer = Transformer().cuda()
    shape = (512, transformer.width)
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    yield Network(transformer, lambda batch: torch.ones(batch, *shape, **kind), 1, "batch of 512 tokens")


def step(net: Network, size: int, saving: AbstractContextManager[Any]) -> None:
    net.module.zero_grad()
    with saving:
        loss = net.module(net.input(size)).square().mean()
    loss.backward()


def fits(net: Network, size: int, saving: AbstractContextManager[Any]) -> bool:
    try:
        for _ in range(PASSES + 1 if isinstance(saving, LMS) else 2):
            step(net, size, saving)
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        net.module.zero_grad()
        torch.cuda.empty_cache()
    return True


def largest(net: Network, make: Callable[[], Any], most: int) -> int:
    """Return the largest size that fits, up to `most` units."""
    low, high = 0, 1
    while low < most and fits(net, net.unit * high, make()):
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(net, net.unit * middle, make()) else (low, middle)
    return net.unit * low


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


def device_side(sizes: Sizes, networks: Collection[str]) -> None:
    total = torch.cuda.mem_get_info()[1]
    if sizes.gib is not None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, sizes.gib * GIB / total))
    out, back = limits(sizes.rounds)
    memory = render_memory(min(total, (sizes.gib or 1e9) * GIB))
    print(f"{torch.cuda.get_device_name()}, {memory}; pinned copies {out / 1e9:.1f} GB/s out, {back / 1e9:.1f} back")
    for net in make_networks():
        if type(net.module).__name__ not in networks:
            continue
        print(f"{type(net.module).__name__}, {net.words}:")
        variants: dict[str, Callable[[], Any]] = {
            "without": nullcontext,
            "LMS": LMS,
            "LMS, frac 0": lambda: LMS(frac=0),
            "save_on_cpu of PyTorch": lambda: saved_tensors.save_on_cpu(pin_memory=True),
        }
        if isinstance(net.module, Transformer):
            variants["checkpoint of PyTorch"] = nullcontext
        plain = 0
        for name, make in variants.items():
            net.module.recomputes = name.startswith("checkpoint")
            size = largest(net, make, 4 * plain // net.unit or 1 << 30)
            plain = plain or size
            print(f"  {name}: largest {size}", flush=True)
            # At the largest size, pieces of free memory may be too small for the next steps.
            for each in sorted({max(largest_size - net.unit, net.unit) for largest_size in (plain, size)}):
                measure(net, each, make, sizes.rounds, (out, back))


def measure(net: Network, size: int, make: Callable[[], Any], rounds: int, rates: tuple[float, float]) -> None:
    """Print the seconds per step and, for LMS, the bytes copied."""
    saving = make()
    before = Stats()
    try:
        if isinstance(saving, LMS):
            for _ in range(PASSES):  # it learns
                step(net, size, saving)
            before = saving.stats()
        each = seconds(lambda: step(net, size, saving), rounds)
    except torch.cuda.OutOfMemoryError:
        print(f"    {size}: out of memory")
        return
    finally:
        net.module.zero_grad()
        torch.cuda.empty_cache()
    if not isinstance(saving, LMS):
        print(f"    {size}: {each:.3f} s")
        return
    stats, steps = saving.stats(), rounds + 1
    out, back = stats.bytes_out - before.bytes_out, stats.bytes_in - before.bytes_in
    shares = [nbytes / steps / each / rate for nbytes, rate in zip((out, back), rates, strict=True)]
    print(f"    {size}: {each:.3f} s; out {shares[0]:.0%}, back {shares[1]:.0%} of the link over the whole step")
    print(f"      per step {(stats.out - before.out) / steps:g} out, {render_memory(out // steps)}")
    print(f"      {PASSES + steps} steps: {stats}", flush=True)


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--gib", type=float, help="use up to N GiB of the device", metavar="N")
    names = UNet.__name__, Transformer.__name__
    parser.add_argument("--network", choices=names, help="that one alone (both)")
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else FULL._replace(gib=options.gib)
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        device_side(sizes, [options.network] if options.network else names)
    else:
        print("no CUDA device: only the processor time of the host is measured")
    host_side(sizes)


if __name__ == "__main__":
    main()
