"""A device that tensors leave and come back to: what `swap` needs of it, and CUDA's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor


class PendingCopy(Protocol):
    """A copy under way."""

    def done(self) -> bool:
        """Tell whether all is there, without waiting."""

    def wait(self, streams: Collection[Any] = ()) -> None:
        """Let what is queued from now on, on these streams and the one in use, come after the copy."""


class SwapDevice(Protocol):
    """Memory with a limit, and ways from it to the host and back; blocks are flat tensors of bytes."""

    capacity: int
    """Bytes in all."""

    def used(self) -> int:
        """Return the bytes that are taken, by whomever."""

    def stream(self) -> Any:  # noqa: ANN401 - hashable, the device's own
        """Return the stream in use."""

    def take_out(self, block: Tensor, streams: Collection[Any]) -> tuple[Tensor, PendingCopy]:
        """Begin to copy a block to the host, after what is queued on these streams; return the host's bytes.

        Raises RuntimeError where the host has no memory for them.
        """

    def bring_back(self, host: Tensor, after: PendingCopy | None) -> tuple[Tensor, PendingCopy]:
        """Begin to copy the host's bytes, after another copy, to new memory of the stream in use.

        Raises torch.cuda.OutOfMemoryError where the device has none.
        """

    def lend(self, block: Tensor, streams: Collection[Any]) -> None:
        """Let the stream in use read a block whose memory belongs to one of `streams`."""


class CudaCopy(NamedTuple):
    """The event that ends a copy from or to that device."""

    event: Any
    device: int

    def done(self) -> bool:
        """Tell whether the event has come."""
        return bool(self.event.query())

    def wait(self, streams: Collection[Any] = ()) -> None:
        """Let streams wait for the event; the host goes on."""
        for stream in {*streams, torch.cuda.current_stream(self.device)}:
            stream.wait_event(self.event)


class Cuda:
    """A CUDA device, with a stream for each direction so that both go at once.

    Host memory is pinned by this process, which the launcher bound to the NUMA node of its GPU: it lies there.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._out, self._back = torch.cuda.Stream(index), torch.cuda.Stream(index)
        free, total = torch.cuda.mem_get_info(index)
        # A fraction that torch was told to keep to is all there is; else others' memory counts as taken.
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(index)
        self.capacity = int(total * share)
        self._others = max(0, total - free - torch.cuda.memory_reserved(index)) if share >= 1 else 0

    def used(self) -> int:
        """Return the bytes of all tensors on the device, and what others took when this began."""
        allocated = torch.cuda.memory_stats_as_nested_dict(self._index).get("allocated_bytes")
        return self._others + (allocated["all"]["current"] if allocated else 0)

    def stream(self) -> Any:  # noqa: ANN401 - torch's own
        """Return the stream in use."""
        return torch.cuda.current_stream(self._index)

    def take_out(self, block: Tensor, streams: Collection[Any]) -> tuple[Tensor, PendingCopy]:
        """Begin to copy a block to pinned memory."""
        host = torch.empty(block.numel(), dtype=torch.uint8, device="cpu", pin_memory=True)
        current = self.stream()
        for stream in {*streams, current}:
            self._out.wait_stream(stream)
        if any(stream != current for stream in streams):
            block.record_stream(self._out)  # it may belong to a stream that nobody lets wait
        with torch.cuda.stream(self._out):
            host.copy_(block, non_blocking=True)
            return host, CudaCopy(self._out.record_event(), self._index)

    def bring_back(self, host: Tensor, after: PendingCopy | None) -> tuple[Tensor, PendingCopy]:
        """Begin to copy pinned memory to the device: to memory of the stream in use, which it returns to."""
        block = torch.empty(host.numel(), dtype=torch.uint8, device=torch.device("cuda", self._index))
        self._back.wait_stream(self.stream())  # what had that memory before may still be read
        with torch.cuda.stream(self._back):
            if after is not None:
                after.wait()
            block.copy_(host, non_blocking=True)
            return block, CudaCopy(self._back.record_event(), self._index)

    def lend(self, block: Tensor, streams: Collection[Any]) -> None:
        """Keep memory from being used again while another stream reads it."""
        current = self.stream()
        if current not in streams:
            block.record_stream(current)
