"""PyTorch over `ddlrun.ddl`: the same start values, averaged gradients, torch.distributed's groups of the grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddlrun import ddl
from ddlrun.ddl.buckets import described
from ddlrun.ddl.consistency import agree, average_metrics, here
from ddlrun.ddl.hook import Averaging, comm_hook
from ddlrun.ddl.optimizer import DistributedOptimizer
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from ddlrun.ddl.process_groups import ProcessGroups

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

MOST_AT_ONCE = 1 << 30  # bytes of one broadcast: MPI counts them in 31 bits


def init_process_group() -> None:
    """Begin torch.distributed's default group with the learners and their ranks; all call it together.

    Backend gloo for the CPU, and NCCL where each rank has a GPU of its own current: call torch.cuda.set_device before.
    `ddl.free` ends it. One that the script began stays as it is. Raises InputError on every learner if that one has
    other ranks, or if the ranks cannot meet.
    """
    _groups()


def process_group(axes: str = "") -> ProcessGroup:
    """Return the process group of the learners that differ from this one in `axes` alone ("YZ"), or of all.

    Ranks in it ascend. The default group begins if there is none. All learners ask for the same groups in one order.
    Raises InputError as `init_process_group` does, and on a letter that the grid has not.
    """
    return _groups().group(axes)


def device_mesh(device_type: str | None = None) -> DeviceMesh:
    """Return the grid as a DeviceMesh with the dimensions X, Y, Z, whose groups are those of `process_group`.

    `device_type` is "cuda" where the groups have NCCL, else "cpu". All learners call it together.
    """
    groups = _groups()
    return groups.mesh(device_type or ("cpu" if groups.why_no_nccl else "cuda"))


def _groups() -> ProcessGroups:
    return ddl._learner().devices.groups  # noqa: SLF001 - the learner is the package's own


def broadcast_parameters(module_or_state_dict: torch.nn.Module | Mapping[str, Any], root: int = 0) -> None:
    """Give all learners rank root's parameters and buffers, in place; all call it together.

    A mapping is a flat one from names to tensors, as `module.state_dict()`. Raises InputError if names, shapes or
    dtypes differ between learners.
    """
    tensors = _named_tensors(module_or_state_dict)
    lines = [f"{name}: {described(tensor)}" for name, tensor in tensors.items()]
    agree("broadcast_parameters", lines, "all learners build the same model")
    for tensor in tensors.values():
        host = tensor.detach().cpu().contiguous()  # the tensor's own memory, where it is that already
        if host.numel():
            for part in host.reshape(-1).view(torch.uint8).split(MOST_AT_ONCE):  # type: ignore[no-untyped-call]
                ddl.bcast(part, root, in_place=True)
        if host.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(host)


def _named_tensors(source: torch.nn.Module | Mapping[str, Any]) -> dict[str, Tensor]:
    if isinstance(source, torch.nn.Module):
        return {**dict(source.named_parameters()), **dict(source.named_buffers())}
    for name, value in source.items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"{here()}: broadcast_parameters: {name!r} is {type(value).__name__}, no tensor; pass a module, or a "
                "mapping from names to tensors"
            )
    return dict(source)
