"""The session of a process: its learner, and the functions that training scripts call.

Nothing here imports numpy, MPI or a framework before it is needed: a script may import `ddlrun.ddl` without them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.group.dimensions import Grid
    from ddlrun.ddl.group.handle import Handle
    from ddlrun.ddl.learner import Learner
    from ddlrun.ddl.transports.communicators import Communicator

# The learner of this process, or nothing. As with IBM's DDL, scripts call functions, so the learner is global.
_started: list[Learner] = []


class Session:
    """The result of `init`: a context manager that frees at its end what `init` created."""

    def __enter__(self) -> Session:  # noqa: PYI034 - typing.Self came with 3.11
        """Return the session; `init` has started it."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Free the communicators, except after an error: the other ranks might not take part then."""
        if _kind is None:
            free()


def init(
    options: str | None = None, *, comm: Communicator | Intracomm | None = None, tuning: str | None = None
) -> Session:
    """Join the other learners. All ranks call it together.

    The learners are the ranks of an MPI job, else of a job with RANK and WORLD_SIZE, whose messages go over TCP.
    DDLRUN_DDL_TRANSPORT overrides this. In a process that runs alone there is a single learner. A second call first
    calls `free`, which makes communicators and process groups of the first session invalid.

    Args:
        options: A DDL string such as "-mode r:4x2x3". Default: DDL_OPTIONS, else the shape from `ddlrun launch`, else
            one ring over all learners.
        comm: The communicator to use instead of MPI's world. It stays the caller's. If it has only some of the job's
            ranks, the launcher's shape is ignored.
        tuning: Sizes such as "chunk=64K,depth=8". Default: DDLRUN_DDL_TUNING.

    Returns:
        A context manager that calls `free` at its end, unless an exception leaves it.

    Raises:
        InputError: An option is wrong, the product of the dimensions differs from the number of ranks, or the ranks
            have different options, tuning, topologies, rank orders or versions of ddlrun. All ranks raise it.
        LostRankError: A rank does not arrive within 300 s (without MPI; DDLRUN_DDL_START_TIMEOUT), or an exception such
            as KeyboardInterrupt has interrupted an earlier call of this rank.
    """
    from ddlrun.ddl.bootstrap import start_learner  # noqa: PLC0415 - 200 ms: numpy, and MPI where this process is a rank

    free()
    if _started:
        _started[0].guard.check()
    _started.append(start_learner(options, comm, tuning, os.environ))
    return Session()


def free() -> None:
    """Finish the reductions in progress and free what `init` created. All ranks call it together.

    It also ends the default process group that this module started. It does nothing without a session, or once an
    exception has interrupted a call. A script need not call it before it exits.
    """
    if not _started or _started[0].guard.problem:
        return
    try:
        _started[0].free()
    finally:
        if not _started[0].guard.problem:
            _started.clear()


def current_learner() -> Learner:
    """Return the learner of this process. Raises InputError before `init`."""
    if not _started:
        raise InputError("ddlrun.ddl is not started; call ddl.init() first")
    return _started[0]


def rank() -> int:
    """Return the rank of this learner, from 0."""
    return current_learner().grid.rank


def size() -> int:
    """Return the number of learners."""
    return current_learner().grid.size


def local_rank() -> int:
    """Return the rank of this learner among those of its host, from 0."""
    return current_learner().host.local_rank


def local_size() -> int:
    """Return the number of learners on this host."""
    return current_learner().host.local_size


def num_hosts() -> int:
    """Return the number of hosts."""
    return current_learner().host.hosts


def coords() -> tuple[int, ...]:
    """Return the position (x, y, z[, a]) of this learner in the grid."""
    return current_learner().grid.coords


def grid() -> Grid:
    """Return the grid of learners: the topology, with this learner's position in it."""
    return current_learner().grid


def all_reduce(
    x: Any,  # noqa: ANN401
    op: str = "sum",
    *,
    axes: str = "",
    in_place: bool = False,
    wire: str | None = None,
) -> Any:  # noqa: ANN401
    """Reduce x over all learners, or over those that differ from this one in `axes` only.

    Args:
        x: An array or a number; shape and dtype are the same on all learners. float32, float64, float16, bfloat16 or
            integers.
        op: "sum", "avg", "max", "min" or "prod". Integers have no "avg".
        axes: Letters of dimensions such as "YZ". Default: all.
        in_place: Overwrite x with the result.
        wire: "bfloat16" or "float16" sends float32 in 16 bits between hosts, "int8" in 8 bits with error feedback,
            "bfloat16:YZ" in the dimensions Y and Z, "float32" in 32 bits. Sums stay in float32. Default: the tuning.

    Returns:
        An array like x, a number for a number. It has the same bits on all learners.

    Raises:
        InputError: x cannot be reduced. The message names the rank, and the dtype and shape of x.
        LostRankError: A rank has ended (without MPI), or an exception such as KeyboardInterrupt has interrupted an
            earlier call of this rank. The other functions that exchange data raise it, too.
    """
    return (_started[0] if _started else current_learner()).all_reduce(x, op, axes, in_place, wire)


