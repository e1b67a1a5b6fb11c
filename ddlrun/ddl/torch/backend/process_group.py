"""The process group of the backend "ddl": the methods that torch.distributed calls.

Its base classes have the collectives; this one has the messages between two members, and the monitored barrier.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ddlrun.ddl.torch.backend import arguments
from ddlrun.ddl.torch.backend.arguments import as_tensors
from ddlrun.ddl.torch.backend.copies import CopyingGroup
from ddlrun.ddl.torch.backend.errors import ArgumentError
from ddlrun.ddl.torch.backend.messages import AnySource
from ddlrun.ddl.torch.backend.monitored_barrier import MonitoredBarrier
from ddlrun.ddl.torch.backend.other_devices import OtherDevices, by_device
from ddlrun.ddl.torch.backend.tensor_bytes import TensorBytes
from ddlrun.ddl.torch.backend.works import Call

if TYPE_CHECKING:
    from datetime import timedelta

    import torch

    Tensors = list[torch.Tensor]

LARGEST_TAG = (1 << 31) - 1


@by_device
class DdlProcessGroup(OtherDevices, CopyingGroup):
    """A process group of the backend "ddl"."""

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:  # noqa: ANN401
        """Send a tensor to a member."""
        memory, number = self._message("send", tensors, peer, tag), self._job.number(peer)
        call = Call(f"send with tag {tag}", tensors, missing=f"rank {number} had not received it", peer=number, tag=tag)
        return self._submit(call, partial(self._messages.send, memory, peer, tag))

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:  # noqa: ANN401
        """Receive a tensor from a member."""
        memory, number = self._message("recv", tensors, peer, tag), self._job.number(peer)
        call = Call(f"recv with tag {tag}", tensors, missing=f"rank {number} had not sent it", peer=number, tag=tag)
        return self._submit(call, partial(self._messages.receive, memory, peer, tag), memory.write_back, lambda: peer)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:  # noqa: ANN401
        """Receive a tensor from the member whose message is here first."""
        start = AnySource(self._messages, self._message("recv", tensors, None, tag), tag)
        call = Call(f"recv from any rank with tag {tag}", tensors, missing="no rank had sent it")
        return self._submit(call, start, start.write_back, lambda: start.source)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:  # noqa: FBT001, FBT002
        """Return when all members have called it.

        Rank 0 raises an error that names the first rank that has not within the timeout, or all of them.
        """
        seconds = self._thread.seconds if timeout is None else timeout.total_seconds()
        barrier = MonitoredBarrier(self._barriers, self._job, self._barrier_calls, seconds, wait_all=wait_all_ranks)
        self._barrier_calls += 1
        call = Call("monitored_barrier", None, seconds, missing="rank 0 had not called it")
        self._submit(call, barrier.start, barrier.check).wait()

    def _message(self, call: str, tensors: Tensors, peer: int | None, tag: int) -> TensorBytes:
        arguments.check_single(call, "tensor list", as_tensors(tensors))
        if peer is not None and not 0 <= peer < self.size():
            raise ArgumentError(f"ddl {call}: no rank {peer} in a group of {self.size()}")
        if not 0 <= tag <= LARGEST_TAG:
            raise ArgumentError(f"ddl {call}: tag {tag} is not from 0 to {LARGEST_TAG}")
        if peer == self.rank():
            raise ArgumentError(
                f"ddl {call}: rank {self._job.number(self.rank())} is this rank; copy the tensor instead"
            )
        return TensorBytes(as_tensors(tensors)[0])
