"""The communication hook of DistributedDataParallel."""

# No `from __future__ import annotations`: DistributedDataParallel compares a hook's annotations with classes.
from typing import NamedTuple

from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from ddlrun import ddl
from ddlrun.ddl.handle import Handle


class _Part(NamedTuple):
    handle: Handle
    buffer: Tensor
    future: Future[Tensor]


class Averaging:
    """What `comm_hook` keeps during a backward pass; `axes` and `wire` as in `ddl.all_reduce`."""

    def __init__(self, axes: str = "", wire: str | None = None) -> None:
        self.axes, self.wire = axes, wire
        self._parts: list[_Part] = []

    def add(self, buffer: Tensor) -> Future[Tensor]:
        """Begin to average a buffer in place."""
        future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        handle = ddl.start([buffer.detach()], axes=self.axes, wire=self.wire)
        self._parts.append(_Part(handle, buffer, future))
        return future

    def finish(self) -> None:
        """Wait for all buffers; nobody else moves messages once the backward pass is over."""
        for handle, buffer, future in self._parts:
            handle.wait()
            future.set_result(buffer)
        self._parts.clear()


def comm_hook(state: Averaging | None, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket of DistributedDataParallel: `model.register_comm_hook(Averaging(), comm_hook)`.

    Buckets are under way while the backward pass goes on; with None instead of Averaging each is waited for. The
    default process group only has to be there (`init_process_group`): it carries the start values, no gradients.
    """
    averaging = state or Averaging()
    if bucket.index() == 0:
        averaging.finish()  # what a backward pass that was broken off left
    future = averaging.add(bucket.buffer())
    if state is None or bucket.is_last():
        averaging.finish()
    return future
