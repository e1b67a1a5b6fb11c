"""The communication hook of DistributedDataParallel."""

# No `from __future__ import annotations`: DistributedDataParallel compares a hook's annotations with classes.
from typing import TYPE_CHECKING

from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from ddlrun.ddl import session

if TYPE_CHECKING:
    from ddlrun.ddl.group.handle import Handle


class Averaging:
    """The state of `comm_hook`: the averages in progress.

    Args:
        axes: As in `ddl.all_reduce`.
        wire: As in `ddl.all_reduce`.
    """

    def __init__(self, axes: str = "", wire: str | None = None) -> None:
        self.axes, self.wire = axes, wire
        self._pending: list[tuple[Handle, Tensor, Future[Tensor]]] = []

    def add(self, buffer: Tensor) -> Future[Tensor]:
        """Begin to average a buffer in place."""
        future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        handle = session.start([buffer.detach()], axes=self.axes, wire=self.wire)
        self._pending.append((handle, buffer, future))
        return future

    def finish(self) -> None:
        """Wait for all buffers: after the backward pass nothing else moves their messages."""
        for handle, buffer, future in self._pending:
            handle.wait()
            future.set_result(buffer)
        self._pending.clear()


def comm_hook(state: Averaging | None, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket of DistributedDataParallel: `model.register_comm_hook(Averaging(), comm_hook)`.

    The default process group carries the start values, no gradients, and must exist (`init_process_group`).

    Args:
        state: The averages in progress, while the backward pass continues. With None, each bucket is waited for before
            the next.
        bucket: The bucket, as DistributedDataParallel passes it.
    """
    averaging = state or Averaging()
    if bucket.index() == 0:
        averaging.finish()  # the rest of a backward pass that was interrupted
    future = averaging.add(bucket.buffer())
    if state is None or bucket.is_last():
        averaging.finish()
    return future
