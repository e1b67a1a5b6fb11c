"""Whether all learners mean the same: asked before messages of other lengths could meet."""

from __future__ import annotations

import zlib
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun import ddl
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def here() -> str:
    """Say which learner this is, as errors begin."""
    return f"rank {ddl.rank()} of {ddl.size()}"


def agree(what: str, lines: Sequence[str], remedy: str) -> None:
    """See that all learners have the same lines; all call it together.

    Raises InputError on every learner if not, with the first line that differs here and on the first rank that differs.
    """
    text = "\n".join(lines).encode()
    sums = ddl.allgather(np.array([zlib.crc32(text), len(text)], np.int64))
    if (sums == sums[0]).all():
        return
    padded = np.zeros(int(sums[:, 1].max()), np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    texts = [row[:size].tobytes() for row, size in zip(ddl.allgather(padded), sums[:, 1], strict=True)]
    # A learner that is as rank 0 is names the first that is not; any other names rank 0.
    other = next(rank for rank, found in enumerate(texts) if found != text)
    mine, theirs = next(
        pair for pair in zip_longest(lines, texts[other].decode().split("\n"), fillvalue="none") if pair[0] != pair[1]
    )
    raise InputError(f"{here()}: {what}: {mine or 'none'} here, but {theirs or 'none'} on rank {other}; {remedy}")


def average_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the average of each metric over all learners, in float64; numbers, or arrays of one element.

    Raises InputError if the learners' names differ, or a value is no number.
    """
    names = sorted(metrics)
    agree("average_metrics", names, "all learners average the same metrics")
    try:
        values = np.array([_number(metrics[name]) for name in names])
    except (TypeError, ValueError) as error:
        raise InputError(f"{here()}: average_metrics: {error}; pass numbers") from error
    averages = dict(zip(names, ddl.all_reduce(values, "avg").tolist(), strict=True))
    return {name: averages[name] for name in metrics}


def _number(value: Any) -> float:  # noqa: ANN401 - a number, or an array of one
    return float(value.detach() if hasattr(value, "detach") else value)
