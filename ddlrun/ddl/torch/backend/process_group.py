"""The process group of the backend "ddl": the methods that torch.distributed calls.

Its base classes have the collectives; this one has the messages between two members, and the monitored barrier.
Tensors on devices other than the CPU go to another group: `cuda:nccl` in `init_process_group("cpu:ddl,cuda:nccl")`.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed as torch_distributed

from ddlrun.ddl.torch.backend import arguments
from ddlrun.ddl.torch.backend.arguments import as_tensors
from ddlrun.ddl.torch.backend.copies import CopyingGroup
from ddlrun.ddl.torch.backend.errors import ArgumentError, GroupError
from ddlrun.ddl.torch.backend.group_base import NAME, GroupBase
from ddlrun.ddl.torch.backend.late_ranks import MonitoredBarrier
from ddlrun.ddl.torch.backend.messages import AnySource
from ddlrun.ddl.torch.backend.tensor_bytes import TensorBytes
from ddlrun.ddl.torch.backend.works import Call, uncompiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Tensors = list[torch.Tensor]

distributed: Any = torch_distributed  # its stubs lack the functions that are called here
c10d: Any = distributed.distributed_c10d

Group = TypeVar("Group", bound="OtherDevices")

# The methods of a process group that take tensors or a device.
METHODS = (
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "gather", "scatter",
    "allgather", "allgather_coalesced", "all_gather_single", "_allgather_base",
    "all_gather_single_coalesced", "allgather_into_tensor_coalesced",
    "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
    "alltoall", "alltoall_base", "all_to_all_single", "send", "recv", "recv_anysource",
    "_start_coalescing", "_end_coalescing",
)  # fmt: skip


class OtherDevices(GroupBase):
    """A process group that passes calls with tensors on other devices to a group of torch's class.

    torch takes a group that is written in Python for all devices, and makes no group for those that the script names
    after it. The other group has the backends of all of them, and torch's tables of groups do not list it.
    """

    # The features that torch queries of a backend: `_get_backend` returns this group for the CPU.
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(self, *arguments: Any, backend_options: Any = None) -> None:  # noqa: ANN401
        """Take the arguments of GroupBase, and the options of the other backends."""
        super().__init__(*arguments)
        self._backend_options = backend_options
        self._other: Any = None
        self._ended = False
        self._lock = threading.Lock()

    @property
    def _device_types(self) -> list[torch.device]:
        """The types of the devices whose tensors the group takes. torch uses the CPU for objects and barriers."""
        return [torch.device("cpu"), *map(torch.device, self._other_backends())]

    def _get_backend(self, device: torch.device) -> Any:  # noqa: ANN401 - this group, or a Backend
        """Return the backend for tensors on a device: this group, or one of the other group.

        If the script passes a `device_id`, torch calls this before its tables list the group, to connect NCCL at once.
        """
        if device.type == "cpu" or self not in c10d._world.pg_map:  # noqa: SLF001
            return self
        return self._group_for(device)._get_backend(device)  # noqa: SLF001

    @uncompiled
    def barrier(self, opts: Any = None) -> Any:  # noqa: ANN401
        """Complete when all members have called it. The options may name a device, whose backend is then used."""
        device = None if opts is None else opts.device
        if device is not None and device.type in self._other_backends():
            return self._group_for(device).barrier(opts)
        return super().barrier(opts)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of later calls."""
        self._thread.seconds = timeout.total_seconds()
        if self._other is not None:
            c10d._set_pg_timeout(timeout, self._other)  # noqa: SLF001

    def shutdown(self) -> None:
        """Complete what is in progress and close the connections."""
        try:
            self._end_other("shutdown")
        finally:
            super().shutdown()

    def abort(self) -> None:
        """Let all works fail, and close the connections."""
        try:
            super().abort()
        finally:
            self._end_other("abort")  # which waits while another thread creates the group

    def _other_backends(self) -> dict[str, str]:
        """Return the backend of each other type of device, in the order in which the script named them."""
        config = c10d._world.pg_backend_config.get(self, "")  # noqa: SLF001
        pairs = [pair.split(":") for pair in config.split(",") if pair]
        return {device: backend for device, backend in pairs if device != "cpu" and backend != NAME}

    def _group_for(self, device: torch.device) -> Any:  # noqa: ANN401 - a ProcessGroup
        """Return the group for tensors on other devices. The members create it in their first call with one."""
        with self._lock:
            if self._ended:
                raise GroupError(f"{self._job}: the process group has ended")
            backends = self._other_backends()
            if device.type not in backends:
                backend = distributed.Backend.default_device_backend_map.get(device.type, "BACKEND")
                raise ArgumentError(
                    f"backend ddl: the group has no backend for tensors on {device}; name one when you create it, as "
                    f'in init_process_group("cpu:ddl,{device.type}:{backend}")'
                )
            if self._other is None:
                self._other = self._make_other(",".join(f"{name}:{backend}" for name, backend in backends.items()))
            return self._other

    def _make_other(self, config: str) -> Any:  # noqa: ANN401 - a ProcessGroup
        """Create the group as torch does, and take it out of torch's tables: this group ends it."""
        store, name = c10d._world.pg_map[self][1], f"{self.group_name} {config}"  # noqa: SLF001
        group, _ = c10d._new_process_group_helper(  # noqa: SLF001
            self.size(), self.rank(), list(self._job.ranks), distributed.Backend(config), store, name,
            self._backend_options, timeout=timedelta(seconds=self._thread.seconds), pg_tag=name,
        )  # fmt: skip
        c10d._cleanup_process_group_global_state(group)  # noqa: SLF001
        return group

    def _end_other(self, method: str) -> None:
        """Call `shutdown` or `abort` of the group for other devices, if there is one, once."""
        with self._lock:
            other, self._other, self._ended = self._other, None, True
        if other is not None:
            getattr(other, method)()


def by_device(group: type[Group]) -> type[Group]:
    """Make the methods of a class pass calls with tensors on other devices to the group for these."""
    for name in METHODS:
        setattr(group, name, uncompiled(_dispatch(name, getattr(group, name))))
    return group


def _dispatch(name: str, method: Any) -> Callable[..., Any]:  # noqa: ANN401
    @wraps(method)
    def call(self: OtherDevices, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        if args and _begins_on_cpu(args[0]):  # nearly always: the rest takes some microseconds
            return method(self, *args, **options)
        values = (*args, *options.values())
        device = next(_find_devices(values), None)
        if device is None or device.type == "cpu":
            return method(self, *args, **options)
        group = self._group_for(device)
        if any(other.type != device.type for other in _find_devices(values)):
            raise ArgumentError(f"ddl {name}: tensors on {device} and on other devices in one call")
        return getattr(group, name)(*args, **options)

    return call


def _begins_on_cpu(value: Any) -> bool:  # noqa: ANN401
    """Return True for a tensor on the CPU, and for a list whose first tensor is there."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, torch.Tensor) and value.is_cpu


def _find_devices(values: Iterable[Any]) -> Iterator[torch.device]:
    """Yield the devices among values and lists of them, and those of tensors."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value.device
        elif isinstance(value, torch.device):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _find_devices(value)


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
