"""Schedules of a group's collectives that reduce nothing: broadcast, and messages between all pairs of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlrun.ddl.schedules.schedule import Message, ScheduleStep

if TYPE_CHECKING:
    from collections.abc import Sequence


def broadcast(rank: int, size: int, root: int, count: int) -> tuple[ScheduleStep, ...]:
    """Return the steps of a broadcast of `count` elements from the rank `root`, by a binomial tree.

    >>> [step.sends for step in broadcast(0, 4, 0, 9)]
    [(Message(peer=2, low=0, high=9), Message(peer=1, low=0, high=9))]
    """
    place, step = (rank - root) % size, 1
    while step < size and not place & step:
        step *= 2
    receives = (Message((place - step + root) % size, 0, count),) if place else ()
    sends = []
    while step := step // 2:
        if place + step < size:
            sends.append(Message((place + step + root) % size, 0, count))
    arrive, pass_on = (ScheduleStep((), receives, combine=False), ScheduleStep(tuple(sends), (), combine=False))
    return (*([arrive] if receives else []), *([pass_on] if sends else []))


def pairwise(rank: int, sends: Sequence[int], receives: Sequence[int]) -> tuple[ScheduleStep, ...]:
    """Return a step in which each rank sends a block to each other one.

    The buffer has the blocks for all ranks and, after them, the blocks of all ranks. `sends` and `receives` are their
    bounds in the buffer: one more than there are ranks. A rank's block for itself is left to the caller.
    """
    return (
        ScheduleStep(
            sends=_messages(rank, sends),
            receives=_messages(rank, receives),
            combine=False,
        ),
    )


def _messages(rank: int, bounds: Sequence[int]) -> tuple[Message, ...]:
    blocks = enumerate(zip(bounds, bounds[1:], strict=False))
    return tuple(Message(peer, low, high) for peer, (low, high) in blocks if peer != rank and low < high)
