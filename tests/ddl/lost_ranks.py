"""A rank of test_tcp.py that is lost, or sees another one lost, and prints the error."""

import ctypes
import os
import random
import resource
import signal
import sys
import time
from contextlib import suppress

import numpy as np

from ddlrun import ddl
from ddlrun.ddl.transports.tcp.world import tcp_world
from ddlrun.errors import DdlrunError

RANK = int(os.environ["RANK"])
PR_SET_DUMPABLE, NOBODY = 4, 65534


def main(case: str) -> None:
    if case == "secret" and RANK == 1:
        os.environ["DDLRUN_DDL_SECRET"] = "another"  # noqa: S105 - of this test
    ddl.init("-mode r")
    values = np.ones(10**6)
    if case.startswith("files") and RANK == 2:
        use_all_files(left=case.count("but one"), may_be_more="may be more" in case)
    if case.startswith("files") and RANK == 1:
        await_connection_to(2)  # which rank 2 could accept before it has used all files
    ddl.all_reduce(values)
    if case == "killed" and RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "unequal":
        values = np.ones(10**6 + RANK)
    if case == "interrupted":
        reduce_until_interrupted()
    if case == "forbidden":
        reduce_in_secret()
    if case == "early":
        values = np.ones(1000 * (1 + RANK))
        if RANK == 1:
            await_message_of(0)
    ddl.all_reduce(values)
    print("fine")


def reduce_until_interrupted() -> None:
    """Reduce arrays until a signal handler on rank 2 raises an exception in a reduction."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    array, seconds = np.ones(10**6), 0.0
    while True:
        array[:] = 1
        begin = time.perf_counter()
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0, seconds) if RANK == 2 else 0)  # noqa: S311
            try:
                ddl.all_reduce(array, in_place=True)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            seconds = time.perf_counter() - begin
            assert (array == 3).all()


def reduce_in_secret() -> None:
    """Reduce an array, whose halves peers copy from memory; then forbid that, and reduce another one."""
    connection = tcp_world(os.environ).endpoint.connections.get(1 - RANK)
    for value in (1.0, 2.0):
        array = np.full(2**20, value)
        ddl.all_reduce(array, "sum" if value > 1 else "avg", in_place=True)
        print(array[-1], "copied" if connection.loans.can_lend else "sent")
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
        if not os.geteuid():
            os.setuid(NOBODY)  # root may read all memory
        ddl.all_reduce(np.ones(1))  # both have forbidden it


def use_all_files(left: int, *, may_be_more: bool) -> None:
    """Open files up to the limit, which may be raised again, or may not; leave 0 or 1 file."""
    assert np.ma  # loaded here, as the first reduction needs it
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most if may_be_more else limit))
    last = 0
    with suppress(OSError):
        while True:
            last = os.dup(1)
    if left:
        os.close(last)


def await_connection_to(peer: int) -> None:
    """Return when this rank has begun to connect to a higher one, which has knocked."""
    endpoint = tcp_world(os.environ).endpoint
    while not endpoint.connections.all_to(peer):
        endpoint.poll(300)


def await_message_of(peer: int) -> None:
    """Return when a message of a rank is here, before this rank has a buffer for it."""
    endpoint = tcp_world(os.environ).endpoint
    while not endpoint.connections.get(peer).mailbox.early:  # which only a late receiver has
        endpoint.poll(300)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except DdlrunError as error:
        print(type(error).__name__, error, flush=True)
