"""Large-model support near the limit of memory, on CPU tensors with a simulated device, beside torch's save_on_cpu."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from ddlrun.ddl.lms import LMS, Policy
from ddlrun.ddl.lms.policy import BARE_PASSES, NO_LIMIT, PASSES, Demand
from ddlrun.ddl.lms.swap import Swap
from tests.bench.lms import UNet
from tests.ddl.lms_networks import FULL, NETWORKS, UNIT, deep, same_bits
from tests.ddl.simulated_device import ByteCounter, SimulatedDevice

pytestmark = [pytest.mark.extra, pytest.mark.usefixtures("no_garbage")]

# Those without the networks that save views of larger memory, which leaves and comes back as a whole.
NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    **{name: net for name, net in NETWORKS.items() if name not in {"transformer", "odd"}},
    "U-Net": (lambda: UNet(4), torch.ones(1, 1, 16, 16, 16)),
    "deep": (deep, torch.ones(64, 32)),
}


class SaveOnCpu:
    """The hooks of torch's `save_on_cpu` for a simulated device: copies on the host do not count."""

    def __init__(self) -> None:
        self.copied = 0

    def pack(self, tensor: Tensor) -> Tensor:
        self.copied += tensor.nbytes
        with _disable_current_modes():  # type: ignore[no-untyped-call]
            return tensor.clone()

    def unpack(self, host: Tensor) -> Tensor:
        return host.clone()


class Run:
    """Some passes of training: the most bytes in use in each, the bytes copied out, and the parameters at the end."""

    def __init__(self, name: str, capacity: int | None, polls: int = 0, frac: float | None = None) -> None:
        """Train with LMS on a device with a capacity; with None, as with `save_on_cpu`; with 0, without either."""
        torch.manual_seed(0)
        make, x = NETS[name]
        net = make()
        optimizer = torch.optim.Adam(net.parameters())
        self.peaks, self.copied, self.parameters = list[int](), list[int](), [p.detach() for p in net.parameters()]
        with ByteCounter(*net.parameters(), *net.buffers()) as counting:
            x, there = x.clone(), SaveOnCpu()
            device = SimulatedDevice(capacity or 1, counting.live, counter=counting, polls=polls)
            hooks: Any = LMS(size_kb=0.001 if capacity else 0, frac=frac, device=device)
            if capacity is None:
                hooks = saved_tensors_hooks(there.pack, there.unpack)
            for number in range(PASSES + 2):
                torch.manual_seed(number)
                counting.peak, before = 0, there.copied + sum(device.out)
                optimizer.zero_grad()
                with hooks:
                    loss = net(x).square().mean()
                loss.backward()
                del loss
                optimizer.step()
                self.peaks.append(counting.peak)
                self.copied.append(there.copied + sum(device.out) - before)
            assert device.at_fault() == []


@pytest.mark.parametrize("polls", [0, FULL])
@pytest.mark.parametrize("name", NETS)
def test_a_pass_fits_where_it_fits_with_save_on_cpu(name: str, polls: int) -> None:
    theirs = Run(name, None)
    capacity = max(theirs.peaks)
    ours = Run(name, capacity, polls)
    assert max(ours.peaks) <= capacity
    assert ours.copied[-1] <= theirs.copied[-1]
    assert same_bits(ours.parameters, theirs.parameters)


@pytest.mark.parametrize("name", NETS)
def test_fewer_bytes_leave_the_more_room_there_is(name: str) -> None:
    theirs = Run(name, None)
    runs = [Run(name, int(times * max(theirs.peaks))) for times in (1, 2, 4)]
    copied = [run.copied[-1] for run in runs]
    assert copied == sorted(copied, reverse=True)
    assert copied[1] < theirs.copied[-1]
    assert copied[2] == 0
    for run, times in zip(runs[1:], (2, 4), strict=True):
        assert max(run.peaks) <= times * max(theirs.peaks) * Policy().full


@pytest.mark.parametrize("name", sorted({*NETS} - {"recurrent"}))  # an LSTM on the CPU saves parts of memory twice
def test_all_stays_where_a_pass_fits_without_help(name: str) -> None:
    plain = Run(name, 0)
    run = Run(name, int(1.05 * max(plain.peaks) / Policy().full), frac=1)
    assert run.copied[BARE_PASSES - 1] > 0
    assert run.copied[-1] == 0
    assert run.peaks[-1] == plain.peaks[-1]


def test_after_a_pass_above_nine_tenths_more_leaves() -> None:
    net, more = deep(), [0]
    x = torch.randn(1024, 32)
    peaks = []

    def need(_slope: Tensor) -> None:
        torch.empty(more[0], dtype=torch.uint8)

    with ByteCounter(x, *net.parameters()) as counting:
        large = LMS(120, 1, device=SimulatedDevice(12 * UNIT, counting.live, counter=counting))
        for number in range(PASSES + 3):
            net.zero_grad()
            counting.peak = 0
            more[0] = 5 * UNIT if number > PASSES else 0
            with large:
                y = net(x)
            y.register_hook(need)
            y.square().mean().backward()
            del y
            peaks.append(counting.peak)
    full = Policy().full * 12 * UNIT
    assert peaks[PASSES] <= full
    assert peaks[PASSES + 1] > full
    assert peaks[PASSES + 2] < peaks[PASSES + 1]


