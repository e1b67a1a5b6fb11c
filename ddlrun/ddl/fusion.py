"""Small arrays travel together: dealt into buckets before, and out of them after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlrun.ddl.arrays import FlatArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.allreduce_algorithms import Tuning


def buckets(flats: Sequence[FlatArray], tuning: Tuning) -> list[list[FlatArray]]:
    """Deal arrays into buckets of one type and at most `tuning.bucket` bytes; one of a chunk or more is alone."""
    done, filling, sizes = list[list[FlatArray]](), dict[str, list[FlatArray]](), dict[str, int]()
    for one in flats:
        size = one.elements.nbytes
        if size >= min(tuning.chunk, tuning.bucket):
            done.append([one])
            continue
        if sizes.get(one.dtype, 0) + size > tuning.bucket:
            done.append(filling.pop(one.dtype))
            sizes[one.dtype] = 0
        filling.setdefault(one.dtype, []).append(one)
        sizes[one.dtype] = sizes.get(one.dtype, 0) + size
    return done + list(filling.values())


def deal_out(bucket: Sequence[FlatArray], elements: Any) -> None:  # noqa: ANN401
    """Write a bucket's results to the arrays that it was made of."""
    at = 0
    for one in bucket if len(bucket) > 1 else ():
        one.elements[:] = elements[at : at + len(one.elements)]
        at += len(one.elements)
    for one in bucket:
        one.give_back()
