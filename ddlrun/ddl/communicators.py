"""Communicators of MPI and over TCP: the operations for which they differ."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from ddlrun.ddl.tcp.communicator import TcpCommunicator, TcpTransport

if TYPE_CHECKING:
    from types import ModuleType

    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray

    from ddlrun.ddl.operation import Chunk
    from ddlrun.ddl.transport import Transport
    from ddlrun.errors import LostRankError

    Communicator = Intracomm | TcpCommunicator


def is_mpi(comm: Communicator) -> bool:
    """Return True for a communicator of MPI, which has collectives of its own."""
    return not isinstance(comm, TcpCommunicator)


def make_transport(comm: Communicator) -> Transport[Chunk]:
    """Return a transport over a duplicate of a communicator. All ranks call it together."""
    if isinstance(comm, TcpCommunicator):
        return TcpTransport(comm.Dup())
    from ddlrun.ddl.mpi_communicator import MpiTransport  # noqa: PLC0415 - 1 s: MPI, loaded already, as there is a communicator

    return MpiTransport(comm.Dup())


def split_hosts(comm: Communicator) -> Communicator:
    """Return the communicator of the ranks on this host, in rank order. All ranks call it together."""
    if isinstance(comm, TcpCommunicator):
        return comm.split_hosts()
    return cast("Intracomm", comm.Split_type(_mpi().COMM_TYPE_SHARED, key=comm.rank))


def take_maxima(comm: Communicator, values: NDArray[Any]) -> None:
    """Replace each number by the largest one of all ranks. All ranks call it together."""
    if isinstance(comm, TcpCommunicator):
        values[:] = [max(column) for column in zip(*comm.allgather(values.tolist()), strict=True)]
        return
    comm.Allreduce(_mpi().IN_PLACE, values, _mpi().MAX)


def name_library(comm: Communicator) -> str:
    """Return the name of the library that carries the messages."""
    if isinstance(comm, TcpCommunicator):
        return "TCP"
    return _mpi().Get_library_version().split(",")[0]


def abandon(comm: Communicator, error: LostRankError) -> None:
    """Close the connections of this rank, so that the others report it as lost; its calls then raise this error.

    Over MPI, do nothing: the others wait until this rank ends.
    """
    if isinstance(comm, TcpCommunicator):
        comm.endpoint.abandon(error)


def has_ended(comm: Communicator) -> bool:
    """Return True if no message can be sent any more, because the process ends."""
    if isinstance(comm, TcpCommunicator):
        return comm.endpoint.closed
    return bool(_mpi().Is_finalized())


def load_mpi_collectives() -> ModuleType:
    """Return the module with MPI's own collectives."""
    from ddlrun.ddl import mpi_collectives  # noqa: PLC0415 - 1 s: MPI, which need not be installed

    return mpi_collectives


def _mpi() -> Any:  # noqa: ANN401 - a module
    """Return mpi4py's module, which is loaded, as there is a communicator of MPI."""
    return sys.modules["mpi4py.MPI"]
