"""Hangs in MPI, by mpi4py."""

import numpy as np
from mpi4py import MPI

from tests.hangs.kinds.job import Job

WORLD = MPI.COMM_WORLD


def left_out(job: Job) -> None:
    """a rank leaves out an Allreduce"""
    job.begin()
    x = np.ones(job.size)
    if not job.is_victim:
        WORLD.Allreduce(MPI.IN_PLACE, x)  # waiting
    WORLD.Barrier()  # guilty


def other_order(job: Job) -> None:
    """a rank calls a barrier and an Allreduce of two communicators in another order"""
    first, second = WORLD.Dup(), WORLD.Dup()
    job.begin()
    x = np.ones(job.size)
    if job.is_victim:
        second.Barrier()  # guilty
        first.Allreduce(MPI.IN_PLACE, x)
    else:
        first.Allreduce(MPI.IN_PLACE, x)  # waiting
        second.Barrier()


def other_communicator(job: Job) -> None:
    """a rank uses another communicator in the same line"""
    first, second = WORLD.Dup(), WORLD.Dup()
    job.begin()
    (second if job.is_victim else first).Allreduce(MPI.IN_PLACE, np.ones(job.size))  # guilty


def one_more(job: Job) -> None:
    """a rank has more data, and so calls Allreduce once more"""
    second = WORLD.Dup()
    job.begin()
    for part in np.ones((3 if job.is_victim else 2, job.size)):
        WORLD.Allreduce(MPI.IN_PLACE, part)  # guilty
    second.Barrier()  # waiting


def ring_of_sends(job: Job) -> None:
    """all ranks Ssend to the right before they receive"""
    job.begin()
    x = np.ones(job.size)
    WORLD.Ssend(x, (job.rank + 1) % job.ranks)  # guilty
    WORLD.Recv(x, (job.rank - 1) % job.ranks)


def not_sent(job: Job) -> None:
    """a rank does not send what another one receives"""
    job.begin()
    if job.rank == (job.victim + 1) % job.ranks:
        WORLD.Recv(np.ones(job.size), job.victim)  # guilty
    WORLD.Barrier()  # guilty


def pending_request(job: Job) -> None:
    """a rank does not send what another one receives by Irecv and Waitall"""
    job.begin()
    if job.rank == (job.victim + 1) % job.ranks:
        x = np.ones((job.ranks, job.size))
        requests = [WORLD.Irecv(x[rank], rank) for rank in range(job.ranks) if rank != job.rank]
        MPI.Request.Waitall(requests)  # waiting
    elif not job.is_victim:
        WORLD.Send(np.ones(job.size), (job.victim + 1) % job.ranks)
    WORLD.Barrier()  # guilty


def window_fence(job: Job) -> None:
    """a rank leaves out a fence of a window"""
    window = MPI.Win.Create(np.ones(job.size), comm=WORLD)
    window.Fence()
    job.begin()
    if not job.is_victim:
        window.Fence()  # waiting
    WORLD.Barrier()  # guilty


def split(job: Job) -> None:
    """a rank leaves out a Split"""
    job.begin()
    if not job.is_victim:
        WORLD.Split(job.rank % 2)  # waiting
    WORLD.Barrier()  # guilty


def finalized(job: Job) -> None:
    """a rank ends before the last Allreduce"""
    job.begin()
    if job.is_victim:
        return
    WORLD.Allreduce(MPI.IN_PLACE, np.ones(job.size))  # waiting


def wrong_root(job: Job) -> None:
    """a rank gathers to another root"""
    job.begin()
    root = job.victim if job.is_victim else (job.victim + 1) % job.ranks
    x = np.ones(1 << 20)
    WORLD.Gather(x, np.ones((job.ranks, len(x))) if job.rank == root else None, root)  # guilty
    WORLD.Barrier()  # waiting


def sub_communicator(job: Job) -> None:
    """a rank leaves out a collective of its half"""
    half = WORLD.Split(job.rank // 2)
    job.begin()
    if not job.is_victim:
        half.Barrier()  # waiting
    WORLD.Barrier()  # guilty


def objects(job: Job) -> None:
    """a rank calls allgather, the others bcast from it"""
    job.begin()
    if job.is_victim:
        WORLD.allgather(job.rank)  # guilty
    else:
        WORLD.bcast(None, job.victim)  # waiting
    WORLD.Barrier()  # guilty
