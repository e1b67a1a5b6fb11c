"""The announcement of a rank's CPUs to the launches of other users.

A keeper holds a Unix socket to which nobody can connect, and whose abstract name has the user and the CPUs.
/proc/net/unix shows these names to everybody on the host (machine/announced_cpus.py), and they go with the process.
"""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os

from ddlrun.ranges import render_ranges


def announce_cpus() -> None:
    """Announce the CPUs of this process until it ends, unless it may run on all of them."""
    cpus = os.sched_getaffinity(0)
    if len(cpus) >= (os.cpu_count() or 1):
        return
    announced = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)  # it refuses connections
    try:
        announced.bind(f"\0ddlrun-cpus/{os.getuid()}/{os.getpid()}/{render_ranges(cpus)}")
        announced.detach()  # the kernel closes it
    except OSError:  # the name is too long
        announced.close()
