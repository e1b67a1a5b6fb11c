"""A rank of tests.bench.tcp, of this tree or of another one: runs a batch per line of standard input.

    tcp_ranks.py HOST

HOST is a name of a host of its own for this rank, which then copies nothing from the memory of others, or "" for none.
A line is `ALGORITHM BYTES TIMES`, with the algorithm "allreduce" or "message" (to and from the rank beside this one);
the reply is the seconds and the CPU seconds of this rank.
"""

import ctypes
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

CLONE_NEWUTS, CLONE_NEWUSER = 0x04000000, 0x10000000


class Owner:
    """An owner of messages."""

    open = 0


def take_name(host: str) -> None:
    """Be on a host of this name, from the view of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUTS | (CLONE_NEWUSER if os.geteuid() else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(host)


def main(host: str) -> None:
    """Run the batches that are asked for."""
    if host:
        take_name(host)
    from ddlrun import ddl  # noqa: PLC0415 - of the tree in PYTHONPATH; the name of the host is read later
    from ddlrun.ddl.transports.tcp.communicator import TcpTransport  # noqa: PLC0415
    from ddlrun.ddl.transports.tcp.world import tcp_world  # noqa: PLC0415

    ddl.init("-mode r")
    transport, peer = TcpTransport[Owner](tcp_world(os.environ).Dup()), ddl.rank() ^ 1

    def allreduce(data: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> None:
        ddl.all_reduce(data, "sum", in_place=True)

    def message(data: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> None:
        for is_sender in (True, False) if ddl.rank() < peer else (False, True):
            owner, view = Owner(), data.data.cast("B")
            if is_sender:
                transport.post_send(view, peer, 1, owner)
            else:
                transport.post_receive(view, peer, 1, owner)
            while owner.open:
                transport.wait_some(60)

    algorithms: dict[str, Callable[..., None]] = {"allreduce": allreduce, "message": message}
    for line in sys.stdin:
        name, size, times = line.split()
        data = np.zeros(int(size) // 4, np.float32)
        algorithms[name](data)
        begin, used = time.perf_counter(), time.process_time()
        for _ in range(int(times)):
            algorithms[name](data)
        print(time.perf_counter() - begin, time.process_time() - used, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
