"""The world of a job over TCP: all its ranks, which are found by the variables that launchers of PyTorch set."""

from __future__ import annotations

import atexit
import ipaddress
import secrets
import socket
import sys
from typing import TYPE_CHECKING, Any

from ddlrun.ddl.transports.tcp.address_exchange import AddressExchange, Membership, connect_to_rank_0, exchange
from ddlrun.ddl.transports.tcp.communicator import TcpCommunicator
from ddlrun.ddl.transports.tcp.connections import RankAddress
from ddlrun.ddl.transports.tcp.endpoint import Endpoint
from ddlrun.ddl.transports.tcp.own_host import find_rendezvous_address, listen, name_host
from ddlrun.ddl.transports.tcp.protocol import make_secret
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Seconds that ranks wait for each other at the start.
START_TIMEOUT = "300"
WORLD_GROUP = 1

# The world of this process, or nothing. It lasts until the process ends, as MPI's does.
_worlds: list[TcpCommunicator] = []


def tcp_world(environ: Mapping[str, str]) -> TcpCommunicator:
    """Return the communicator of all ranks of the job. All ranks call it together the first time.

    Raises:
        InputError: A variable of the launch is missing or wrong.
        LostRankError: A rank does not arrive in time.
    """
    if not _worlds:
        endpoint = _join(read_job(environ), environ)
        atexit.register(endpoint.close)
        _worlds.append(TcpCommunicator(endpoint, range(endpoint.size), WORLD_GROUP))
    return _worlds[0]


def read_job(environ: Mapping[str, str]) -> Membership:
    """Return the rank and the job of this process from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Raises InputError.
    """
    missing = [name for name in VARIABLES if not environ.get(name)]
    if missing:
        raise InputError(
            f"a job without MPI needs {', '.join(VARIABLES)}, but {', '.join(missing)} is not set; torchrun and "
            "ddlrun launch set them"
        )
    rank, size, port = (_read_number(environ, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank >= size:
        raise InputError(f"RANK {rank}: WORLD_SIZE is {size}, so there are ranks 0 to {size - 1}")
    return Membership(
        rank=rank,
        size=size,
        address=environ["MASTER_ADDR"],
        port=port,
        secret=environ.get("DDLRUN_DDL_SECRET", ""),
        seconds=float(_read_number(environ, "DDLRUN_DDL_START_TIMEOUT", START_TIMEOUT)),
    )


def _join(job: Membership, environ: Mapping[str, str]) -> Endpoint:
    """Exchange addresses with the other ranks: by a store of torch.distributed, if one has MASTER_PORT already."""
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or "torch.distributed" in sys.modules:
        from ddlrun.ddl.transports.tcp.store_exchange import find_store, join_by_store  # noqa: PLC0415 - 2 s: torch

        store = find_store(environ)
        if store is not None:
            return join_by_store(job, store)
    return _lead(job) if job.rank == 0 else _follow(job)


def _lead(job: Membership) -> Endpoint:
    """Collect the addresses of all ranks, and draw the secret of their connections."""
    address = _own_address(job)
    try:
        meeting = listen(address, job.port)
    except OSError as error:
        raise InputError(
            f"{job}: MASTER_ADDR {job.address}, MASTER_PORT {job.port}: rank 0 cannot listen there: {error.strerror}"
        ) from error
    listener, secret = listen(address), job.secret or secrets.token_hex()
    meet = AddressExchange(job, meeting)
    records = meet.collect()
    mine = [*listener.getsockname()[:2], name_host()]
    addresses = [mine, *(records[rank]["address"] for rank in range(1, job.size))]
    meet.reply({"addresses": addresses, "secret": "" if job.secret else secret})
    return _make_endpoint(job, listener, secret, addresses)


def _follow(job: Membership) -> Endpoint:
    """Send rank 0 the address at which this rank listens: in the network in which it reaches rank 0."""
    address, connection = connect_to_rank_0(job)
    listener = listen(address)
    reply = exchange(job, connection, {"size": job.size, "address": [*listener.getsockname()[:2], name_host()]})
    return _make_endpoint(job, listener, job.secret or reply["secret"], reply["addresses"])


def _make_endpoint(job: Membership, listener: socket.socket, secret: str, addresses: list[Any]) -> Endpoint:
    table = [RankAddress(*fields) for fields in addresses]
    return Endpoint(job, listener, make_secret(secret), table.__getitem__)


def _own_address(job: Membership) -> str:
    """Return the address at which rank 0 listens.

    A host may know its own name by a loopback address alone, by which no other host reaches it.
    """
    try:
        address = str(socket.getaddrinfo(job.address, job.port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise InputError(f"{job}: MASTER_ADDR {job.address!r}: {error.strerror}") from error
    is_own_name = job.address in {socket.gethostname(), socket.getfqdn()}
    if is_own_name and ipaddress.ip_address(address).is_loopback:
        return find_rendezvous_address({}, one_host=True)
    return address


def _read_number(environ: Mapping[str, str], name: str, default: str = "") -> int:
    text = environ.get(name, default)
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name} {text!r}: it is not a number")
    return int(text)
