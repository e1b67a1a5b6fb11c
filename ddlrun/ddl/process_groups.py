"""torch.distributed on the grid: its default group from the MPI launch, and a process group for each dimension."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed

from ddlrun.ddl.dimensions import coords_of, rank_at
from ddlrun.ddl.nccl_pipeline import DimensionGroup
from ddlrun.ddl.rendezvous import meeting_address
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py.MPI import Intracomm
    from torch.distributed.device_mesh import DeviceMesh

    from ddlrun.ddl.dimensions import Grid

GLOO, BOTH = "gloo", "cpu:gloo,cuda:nccl"
REMEDY = "begin it with rank=ddl.rank(), world_size=ddl.size(), or leave it to ddlrun.ddl.torch.init_process_group()"


class GpuSupport(NamedTuple):
    """What a rank has for NCCL: whether its torch was built with it, and its current GPU ("": none)."""

    nccl: bool
    gpu: str


def why_no_nccl(found: Sequence[GpuSupport]) -> str:
    """Say why the ranks' GPUs cannot talk by NCCL; empty if they can.

    >>> why_no_nccl([GpuSupport(True, "a"), GpuSupport(True, "b"), GpuSupport(True, "a")])
    'ranks 0 and 2 are on one GPU; call torch.cuda.set_device(ddl.local_rank()) before, or start one rank a GPU'
    """
    owners: dict[str, int] = {}
    for rank, (nccl, gpu) in enumerate(found):
        if not gpu:
            return f"rank {rank} has no GPU"
        if not nccl:
            return f"torch has no NCCL on rank {rank}"
        if gpu in owners:
            return (
                f"ranks {owners[gpu]} and {rank} are on one GPU; call torch.cuda.set_device(ddl.local_rank()) before, "
                "or start one rank a GPU"
            )
        owners[gpu] = rank
    return ""


class ProcessGroups:
    """The grid's process groups. All learners make it together and ask for groups in one order; `free` it.

    A default group that the script began is used as it is, and stays. `why_no_nccl` says why there is no NCCL, or is
    empty. Raises InputError on every learner if the default group has other ranks than the grid.
    """

    def __init__(self, grid: Grid, comm: Intracomm | None, *, one_host: bool) -> None:
        if not distributed.is_available():
            raise InputError("this torch was built without torch.distributed; install another build of it")
        self._grid, self._comm, self._one_host = grid, comm, one_host
        self.why_no_nccl = why_no_nccl(self._from_all(_gpu()))
        self._backend = GLOO if self.why_no_nccl else BOTH
        self._made: dict[str, Any] = {}
        self._store = None if self._is_there() else self._begin()

    def group(self, axes: str) -> Any:  # noqa: ANN401 - a ProcessGroup
        """Return the group of the learners that differ from this one in `axes` alone ("": all), ranks ascending.

        All learners call this together the first time. Raises InputError on a letter that the grid has not.
        """
        wanted = "".join(self._grid.axes[i] for i in self._grid.places(axes))
        if wanted in {"", self._grid.axes}:
            return distributed.group.WORLD
        if wanted not in self._made:
            # Only the members take part: to name all groups to all ranks would take thousands of rounds in large jobs.
            self._made[wanted] = distributed.new_group(
                _members(self._grid, wanted), backend=self._backend, use_local_synchronization=True
            )
        return self._made[wanted]

    def mesh(self, device_type: str) -> DeviceMesh:
        """Return the grid as a DeviceMesh: dimensions X, Y, Z, the groups those of `group`. Needs torch 2.4."""
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415 - 0.2 s that few need

        grid, axes = self._grid, self._grid.axes
        ranks = torch.empty(grid.topology.dims, dtype=torch.int)
        for rank in range(grid.size):
            ranks[coords_of(grid.topology, grid.order, rank)] = rank
        groups = [self.group(axis) for axis in axes]
        mesh: DeviceMesh = DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=tuple(axes))
        return mesh

    def along(self, axes: str) -> list[DimensionGroup]:
        """Return the dimensions that have more than one learner, with their groups."""
        grid = self._grid
        places = [i for i in grid.places(axes or grid.axes) if grid.topology.dims[i] > 1]
        return [DimensionGroup(self.group(grid.axes[i]), grid.topology.dims[i], grid.coords[i]) for i in places]

    def free(self) -> None:
        """End what was begun here; all learners together."""
        if not distributed.is_initialized():
            return
        if self._store is None:
            for group in self._made.values():
                distributed.destroy_process_group(group)
            return
        distributed.destroy_process_group()
        if self._comm is not None:
            self._comm.Barrier()  # rank 0 keeps the store, which the others may still ask

    def _is_there(self) -> bool:
        """Say whether the script began a default group that is the grid's."""
        is_there = distributed.is_initialized()
        mine = (distributed.get_rank(), distributed.get_world_size()) if is_there else None
        told = self._from_all(mine)
        if told == [None] * len(told):
            return False
        for rank, one in enumerate(told):
            if one != (rank, self._grid.size):
                is_what = f"rank {one[0]} of {one[1]}" if one else "not begun"
                raise InputError(
                    f"rank {self._grid.rank} of {self._grid.size}: torch.distributed is {is_what} on rank {rank} of "
                    f"{self._grid.size}; {REMEDY}"
                )
        return True

    def _begin(self) -> Any:  # noqa: ANN401 - a Store
        """Begin the default group. Rank 0's port is its store's own, so nobody can take it in between."""
        grid, comm, address, port, error = self._grid, self._comm, "", 0, ""
        store: Any = None
        if comm is None:
            store = distributed.HashStore()  # type: ignore[attr-defined]
        elif grid.rank == 0:
            try:
                address = meeting_address(os.environ, one_host=self._one_host)
                store, port = _listen(address, os.environ.get("MASTER_PORT", "0"))
            except InputError as found:
                error = str(found)
        if comm is not None:
            address, port, error = comm.bcast((address, port, error))  # rank 0 is 0 in host order too
        if error:
            raise InputError(f"rank {grid.rank} of {grid.size}: torch.distributed: {error}")
        store = store or distributed.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
        distributed.init_process_group(self._backend, store=store, rank=grid.rank, world_size=grid.size)
        return store

    def _from_all(self, mine: Any) -> list[Any]:  # noqa: ANN401
        """Return what each rank tells, in the order of ranks."""
        if self._comm is None:
            return [mine]
        return [told for _, told in sorted(self._comm.allgather((self._grid.rank, mine)), key=lambda pair: pair[0])]


def _listen(address: str, port: str) -> tuple[Any, int]:
    try:
        store: Any = distributed.TCPStore(address, int(port), is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    except (RuntimeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise InputError(f"no store at {address}:{port}: {said}; unset MASTER_PORT, and a free one is found") from error
    return store, store.port


def _members(grid: Grid, axes: str) -> list[int]:
    """Return the ranks that stand where this one does but for `axes`, ascending."""
    spots: list[tuple[int, ...]] = [()]
    for axis, size, at in zip(grid.axes, grid.topology.dims, grid.coords, strict=True):
        spots = [(*spot, other) for spot in spots for other in (range(size) if axis in axes else (at,))]
    return sorted(rank_at(grid.topology, grid.order, spot) for spot in spots)


def _gpu() -> GpuSupport:
    if not torch.cuda.is_available():
        return GpuSupport(distributed.is_nccl_available(), "")
    device = torch.cuda.current_device()
    known = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    # Before torch 2.4 it was not told: then the number, which each host counts for itself.
    return GpuSupport(distributed.is_nccl_available(), str(known or f"{os.uname().nodename} {device}"))
