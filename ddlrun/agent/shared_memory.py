"""The file in which MPICH keeps the memory that the ranks of a host share."""

from __future__ import annotations

PATH = "/dev/shm/mpich_shm_{:x}_{}"  # noqa: S108 - MPICH's own choice
FNV_START, FNV_FACTOR, FNV_MASK = 2166136261, 16777619, 0xFFFFFFFF


def mpich_file(name: str, node: int) -> str:
    """Return the path of MPICH's file, which contains a hash (FNV-1a) of the job's name.

    >>> mpich_file("ddlrun-0000c22ddf444fdc9b7086555a756f3d", 0)
    '/dev/shm/mpich_shm_9ccb4f3c_0'

    Args:
        name: The name of the job's key-value space.
        node: The number of the host in `process_mapping`.
    """
    number = FNV_START
    for byte in name.encode():
        number = (number ^ byte) * FNV_FACTOR & FNV_MASK
    return PATH.format(number, node)
