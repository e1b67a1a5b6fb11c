"""torch.distributed on the grid: its default group from the MPI launch, and a process group per dimension."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from ddlrun.ddl.transports.tcp.own_host import find_rendezvous_address
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from ddlrun.ddl.group.dimensions import Grid

GLOO, GLOO_AND_NCCL = "gloo", "cpu:gloo,cuda:nccl"
REMEDY = "begin it with rank=ddl.rank(), world_size=ddl.size(), or leave it to ddlrun.ddl.torch.init_process_group()"


@dataclass(frozen=True, slots=True)
class GpuSupport:
    """What a rank has for NCCL: a torch that was built with it, and the name of its current GPU ("": none)."""

    nccl: bool
    gpu: str


def explain_no_nccl(ranks: Sequence[GpuSupport]) -> str:
    """Return the reason why the ranks' GPUs cannot communicate by NCCL, or "" if they can.

    >>> explain_no_nccl([GpuSupport(True, "a"), GpuSupport(True, "b"), GpuSupport(True, "a")])
    'ranks 0 and 2 are on one GPU; call torch.cuda.set_device(ddl.local_rank()) first, or start one rank per GPU'
    """
    owners: dict[str, int] = {}
    for rank, support in enumerate(ranks):
        if not support.gpu:
            return f"rank {rank} has no GPU"
        if not support.nccl:
            return f"torch has no NCCL on rank {rank}"
        if support.gpu in owners:
            return (
                f"ranks {owners[support.gpu]} and {rank} are on one GPU; call torch.cuda.set_device(ddl.local_rank()) "
                "first, or start one rank per GPU"
            )
        owners[support.gpu] = rank
    return ""


class ProcessGroups:
    """The process groups of the grid. All learners create it together, and request groups in the same order.

    A default group that the script started is used and kept. `why_no_nccl` is the reason why NCCL cannot be used,
    or "". Raises InputError on every learner if the default group's ranks are not the grid's.
    """

    def __init__(self, grid: Grid, *, one_host: bool) -> None:
        if not distributed.is_available():
            raise InputError("this torch was built without torch.distributed; install another build of it")
        self._grid, self._comm, self._one_host = grid, grid.base, one_host
        self.why_no_nccl = explain_no_nccl(self._comm.allgather(_read_gpu_support()))
        self._backend = GLOO if self.why_no_nccl else GLOO_AND_NCCL
        self._groups: dict[str, Any] = {}
        self._store = None if self._has_default_group() else self._start_default_group()

    def group(self, axes: str) -> Any:  # noqa: ANN401 - a ProcessGroup
        """Return the group of the learners that differ from this one in `axes` only ("": all), ranks ascending.

        All learners call this together the first time. Raises InputError if the grid has no dimension of a letter.
        """
        name = "".join(self._grid.axes[i] for i in self._grid.places(axes))
        if name in {"", self._grid.axes}:
            return distributed.group.WORLD
        if name not in self._groups:
            # Only the members take part: creating all groups on all ranks takes thousands of rounds in large jobs.
            self._groups[name] = distributed.new_group(
                _members(self._grid, name), backend=self._backend, use_local_synchronization=True
            )
        return self._groups[name]

    def mesh(self, device_type: str) -> DeviceMesh:
        """Return the grid as a DeviceMesh with dimensions X, Y, Z and the groups of `group`. Needs torch 2.4."""
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415 - 0.2 s, for few scripts

        grid, axes = self._grid, self._grid.axes
        ranks = torch.empty(grid.topology.dims, dtype=torch.int)
        for rank in range(grid.size):
            ranks[grid.coords_of(rank)] = rank
        groups = [self.group(axis) for axis in axes]
        mesh: DeviceMesh = DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=tuple(axes))
        return mesh

    def along(self, axes: str) -> list[ProcessGroup]:
        """Return the groups of the dimensions in `axes` ("": all) that have more than one learner."""
        grid = self._grid
        return [self.group(grid.axes[i]) for i in grid.places(axes or grid.axes) if grid.topology.dims[i] > 1]

    def free(self) -> None:
        """Destroy the groups that were created here. All learners call it together."""
        if not distributed.is_initialized():
            return
        if self._store is None:
            for group in self._groups.values():
                distributed.destroy_process_group(group)
            return
        distributed.destroy_process_group()
        self._comm.Barrier()  # rank 0 has the store, which other ranks may still query

    def _has_default_group(self) -> bool:
        """Return True if the script started a default group. Raises InputError if its ranks are not the grid's."""
        initialized = distributed.is_initialized()
        mine = (distributed.get_rank(), distributed.get_world_size()) if initialized else None
        replies = self._comm.allgather(mine)
        if replies == [None] * len(replies):
            return False
        for rank, reply in enumerate(replies):
            if reply != (rank, self._grid.size):
                state = f"rank {reply[0]} of {reply[1]}" if reply else "not begun"
                raise InputError(
                    f"{self._grid}: torch.distributed is {state} on rank {rank} of {self._grid.size}; {REMEDY}"
                )
        return True

    def _start_default_group(self) -> Any:  # noqa: ANN401 - a Store
        """Start the default group and return its store.

        The port is that of rank 0's own store, so no other process can take it between a test and its use.
        """
        grid, comm, address, port, problem = self._grid, self._comm, "", 0, ""
        store: Any = None
        if comm.size == 1:
            store = distributed.HashStore()  # type: ignore[attr-defined]
        elif grid.rank == 0:
            try:
                address = find_rendezvous_address(os.environ, one_host=self._one_host)
                store, port = _listen(address, os.environ.get("MASTER_PORT", "0"))
            except InputError as error:
                problem = str(error)
        address, port, problem = comm.bcast((address, port, problem))
        if problem:
            raise InputError(f"{grid}: torch.distributed: {problem}")
        store = store or distributed.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
        distributed.init_process_group(self._backend, store=store, rank=grid.rank, world_size=grid.size)
        return store


def _listen(address: str, port: str) -> tuple[Any, int]:
    try:
        store: Any = distributed.TCPStore(address, int(port), is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    except (RuntimeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise InputError(
            f"no store at {address}:{port}: {first_line}; unset MASTER_PORT, and a free one is found"
        ) from error
    return store, store.port


def _members(grid: Grid, axes: str) -> list[int]:
    """Return the ranks that differ from this one in `axes` only, ascending."""
    fixed = [number for number, axis in enumerate(grid.axes) if axis not in axes]
    coords = map(grid.coords_of, range(grid.size))
    return [rank for rank, at in enumerate(coords) if all(at[number] == grid.coords[number] for number in fixed)]


def _read_gpu_support() -> GpuSupport:
    if not torch.cuda.is_available():
        return GpuSupport(distributed.is_nccl_available(), "")
    device = torch.cuda.current_device()
    # Before torch 2.4 a GPU has no UUID here. Its number is unique on its host only.
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    # NCCL treats ranks with different NCCL_HOSTID as ranks on different hosts, and does not compare their GPUs.
    host = os.environ.get("NCCL_HOSTID", "")
    return GpuSupport(distributed.is_nccl_available(), f"{host} {uuid or f'{os.uname().nodename} {device}'}")
