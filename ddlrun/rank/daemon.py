"""mpirun's daemon on a host, which may outlive its job."""

from __future__ import annotations

import os
import select
import signal
import time

from ddlrun.rank.process_stat import read_stat
from ddlrun.rank.processes import LAUNCHERS, read_lines

# The names of mpirun where ddlrun runs, which ends it itself.
DAEMONS = frozenset(("orted", "prted"))
INTERVAL = 2.0
# A daemon without a connection has this long to end by itself.
PATIENCE = 10.0
ESTABLISHED = "01"


def end_daemon(pid: int) -> None:
    """End the parent of this process if it is mpirun's daemon, which may miss a cut network for minutes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        stat = read_stat(pid)
        if os.getppid() != pid or stat is None or stat.name not in LAUNCHERS:
            return
        os.kill(pid, number)
        time.sleep(1)


def watch_daemon(pid: int) -> None:
    """Start a process that kills mpirun's daemon, the parent of this one, if it hangs at the end of the job.

    PMIx_server_finalize of PMIx 5 may wait for a thread that waits for a mutex, which no other thread holds. The daemon
    has then lost its connections, to mpirun and to the ranks, and would wait indefinitely.
    """
    stat = read_stat(pid)
    if os.getppid() != pid or stat is None or stat.name not in DAEMONS or os.fork():
        return
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for name in os.listdir("/proc/self/fd"):
            _close(int(name))
        _watch(pid, os.pidfd_open(pid))
    finally:
        os._exit(0)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:  # the folder that was listed
        return


def _watch(pid: int, pidfd: int) -> None:
    """Wait for the end of a process, and kill it once it has been without a connection for too long."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    connected_at = time.monotonic()
    while not poll.poll(INTERVAL * 1000):
        if _is_connected(pid):
            connected_at = time.monotonic()
        elif time.monotonic() > connected_at + PATIENCE:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return


def _is_connected(pid: int) -> bool:
    """Return True if a process has an established TCP connection."""
    sockets = {_target(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    tables = (line.split() for table in ("tcp", "tcp6") for line in read_lines(f"/proc/{pid}/net/{table}"))
    return any(row[3] == ESTABLISHED and f"socket:[{row[9]}]" in sockets for row in tables)


def _target(link: str) -> str:
    """Return the target of a symbolic link, or nothing if it is gone."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""
