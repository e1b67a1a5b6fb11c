"""Devices that tensors leave and return to: the protocol that `swap` uses, and CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor


class PendingCopy(Protocol):
    """A copy in progress."""

    def done(self) -> bool:
        """Return True if the copy is complete, without waiting."""

    def wait(self, streams: Collection[Any] = ()) -> None:
        """Make these streams and the current one run later work after the copy."""


class MemoryUse(NamedTuple):
    """Bytes in use, including those of other programs: now, and at most; None if that is not known."""

    now: int
    peak: int | None


class SwapDevice(Protocol):
    """Memory with a capacity, and copies from it to the host and back. Blocks are flat tensors of uint8."""

    capacity: int
    """Bytes of memory."""

    def usage(self) -> MemoryUse:
        """Return the bytes in use now, and at most since the peak was reset."""

    def reset_peak(self) -> None:
        """Begin a new peak."""

    def stream(self) -> Any:  # noqa: ANN401 - hashable, of a type of the device
        """Return the current stream."""

    def take_out(self, block: Tensor, streams: Collection[Any]) -> tuple[Tensor, PendingCopy]:
        """Begin to copy a block to the host, after the work queued on these streams; return the copy.

        Raises RuntimeError if the host has no memory for it.
        """

    def bring_back(self, host: Tensor, after: PendingCopy | None) -> tuple[Tensor, PendingCopy]:
        """Begin to copy a block from the host, after the copy `after`, to new memory of the current stream.

        Raises torch.cuda.OutOfMemoryError if the device has no memory for it.
        """

    def lend(self, block: Tensor, streams: Collection[Any]) -> None:
        """Allow the current stream to read a block whose memory belongs to one of `streams`."""


class CudaCopy(NamedTuple):
    """A copy from or to a device, which ends with an event."""

    event: Any
    device: int

    def done(self) -> bool:
        """Return True if the event has occurred."""
        return bool(self.event.query())

    def wait(self, streams: Collection[Any] = ()) -> None:
        """Make streams wait for the event. The host does not wait."""
        for stream in {*streams, torch.cuda.current_stream(self.device)}:
            stream.wait_event(self.event)


class Cuda:
    """A CUDA device, with a stream for each direction so that both run at once.

    Host memory is pinned in this process, which the launcher bound to the NUMA node of its GPU, so it lies there.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._out, self._back = torch.cuda.Stream(index), torch.cuda.Stream(index)
        free, total = torch.cuda.mem_get_info(index)
        # If torch is limited to a fraction of the device, that is the capacity. Else memory of others counts as used.
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(index)
        self.capacity = int(total * share)
        self._others = max(0, total - free - torch.cuda.memory_reserved(index)) if share >= 1 else 0

    def usage(self) -> MemoryUse:
        """Return the bytes of all tensors on the device, and those that others used when this object was created."""
        allocated = torch.cuda.memory_stats_as_nested_dict(self._index)["allocated_bytes"]["all"]
        return MemoryUse(self._others + allocated["current"], self._others + allocated["peak"])

    def reset_peak(self) -> None:
        """Reset all of torch's statistics of peaks: it has no other way."""
        torch.cuda.reset_peak_memory_stats(self._index)

    def stream(self) -> Any:  # noqa: ANN401 - a stream of torch
        """Return the current stream."""
        return torch.cuda.current_stream(self._index)

    def take_out(self, block: Tensor, streams: Collection[Any]) -> tuple[Tensor, PendingCopy]:
        """Begin to copy a block to pinned memory."""
        host = torch.empty(block.numel(), dtype=torch.uint8, device="cpu", pin_memory=True)
        current = self.stream()
        for stream in {*streams, current}:
            self._out.wait_stream(stream)
        if any(stream != current for stream in streams):
            block.record_stream(self._out)  # it may belong to a stream that is not made to wait
        with torch.cuda.stream(self._out):
            host.copy_(block, non_blocking=True)
            return host, CudaCopy(self._out.record_event(), self._index)

    def bring_back(self, host: Tensor, after: PendingCopy | None) -> tuple[Tensor, PendingCopy]:
        """Begin to copy pinned memory to the device, to memory of the current stream, which it is later freed to."""
        block = torch.empty(host.numel(), dtype=torch.uint8, device=torch.device("cuda", self._index))
        self._back.wait_stream(self.stream())  # the memory may still be read by earlier work
        with torch.cuda.stream(self._back):
            if after is not None:
                after.wait()
            block.copy_(host, non_blocking=True)
            return block, CudaCopy(self._back.record_event(), self._index)

    def lend(self, block: Tensor, streams: Collection[Any]) -> None:
        """Keep memory from being reused while another stream reads it."""
        current = self.stream()
        if current not in streams:
            block.record_stream(current)
