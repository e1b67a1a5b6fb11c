"""The policy of swapping and the order of saving, without tensors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)  # ddlrun.ddl.lms imports it

from ddlrun.ddl.lms.order import MemoryLocation, SaveOrder
from ddlrun.ddl.lms.policy import MemoryLoad, Policy, read_policy
from ddlrun.ddl.lms.stats import Stats, sum_stats
from ddlrun.errors import InputError

shares = st.floats(0, 1)
sizes = st.integers(0, 1 << 40)
policies = st.builds(Policy, st.just(1), shares, shares)


@given(policies, sizes, sizes, sizes)
def test_the_excess_brings_the_device_down_to_its_share_and_no_further(
    policy: Policy, used: int, capacity: int, leaving: int
) -> None:
    excess = policy.excess(MemoryLoad(used, capacity, leaving))
    left = used - leaving - excess
    assert excess >= 0
    assert left <= int(policy.frac * capacity)
    if excess:
        assert left == int(policy.frac * capacity)


@given(policies, sizes, sizes, sizes, sizes)
def test_computation_waits_only_for_blocks_that_leave(
    policy: Policy, used: int, capacity: int, leaving: int, newest: int
) -> None:
    assert not policy.must_wait(MemoryLoad(used, capacity, 0), 0)
    if policy.must_wait(MemoryLoad(used, capacity, leaving), newest):
        assert leaving - newest > policy.window * capacity or used > policy.full * capacity
        assert policy.must_wait(MemoryLoad(used + 1, capacity, leaving + 1), newest)


@given(policies, sizes, sizes, sizes, sizes)
def test_prefetched_blocks_have_room(policy: Policy, used: int, capacity: int, ahead: int, nbytes: int) -> None:
    if policy.may_come(nbytes, MemoryLoad(used, capacity, 0, ahead)):
        assert used + nbytes <= policy.full * capacity
        assert ahead == 0 or ahead + nbytes <= policy.window * capacity
    elif used + nbytes <= policy.full * capacity:
        assert ahead > 0


class Simulated:
    """A device without tensors: copies back end at once, those out when they are waited for."""

    def __init__(self, policy: Policy, capacity: int) -> None:
        self.policy, self.order = policy, SaveOrder()
        self.capacity, self.used, self.copies = capacity, 0, 0
        self.sizes: list[int] = []

    def load(self) -> MemoryLoad:
        nbytes = self.order.nbytes
        return MemoryLoad(self.used, self.capacity, nbytes[MemoryLocation.LEAVING], nbytes[MemoryLocation.RETURNING])

    def save(self, nbytes: int) -> None:
        self.order.add(len(self.sizes), nbytes)
        self.sizes.append(nbytes)
        self.used += nbytes
        for number in self.order.at(MemoryLocation.ON_DEVICE)[:-1]:  # the last block is in use
            if not self.policy.excess(self.load()):
                break
            self.order.move(number, MemoryLocation.LEAVING)
            self.copies += 1
        for number in self.order.at(MemoryLocation.LEAVING):
            if not self.policy.must_wait(self.load(), self.order.newest(MemoryLocation.LEAVING)):
                break
            self.order.move(number, MemoryLocation.ON_HOST)
            self.used -= self.sizes[number]

    def use(self, number: int) -> None:
        if self.order.location(number) is MemoryLocation.ON_HOST:
            self.bring(number)
        for other in self.order.next_needed(number, MemoryLocation.ON_HOST):
            if not self.policy.may_come(self.sizes[other], self.load()):
                break
            self.bring(other)
        self.used -= self.order.remove(number)

    def bring(self, number: int) -> None:
        self.order.move(number, MemoryLocation.RETURNING)
        self.used += self.sizes[number]
        self.copies += 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), shares, st.integers(50, 400))
def test_a_pass_copies_each_block_once_and_stays_within_its_share(saved: list[int], frac: float, capacity: int) -> None:
    policy = Policy(1, frac, 0.2)
    run = Simulated(policy, capacity)
    for nbytes in saved:
        run.save(nbytes)
        assert run.used <= max(frac * capacity, nbytes) + policy.window * capacity + max(saved)
    assert run.copies <= len(saved)
    # The blocks that stay were saved last.
    assert max(run.order.at(MemoryLocation.ON_HOST), default=-1) < min(run.order.at(MemoryLocation.ON_DEVICE))
    for number in reversed(range(len(saved))):
        run.use(number)
    assert run.used == 0
    assert len(run.order) == 0
    assert set(run.order.nbytes.values()) == {0}
    assert run.copies <= 2 * len(saved)


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(list(MemoryLocation)) | st.none())), st.integers(0, 40))
def test_the_order_equals_that_of_a_sorted_list(changes: list[tuple[int, MemoryLocation | None]], at: int) -> None:
    order, plain = SaveOrder(), dict[int, MemoryLocation]()
    for number in range(31):
        order.add(number, number + 1)
        plain[number] = MemoryLocation.ON_DEVICE
    for number, location in changes:
        if number in plain and location is None:
            assert order.remove(number) == number + 1
            del plain[number]
        elif number in plain and location is not None:
            order.move(number, location)
            plain[number] = location
    for location in MemoryLocation:
        numbers = sorted(number for number, where in plain.items() if where is location)
        assert order.at(location) == tuple(numbers)
        assert order.nbytes[location] == sum(number + 1 for number in numbers)
        assert order.newest(location) == (numbers[-1] + 1 if numbers else 0)
        assert list(order.next_needed(at, location)) == [number for number in reversed(numbers) if number < at]
        assert order.passed(at, location, 2) == tuple(number for number in numbers if number > at + 2)
    assert [order.location(number) for number in plain] == list(plain.values())
    assert len(order) == len(plain)


def test_locations_may_change_during_iteration() -> None:
    order = SaveOrder()
    for number in range(5):
        order.add(number, 1)
    visited = []
    for number in order.next_needed(4, MemoryLocation.ON_DEVICE):
        order.move(number, MemoryLocation.RETURNING)
        visited.append(number)
    assert visited == [3, 2, 1, 0]


def test_arguments_take_precedence_over_the_launcher_and_the_defaults() -> None:
    launched = {"DDLRUN_LMS": "1000", "DDLRUN_LMS_FRAC": "0.4"}
    assert read_policy(None, None, None, {}) == Policy()
    assert read_policy(None, None, None, launched) == Policy(1000 * 1024, 0.4)
    assert read_policy(2, 0.9, 0.1, launched) == Policy(2048, 0.9, 0.1)
    assert read_policy(None, None, None, {"DDLRUN_LMS": "0"}).size == 0
    assert read_policy(-1, None, None, launched).size == 0
    assert read_policy(0.5, None, None, launched).size == 512


@pytest.mark.parametrize(
    ("size", "frac", "environ", "message"),
    [
        (None, None, {"DDLRUN_LMS": "1M"}, "DDLRUN_LMS '1M' is not a number; write one such as 1024"),
        (None, None, {"DDLRUN_LMS": "nan"}, "DDLRUN_LMS 'nan' is not a number; write one such as 1024"),
        (float("inf"), None, {}, "lms: size_kb inf is not a number; write one such as 1024"),
        (None, 70, {}, "lms: frac 70: a share of the device is wanted, 0 to 1"),
        (None, None, {"DDLRUN_LMS_FRAC": "-0.1"}, "lms: frac -0.1: a share of the device is wanted, 0 to 1"),
    ],
)
def test_values_that_are_no_number_or_share_are_refused(
    size: float | None, frac: float | None, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError) as error:
        read_policy(size, frac, None, environ)
    assert str(error.value) == message


def test_statistics_are_one_line() -> None:
    two = sum_stats(Stats(1, 1, 1 << 20, device_peak=10), Stats(2, 2, 1 << 20, refused=3, capacity=1 << 34))
    assert two == Stats(3, 3, 2 << 20, refused=3, device_peak=10, capacity=1 << 34)
    assert str(two) == (
        "3 saved, 3 out (2 MiB), 0 back (0 B), at most 0 B on the host and 10 B of 16 GiB on the device; "
        "backward waited 0 times (0 not foreseen), forward 0, 3 stayed for lack of pinned memory"
    )
    assert sum_stats() == Stats()
