"""Fusion of small arrays into buckets, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlrun.ddl.group.flat import FlatArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.allreduce_algorithms import Tuning


def make_buckets(arrays: Sequence[FlatArray], tuning: Tuning) -> list[list[FlatArray]]:
    """Divide arrays into buckets of one dtype and at most `tuning.bucket` bytes.

    An array of `tuning.chunk` bytes or more is a bucket of its own.
    """
    buckets, open_buckets, sizes = list[list[FlatArray]](), dict[str, list[FlatArray]](), dict[str, int]()
    for array in arrays:
        size = array.elements.nbytes
        if size >= min(tuning.chunk, tuning.bucket):
            buckets.append([array])
            continue
        if sizes.get(array.dtype, 0) + size > tuning.bucket:
            buckets.append(open_buckets.pop(array.dtype))
            sizes[array.dtype] = 0
        open_buckets.setdefault(array.dtype, []).append(array)
        sizes[array.dtype] = sizes.get(array.dtype, 0) + size
    return buckets + list(open_buckets.values())


def unpack_bucket(bucket: Sequence[FlatArray], elements: Any) -> None:  # noqa: ANN401
    """Write the results of a bucket to its arrays; `elements` is their concatenation, or the single array itself."""
    at = 0
    for array in bucket if len(bucket) > 1 else ():
        array.elements[:] = elements[at : at + len(array.elements)]
        at += len(array.elements)
    for array in bucket:
        array.write_back()