def all_reduce_n(
    arrays: Iterable[Any], op: str = "avg", *, axes: str = "", in_place: bool = False, wire: str | None = None
) -> list[Any]:
    """Reduce several arrays as `all_reduce` does. Small arrays of one dtype are fused into buckets.

    Args:
        arrays: The arrays; their shapes and dtypes are the same on all learners.
        op: As in `all_reduce`, but default "avg".
        axes: As in `all_reduce`.
        in_place: Overwrite the arrays with the results.
        wire: As in `all_reduce`.

    Returns:
        The results, in the order of the arrays.

    Raises:
        InputError: An array cannot be reduced.
    """
    return current_learner().all_reduce_n(list(arrays), op, axes=axes, in_place=in_place, wire=wire)


def start(arrays: Iterable[Any], op: str = "avg", *, axes: str = "", wire: str | None = None) -> Handle:
    """Begin `all_reduce_n` in place. All learners start their reductions in the same order.

    Messages move only during calls of `start`, `test` and `wait`. In mode m the reduction is complete on return.

    Args:
        arrays: The arrays, which are overwritten with the results.
        op: As in `all_reduce_n`.
        axes: As in `all_reduce`.
        wire: As in `all_reduce`.

    Returns:
        A handle. Call its `wait` before the arrays are read or written.

    Raises:
        InputError: An array cannot be reduced.
    """
    return current_learner().start(list(arrays), op, axes=axes, wire=wire)


def reduce_scatter(x: Any, op: str = "sum") -> Any:  # noqa: ANN401
    """Reduce x, which is overwritten, and return this learner's block of the result.

    Args:
        x: A contiguous array.
        op: As in `all_reduce`.

    Returns:
        The view `x.reshape(-1)[low:high]` with `(low, high) = piece(count)` for an array of `count` elements. Block
        sizes differ by at most one element, the longer blocks first. Block `(x*Y + y)*Z + z` belongs to the learner at
        (x, y, z); in ddl order this number is the rank.
    """
    return current_learner().reduce_scatter(x, op)


def allgather_pieces(x: Any) -> Any:  # noqa: ANN401
    """Fill x in place from the block of each learner, and return it: the inverse of `reduce_scatter`."""
    return current_learner().allgather_pieces(x)


def piece(count: int) -> tuple[int, int]:
    """Return (low, high), the range of this learner's block in a flat array of `count` elements."""
    return current_learner().piece(count)


def allgather(x: Any) -> Any:  # noqa: ANN401
    """Return the x of every learner in rank order: a numpy array of shape `(size, *x.shape)`.

    x has the same shape and dtype on all learners. bfloat16 is returned as its bits in uint16.
    """
    return current_learner().allgather(x)


def bcast(x: Any, root: int = 0, *, in_place: bool = False) -> Any:  # noqa: ANN401
    """Return the x of rank `root`.

    Args:
        x: An array or a number. The other ranks pass an array of the same shape and dtype.
        root: The rank whose x is returned.
        in_place: Overwrite x with the result.

    Raises:
        InputError: There is no rank `root`.
    """
    return current_learner().bcast(x, root, in_place=in_place)


def barrier() -> None:
    """Wait until all learners have called it."""
    current_learner().barrier()


def scale_lr(lr: float, *, step: float | None = None, warm_up: float = 0) -> float:
    """Return the learning rate for all learners together: lr times their number.

    The linear scaling rule of Goyal and others, "Accurate, Large Minibatch SGD", arXiv 1706.02677, section 2.1; the
    gradual warm-up of its section 2.2.

    Args:
        lr: The learning rate of a single learner.
        step: The number of the step, from 0, in batches or epochs.
        warm_up: The number of steps over which the rate grows linearly from lr to its final value.

    Raises:
        InputError: `step` or `warm_up` is negative, or `warm_up` is set without `step`.
    """
    if warm_up < 0 or (step or 0) < 0 or (warm_up and step is None):
        raise InputError(
            f"scale_lr: step {step}, warm_up {warm_up}; both count steps from 0, and a warm-up needs its step"
        )
    progress = 1 if step is None or step >= warm_up else step / warm_up
    return lr * (1 + (size() - 1) * progress)


def bucket_bytes() -> int:
    """Return the size of a bucket in bytes: small arrays are fused up to that size."""
    return current_learner().tuning.bucket