def make_swap(capacity: int, counting: ByteCounter) -> tuple[Swap, SimulatedDevice]:
    """Return a swap that learns, and its device."""
    device = SimulatedDevice(capacity, counting.live, counter=counting, polls=FULL)
    return Swap(device, Policy(1)), device


def test_memory_that_was_changed_by_its_owner_leaves_again() -> None:
    with ByteCounter() as counting:
        swap, device = make_swap(1 << 20, counting)
        held = torch.zeros(1000)
        first, same = swap.pack(held), swap.pack(held.view(1000))
        assert first.block is same.block
        held += 1
        second = swap.pack(held)
        assert first.block is not second.block
        assert (second.fetch() == 1).all()
        assert (first.fetch() == 0).all()  # the hooks raise torch's error instead, as its version is another
        assert len(device.out) == 2
    assert device.at_fault() == []


def test_new_memory_at_the_address_of_an_owner_s_is_a_new_block() -> None:
    with ByteCounter() as counting:
        swap, device = make_swap(1 << 20, counting)
        saved = []
        for number in range(100):
            held = torch.full((1000,), float(number))
            saved.append(swap.pack(held))
            del held
            assert counting.live() == 0
        for number in reversed(range(100)):
            assert torch.equal(saved.pop().fetch(), torch.full((1000,), float(number)))
    assert len(device.out) == len(device.back) == 100
    assert device.at_fault() == []


Pass = tuple[int, list[tuple[int, int]]]
"""Bytes in use before; per operation, the bytes of the block that it reads, and those that it needs beside it."""
passes = st.tuples(
    st.integers(0, 100), st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=8)
)


def run_pass(demand: Demand, one: Pass, first: int) -> tuple[int, int]:
    """Let the newest blocks stay that may; return the most bytes in use, and the number of the next block."""
    base, operations = one
    most = 0
    stay: list[int] = []
    assert demand.is_over(first)
    demand.begin(base, 10_000)  # a peak between passes is none of a pass
    for number, (nbytes, needed) in enumerate(operations):
        demand.note_block(nbytes)
        stay.append(nbytes)
        while sum(stay) > demand.limit:
            del stay[0]
        demand.note_blocks(sum(nbytes for nbytes, _ in operations[: number + 1]), sum(stay))
        peak = base + sum(stay) + needed + (0 if stay else nbytes)
        demand.note_peak(peak)
        most = max(most, peak)
    demand.note_backward(first + len(operations))
    assert not demand.is_over(first)
    return most, first + len(operations)


@given(passes, st.integers(0, 300), st.integers(0, 20))
def test_blocks_stay_in_the_room_that_a_pass_leaves(one: Pass, room: int, more: int) -> None:
    """The later passes find other bytes in use, such as the state of an optimizer."""
    base, operations = one
    needed = max(nbytes + needed for nbytes, needed in operations)
    capacity = base + more + needed + room
    demand, first = Demand(capacity, learns=True), 0
    blocks = [nbytes for nbytes, _ in operations]
    plain = max(sum(blocks[: number + 1]) + needed for number, (_, needed) in enumerate(operations))
    for number in range(PASSES + 2):
        most, first = run_pass(demand, (base + more * bool(number), operations), first)
        assert demand.limit >= room if number >= BARE_PASSES else demand.limit == 0
        assert most <= capacity
    if base + more + plain <= capacity and room >= max(blocks):
        assert most == base + more + plain


@given(st.lists(passes, min_size=4, max_size=6))
def test_a_larger_block_than_before_is_a_reason_to_learn_again(several: list[Pass]) -> None:
    demand, first, largest = Demand(1000, learns=True), 0, 0
    for _, operations in several:
        for number in range(PASSES + 1):
            _, first = run_pass(demand, (0, operations), first)
            new = max(nbytes for nbytes, _ in operations)
            assert demand.limit == 0 or new <= largest or number >= BARE_PASSES
            largest = max(largest, new)


def test_a_smaller_pass_is_no_measure_of_a_larger_one() -> None:
    demand, first = Demand(1000, learns=True), 0
    for scale in (4, 1, 1):
        _, first = run_pass(demand, (0, [(10 * scale, 50 * scale)] * 30), first)
    assert demand.limit == 1000 - 4 * 60


def test_a_peak_above_all_before_lowers_the_limit() -> None:
    demand, first = Demand(1000, learns=True), 0
    for _ in range(PASSES + 1):
        _, first = run_pass(demand, (0, [(100, 50)] * 3), first)
    limits = []
    demand.begin(0, 1020)
    for peak in (900, 1030, 1070, 1070, 500, 1005):  # 500: the program has reset the statistics
        demand.note_peak(peak)
        limits.append(demand.limit)
    assert limits == [950, 920, 880, 880, 880, 875]
    demand.begin(0, 2000)  # between passes
    demand.note_peak(2000)
    assert demand.limit == 875


def test_without_peaks_there_is_no_limit() -> None:
    demand = Demand(1000, learns=False)
    demand.note_block(5)
    demand.note_peak(0)
    assert (demand.learning, demand.limit) == (False, NO_LIMIT)
