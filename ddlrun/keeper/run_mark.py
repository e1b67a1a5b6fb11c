"""The mark of a run's processes: a resource limit, which stays in another environment and another session.

Children inherit the limit of the CPU time of real-time processes (RLIMIT_RTTIME), and keep it through exec(3). The mark
is a checksum of the run's name plus 73,000 years, so that no program reaches the limit.
"""

from __future__ import annotations

from binascii import crc32

FIRST = 1 << 61
"""All marks have its first eight digits."""
LIMIT = "Max realtime timeout"
"""The name of the limit in /proc/PID/limits."""


def mark_of(run: str) -> int:
    """Return the mark of a run, given its name."""
    return FIRST + crc32(run.encode(errors="surrogateescape"))


def mark_process(run: str) -> None:
    """Mark this process and its future children, unless they have such a limit already."""
    import resource  # noqa: PLC0415 - for kept ranks alone

    try:
        limits = resource.getrlimit(resource.RLIMIT_RTTIME)
        if limits == (resource.RLIM_INFINITY, resource.RLIM_INFINITY):
            resource.setrlimit(resource.RLIMIT_RTTIME, (mark_of(run), resource.RLIM_INFINITY))
    except (OSError, ValueError):  # a system without this limit
        return
