"""A simulated device: CPU tensors whose bytes are counted, and copies that end late."""

import threading
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter

from ddlrun.ddl.lms.device import MemoryUse, PendingCopy

UNWRITTEN = 0xFF  # each byte of memory before its copy has ended: NaN in every floating-point type


class ByteCounter(TorchDispatchMode):
    """Counts the bytes that operations inside `with` allocated and that are still in use, without those of `before`."""

    def __init__(self, *before: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before = [StorageWeakRef(tensor.untyped_storage()) for tensor in before]
        self._alive = {ref.cdata: (ref, 0) for ref in self._before}
        self.peak = self.recent = 0
        """The most bytes in use; the same since the last call of `reset_peak`."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                ref = StorageWeakRef(tensor.untyped_storage())
                self._alive.setdefault(ref.cdata, (ref, tensor.untyped_storage().nbytes()))
        live = self.live()
        self.peak, self.recent = max(self.peak, live), max(self.recent, live)
        return result

    def reset_peak(self) -> None:
        self.recent = self.live()

    def live(self) -> int:
        """Return the bytes in use now."""
        for key in [key for key, (ref, _) in self._alive.items() if ref.expired()]:
            del self._alive[key]
        return sum(nbytes for _, nbytes in self._alive.values())


class LateCopy:
    """A copy that takes place when it is waited for, or after `polls` calls of `done`.

    It holds no memory, as a real one does not. If the memory on the device is freed before its end, that is a fault.
    """

    def __init__(
        self, device: "SimulatedDevice", host: Tensor, memory: Tensor, after: PendingCopy | None, *, out: bool
    ) -> None:
        self._device, self._after, self._out, self._polls = device, after, out, device.polls
        self._host, self._memory = StorageWeakRef(host.untyped_storage()), StorageWeakRef(memory.untyped_storage())
        self._lock, self._ended = threading.Lock(), False

    def done(self) -> bool:
        self._polls -= 1
        if self._polls < 0:
            self.wait()
        return self._ended

    def wait(self, _streams: Collection[Any] = ()) -> None:
        with self._lock:
            if not self._ended:
                self._ended = True
                self._copy()
                del self._host, self._memory  # else no other storage could get their keys

    def _copy(self) -> None:
        if self._after is not None:
            self._after.wait()
        with _disable_current_modes():  # type: ignore[no-untyped-call]
            host, memory = _bytes(self._host), _bytes(self._memory)
            if memory is None and (host is not None or not self._out):
                self._device.faults.append(
                    f"memory was freed before its copy {'out' if self._out else 'back'} had ended"
                )
            elif memory is not None and host is not None:
                (host if self._out else memory).copy_(memory if self._out else host)


def _bytes(ref: StorageWeakRef) -> Tensor | None:
    storage = torch.UntypedStorage._new_with_weak_ptr(ref.cdata)  # noqa: SLF001 - nothing public does it
    return None if storage is None else torch.empty(0, dtype=torch.uint8).set_(storage)


class SimulatedDevice:
    """A device of `capacity` bytes, of which used() are in use.

    A copy ends after `polls` calls of `done`. The host has room for `room` bytes. `out` and `back` have the bytes of
    each copy. The peaks are those of a counter; without one they are not known.
    """

    def __init__(
        self,
        capacity: int,
        used: Callable[[], int],
        *,
        counter: ByteCounter | None = None,
        polls: int = 3,
        room: float = float("inf"),
    ) -> None:
        self.capacity, self.used, self._counter = capacity, used, counter
        self.polls, self._room = polls, room
        self.faults: list[str] = []
        self._copies: list[LateCopy] = []
        self.out: list[int] = []
        self.back: list[int] = []
        self.lent = self.out_of_memory = 0
        self._hosts: list[StorageWeakRef] = []
        self._on_host: list[int] = []

    def usage(self) -> MemoryUse:
        return MemoryUse(self.used(), None if self._counter is None else self._counter.recent)

    def reset_peak(self) -> None:
        assert self._counter is not None
        self._counter.reset_peak()

    def stream(self) -> int:
        return threading.get_ident()

    def _register(self, copy: LateCopy) -> LateCopy:
        self._copies.append(copy)
        return copy

    def at_fault(self) -> list[str]:
        """Complete all copies and return their faults."""
        for copy in self._copies:
            copy.wait()
        return self.faults

    def on_host(self) -> int:
        """Return the bytes that are on the host now."""
        alive = [(ref, nbytes) for ref, nbytes in zip(self._hosts, self._on_host, strict=True) if not ref.expired()]
        self._hosts, self._on_host = [ref for ref, _ in alive], [nbytes for _, nbytes in alive]
        return sum(self._on_host)

    def take_out(self, block: Tensor, streams: Collection[Any]) -> tuple[Tensor, PendingCopy]:
        assert streams
        assert block.dtype is torch.uint8
        if self.on_host() + block.numel() > self._room:
            raise RuntimeError("simulated: the host is full")
        with _disable_current_modes():  # type: ignore[no-untyped-call]
            host = torch.full((block.numel(),), UNWRITTEN, dtype=torch.uint8)
        self._hosts.append(StorageWeakRef(host.untyped_storage()))
        self._on_host.append(block.numel())
        self.out.append(block.numel())
        return host, self._register(LateCopy(self, host, block, None, out=True))

    def bring_back(self, host: Tensor, after: PendingCopy | None) -> tuple[Tensor, PendingCopy]:
        block = torch.full((host.numel(),), UNWRITTEN, dtype=torch.uint8)
        if self.used() > self.capacity:
            self.out_of_memory += 1
            raise torch.cuda.OutOfMemoryError(f"simulated: {self.used()} of {self.capacity}")
        self.back.append(host.numel())
        return block, self._register(LateCopy(self, host, block, after, out=False))

    def lend(self, block: Tensor, streams: Collection[Any]) -> None:
        assert block.numel()
        assert streams
        self.lent += 1
