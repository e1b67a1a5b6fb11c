"""One device's saved tensors: packed when an operation saves them, fetched when its backward needs them.

Memory goes only where nobody but us holds it: else none would come free, and who holds it could change it unseen. So it
waits in the order of saving, and is looked at whenever more is saved. Nothing here holds a tensor that torch gave us:
that would be a cycle through its graph.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING

import torch

from ddlrun.ddl.lms.block import Block, InFlightCopy, SavedTensor, holders, storage_of
from ddlrun.ddl.lms.order import MemoryLocation, SaveOrder
from ddlrun.ddl.lms.policy import MemoryLoad
from ddlrun.ddl.lms.stats import Stats, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ddlrun.ddl.lms.device import SwapDevice
    from ddlrun.ddl.lms.policy import Policy

# So many blocks of a place are looked at for one save, should others hold many.
MOST_LOOKED_AT = 256


class Swap:
    """The saved tensors of one device. Threads may pack and fetch at once, as torch's backward does."""

    def __init__(self, device: SwapDevice, policy: Policy) -> None:
        self._device, self._policy = device, policy
        self._lock = threading.RLock()
        self._order = SaveOrder()
        self._next = 0
        self._blocks: dict[int, weakref.ref[Block]] = {}
        self._keys: dict[int, int] = {}
        """Number -> its storage, while it is on the device."""
        self._numbers: dict[int, int] = {}
        """The inverse."""
        self._flights: dict[int, InFlightCopy] = {}
        self._dead: deque[int] = deque()
        self._refused_at: int | None = None
        self._alone = holders(torch.empty(1, device="cpu"))
        self._empty: Tensor | None = None
        self._counts = Counter[str](capacity=device.capacity)

    @property
    def stats(self) -> Stats:
        """What has been done so far."""
        with self._lock:
            self._bury()
            return Stats(**self._counts)

    def __len__(self) -> int:
        """Return how many blocks are saved now."""
        with self._lock:
            self._bury()
            return len(self._order)

    def pack(self, tensor: Tensor) -> SavedTensor:
        """Take note of a tensor that is saved for backward, and let others leave if the device is too full."""
        if self._empty is None:
            self._empty = tensor.new_empty(0)
        counter = tensor.detach()
        counter.data = self._empty
        with self._lock:
            self._bury()
            block = self._block(tensor)
            self._make_room()
        return SavedTensor(
            counter, tensor._version, self, block,  # noqa: SLF001 - its name for all users
            tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()),
        )  # fmt: skip

    def fetch(self, saved: SavedTensor) -> Tensor:
        """Return a tensor that was packed, and let those come that are needed next."""
        with self._lock:
            self._bury()
            block = saved.block
            self._drop_used()
            memory = self._memory(block)
            self._device.lend(memory, block.streams)
            tensor = saved.view(memory)
            self._look_ahead(block.number)
        return tensor

    def _block(self, tensor: Tensor) -> Block:
        key = storage_of(tensor)
        known = self._blocks[self._numbers[key]]() if key in self._numbers else None
        if known is None:
            known = Block(self._next, tensor.detach(), tensor.untyped_storage().nbytes())
            self._next += 1
            dead, number = self._dead, known.number
            self._blocks[number] = weakref.ref(known, lambda _: dead.append(number))
            self._order.add(number, known.nbytes)
            self._name(number, key)
            self._counts["saved"] += 1
        known.streams.add(self._device.stream())
        return known

    def _make_room(self) -> None:
        for block in self._live(MemoryLocation.LEAVING):
            if block.departure is not None and not block.departure.done():
                break
            self._let_go(block)
        excess = self._policy.excess(self._load())
        if excess and not self._host_is_full():
            for block in self._alone_at(MemoryLocation.BACK, MemoryLocation.HERE):  # first what the host has already
                if excess <= 0 or not self._send(block):
                    break
                excess -= block.nbytes
        for block in self._live(MemoryLocation.LEAVING):
            if not self._policy.must_wait(self._load(), self._order.newest(MemoryLocation.LEAVING)):
                break
            self._counts["throttled"] += block.departure is not None and not block.departure.done()
            self._let_go(block)

    def _alone_at(self, *places: MemoryLocation) -> Iterator[Block]:
        """Yield the blocks that nobody else holds, the one saved longest ago first."""
        for place in places:
            for block in islice(self._live(place), MOST_LOOKED_AT):
                if block.memory is not None and holders(block.memory) <= self._alone:
                    yield block

    def _send(self, block: Block) -> bool:
        """Let a block leave; tell whether the host has room for it."""
        if block.memory is None or block.host is not None:
            self._let_go(block)
            return True
        flat = torch.empty(0, dtype=torch.uint8, device=block.memory.device).set_(block.memory.untyped_storage())
        try:
            block.host, block.departure = self._device.take_out(flat, block.streams)
        except RuntimeError as error:
            self._refuse(block.nbytes, error)
            return False
        self._flights[block.number] = InFlightCopy(block.departure, flat, block.streams)
        self._order.put(block.number, MemoryLocation.LEAVING)
        self._counts["out"] += 1
        self._counts["bytes_out"] += block.nbytes
        self._peak("host_peak", self._on_host())
        return True

    def _let_go(self, block: Block) -> None:
        """Give the memory on the device back, after all copies that need it."""
        for copy in (block.departure, block.arrival):
            if copy is not None and not copy.done():
                copy.wait(block.streams)
        self._flights.pop(block.number, None)
        self._unname(block.number)
        block.memory = block.arrival = None
        self._order.put(block.number, MemoryLocation.AWAY)

    def _memory(self, block: Block) -> Tensor:
        """Return a block's memory on the device, with the stream in use after its copy."""
        place = self._order.place(block.number)
        if place is MemoryLocation.AWAY:
            self._counts["missed"] += 1
            self._bring_now(block)
        if block.arrival is not None and block.arrival.done():
            block.arrival = None
        late = block.arrival is not None and place is not MemoryLocation.BACK
        self._counts["waits"] += late or place is MemoryLocation.AWAY
        if block.arrival is not None:
            block.arrival.wait()
        if place is not MemoryLocation.HERE:
            self._flights.pop(block.number, None)
            self._order.put(block.number, MemoryLocation.BACK)
        if block.memory is None:
            raise AssertionError(f"block {block.number} is {place.name}, without memory")
        return block.memory

    def _look_ahead(self, number: int) -> None:
        for block in self._live_of(self._order.passed(number, MemoryLocation.COMING)):
            self._let_go(block)  # it was brought back for nothing
        for block in self._live_of(self._order.next_needed(number, MemoryLocation.AWAY)):
            if not self._has_room_ahead(block):
                break
            try:
                self._bring(block)
            except torch.cuda.OutOfMemoryError:  # others want memory at once: it comes when it is needed
                break

    def _has_room_ahead(self, block: Block) -> bool:
        """Tell whether a block may come back now; what is needed later than it has to make room."""
        while not self._policy.may_come(block.nbytes, self._load()):
            last = next(self._live(MemoryLocation.COMING), None)
            if last is None or last.number > block.number:
                return False
            self._let_go(last)
        return True

    def _bring_now(self, block: Block) -> None:
        """Bring a block back for this moment, in the place of what is brought ahead or done with, if need be."""
        try:
            self._bring(block)
        except torch.cuda.OutOfMemoryError:
            for other in (*self._live(MemoryLocation.COMING), *self._alone_at(MemoryLocation.BACK)):
                self._let_go(other)
            self._bring(block)

    def _drop_used(self) -> None:
        """Give back what backward is done with, and a retained graph still has, once the device is nearly full."""
        if self._order.nbytes[MemoryLocation.BACK]:
            over = self._policy.over_full(self._load())
            for block in self._alone_at(MemoryLocation.BACK) if over else ():
                if over <= 0:
                    break
                over -= block.nbytes
                self._let_go(block)

    def _bring(self, block: Block) -> None:
        if block.host is None:
            raise AssertionError(f"block {block.number} is nowhere")
        block.memory, block.arrival = self._device.bring_back(block.host, block.departure)
        block.streams = {self._device.stream()}
        self._name(block.number, storage_of(block.memory))
        self._flights[block.number] = InFlightCopy(block.arrival, block.memory, block.streams)
        self._order.put(block.number, MemoryLocation.COMING)
        self._counts["back"] += 1
        self._counts["bytes_in"] += block.nbytes

    def _bury(self) -> None:
        """Forget the blocks that no graph has any more; copies that still go on are waited for."""
        while self._dead:
            number = self._dead.popleft()
            flight = self._flights.pop(number, None)
            if flight is not None and not flight.copy.done():
                flight.copy.wait(flight.streams)
            self._unname(number)
            del self._blocks[number]
            self._order.drop(number)

    def _name(self, number: int, key: int) -> None:
        self._keys[number], self._numbers[key] = key, number

    def _unname(self, number: int) -> None:
        key = self._keys.pop(number, None)
        if key is not None and self._numbers.get(key) == number:  # else others have the storage of a block that died
            del self._numbers[key]

    def _live(self, place: MemoryLocation) -> Iterator[Block]:
        return self._live_of(self._order.of(place))

    def _live_of(self, numbers: Iterator[int] | tuple[int, ...]) -> Iterator[Block]:
        for number in numbers:
            block = self._blocks[number]()
            if block is not None:
                yield block

    def _load(self) -> MemoryLoad:
        used, nbytes = self._device.used(), self._order.nbytes
        self._peak("device_peak", used)
        return MemoryLoad(used, self._device.capacity, nbytes[MemoryLocation.LEAVING], nbytes[MemoryLocation.COMING])

    def _on_host(self) -> int:
        return sum(nbytes for place, nbytes in self._order.nbytes.items() if place is not MemoryLocation.HERE)

    def _host_is_full(self) -> bool:
        """Tell whether the host had no room for more than it holds now: then nothing is tried until that is less."""
        if self._refused_at is not None and self._on_host() < self._refused_at:
            self._refused_at = None
        return self._refused_at is not None

    def _refuse(self, nbytes: int, error: RuntimeError) -> None:
        if not self._counts["refused"]:
            sys.stderr.write(f"ddlrun.ddl.lms: no {size(nbytes)} of pinned memory, so tensors stay: {error}\n")
        self._refused_at = max(1, self._on_host())
        self._counts["refused"] += 1

    def _peak(self, name: str, nbytes: int) -> None:
        self._counts[name] = max(self._counts[name], nbytes)
