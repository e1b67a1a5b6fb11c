"""PyTorch with `ddlrun.ddl`: equal start values, averaged gradients, and torch.distributed's groups of the grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddlrun.ddl import session
from ddlrun.ddl.consistency import average_metrics, check_agreement, describe_rank
from ddlrun.ddl.torch.backend import register
from ddlrun.ddl.torch.buckets import describe_tensor
from ddlrun.ddl.torch.hook import Averaging, comm_hook
from ddlrun.ddl.torch.optimizer import DistributedOptimizer
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from ddlrun.ddl.transports.nccl.process_groups import ProcessGroups

__all__ = [
    "Averaging",
    "DistributedOptimizer",
    "average_metrics",
    "broadcast_parameters",
    "comm_hook",
    "device_mesh",
    "init_process_group",
    "process_group",
]

register()

MAX_BROADCAST = 1 << 30  # bytes: MPI counts them in 31 bits


def init_process_group() -> None:
    """Start torch.distributed's default group with the learners and their ranks. All learners call it together.

    The backend is gloo, and NCCL for tensors on GPUs if each rank has a current GPU of its own: call
    torch.cuda.set_device first. `ddl.free` ends the group. A default group that the script started is kept.

    Raises:
        InputError: On every learner, if that group has other ranks, or if the ranks cannot connect to rank 0.
    """
    _groups()


def process_group(axes: str = "") -> ProcessGroup:
    """Return the process group of the learners that differ from this one in `axes` only.

    Its ranks ascend with the ranks of the job. The default group is started if there is none. All learners request the
    same groups in the same order.

    Args:
        axes: Letters of dimensions such as "YZ". Default: all learners.

    Raises:
        InputError: As in `init_process_group`, and if the grid has no dimension of a letter.
    """
    return _groups().group(axes)


def device_mesh(device_type: str | None = None) -> DeviceMesh:
    """Return the grid as a DeviceMesh with dimensions X, Y and Z over the groups of `process_group`.

    All learners call it together. It needs torch 2.4.

    Args:
        device_type: "cuda" or "cpu". Default: "cuda" if the groups have NCCL.

    Raises:
        InputError: As in `init_process_group`.
    """
    groups = _groups()
    return groups.mesh(device_type or ("cpu" if groups.why_no_nccl else "cuda"))


def _groups() -> ProcessGroups:
    return session.current_learner().devices.groups


def broadcast_parameters(module_or_state_dict: torch.nn.Module | Mapping[str, Any], root: int = 0) -> None:
    """Copy rank root's parameters and buffers to all learners, in place. All learners call it together.

    Args:
        module_or_state_dict: A module, or a flat mapping from names to tensors such as `module.state_dict()`.
        root: The rank whose values are copied.

    Raises:
        InputError: Names, shapes or dtypes differ between learners, or a value is not a tensor.
    """
    tensors = _named_tensors(module_or_state_dict)
    lines = [f"{name}: {describe_tensor(tensor)}" for name, tensor in tensors.items()]
    check_agreement("broadcast_parameters", lines, "all learners build the same model")
    for tensor in tensors.values():
        host = tensor.detach().cpu().contiguous()  # the tensor's own memory, if that is on the CPU and contiguous
        if host.numel():
            for part in host.reshape(-1).view(torch.uint8).split(MAX_BROADCAST):  # type: ignore[no-untyped-call]
                session.bcast(part, root, in_place=True)
        if host.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(host)


def _named_tensors(source: torch.nn.Module | Mapping[str, Any]) -> dict[str, Tensor]:
    if isinstance(source, torch.nn.Module):
        return {**dict(source.named_parameters()), **dict(source.named_buffers())}
    for name, value in source.items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"{describe_rank()}: broadcast_parameters: {name!r} is {type(value).__name__}, no tensor; pass a "
                "module, or a mapping from names to tensors"
            )
    return dict(source)
