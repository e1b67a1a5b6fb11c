"""The swap of a simulated device: tensors that are packed and fetched one by one."""

from typing import Any

import pytest

from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

import torch
from torch import Tensor

from ddlrun.ddl.lms import Policy
from ddlrun.ddl.lms.swap import Swap
from tests.ddl.lms_networks import half_full
from tests.ddl.simulated_device import ByteCounter, SimulatedDevice

pytestmark = [pytest.mark.extra, pytest.mark.usefixtures("no_garbage")]


def test_a_device_without_room_takes_back_prefetched_memory() -> None:
    with ByteCounter() as counting:
        others = [0]
        device = SimulatedDevice(400_000, lambda: counting.live() + others[0], polls=0)
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


def test_blocks_die_with_their_graph() -> None:
    device = half_full()
    swap = Swap(device, Policy(1, 0))
    x = torch.randn(100)
    saved = [swap.pack(x), swap.pack(x[3:]), swap.pack(torch.randn(5))]
    assert torch.equal(saved[1].fetch(), x[3:])
    assert swap.stats.saved == 2
    del saved
    assert (swap.stats.saved, len(swap)) == (2, 0)


def test_a_new_tensor_at_the_same_address_is_a_new_block() -> None:
    device = half_full(polls=0)
    swap = Swap(device, Policy(1, 0, 0))
    # Memory that has left is reused for the tensors that follow.
    saved = [swap.pack(torch.full((1000,), float(number))) for number in range(200)]
    assert swap.stats.saved == 200
    assert len(device.out) > 190
    for number in reversed(range(200)):
        assert torch.equal(saved.pop().fetch(), torch.full((1000,), float(number)))
    assert device.lent == 200


def test_nothing_leaves_until_a_full_host_has_more_room() -> None:
    device = half_full(polls=0, room=8000)
    swap = Swap(device, Policy(1, 0, 0))
    saved = [swap.pack(torch.zeros(1000)) for _ in range(10)]
    assert (swap.stats.out, swap.stats.refused) == (2, 1)
    del saved[0]
    saved += [swap.pack(torch.zeros(1000)) for _ in range(10)]
    assert (swap.stats.out, swap.stats.refused) == (3, 2)


def test_the_storage_of_a_block_that_dies_meanwhile_may_be_reused() -> None:
    """Another thread may free a graph while a block comes back: the key of its storage is free at once."""
    dying: list[Any] = []

    class Reuses(SimulatedDevice):
        def bring_back(self, host: Tensor, after: Any) -> tuple[Tensor, Any]:
            if dying:
                dying.pop()
            return super().bring_back(host, after)

    used = [100]
    device = Reuses(100, lambda: used[0], polls=0)
    swap = Swap(device, Policy(1, 0.5, 0))
    saved = [swap.pack(torch.full((1000,), float(number))) for number in range(20)]
    used[0] = 0  # now all memory stays
    dying += [swap.pack(torch.full((1000,), -1.0)) for _ in range(40)]
    used[0] = 95  # now memory that was used leaves again
    for _ in range(3):
        for number in (7, 3, 12, 0, 19):
            assert saved[number].fetch()[0] == number
    assert len(device.back) == 12  # the last never left
    del saved
    assert len(swap) == 28


def test_a_block_that_was_passed_over_leaves_again() -> None:
    device = half_full(polls=0)
    swap = Swap(device, Policy(1, 0, 0))
    saved = [swap.pack(torch.full((1000,), float(number))) for number in range(40)]
    saved[30].fetch()  # 29 is prefetched
    saved[10].fetch()  # so is 9, and 29 was not needed
    assert len(device.back) == 4
    assert saved[29].fetch()[0] == 29
    assert (swap.stats.missed, len(device.back)) == (3, 6)  # 29, and 28 prefetched in the place of 9
    assert saved[28].fetch()[0] == 28
    assert (swap.stats.missed, len(device.back)) == (3, 7)
