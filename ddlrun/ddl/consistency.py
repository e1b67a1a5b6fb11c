"""Agreement between learners: checks before messages of different lengths could meet."""

from __future__ import annotations

import zlib
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl import session
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def describe_rank() -> str:
    """Return "rank R of N" for this learner: the beginning of an error message."""
    return str(session.grid())


def check_agreement(caller: str, lines: Sequence[str], remedy: str) -> None:
    """Check that all learners have the same lines. All call it together.

    Raises InputError on every learner if they differ, with the first line that differs here and on another rank.

    Args:
        caller: The function to name in the error.
        lines: A description of what must agree.
        remedy: The end of the error message.
    """
    text = "\n".join(lines).encode()
    checksums = session.allgather(np.array([zlib.crc32(text), len(text)], np.int64))
    if (checksums == checksums[0]).all():
        return
    padded = np.zeros(int(checksums[:, 1].max()), np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    rows = zip(session.allgather(padded), checksums[:, 1], strict=True)
    texts = [row[:size].tobytes() for row, size in rows]
    # A learner that agrees with rank 0 names the first rank that does not. Any other learner names rank 0.
    other = next(rank for rank, other_text in enumerate(texts) if other_text != text)
    pairs = zip_longest(lines, texts[other].decode().split("\n"), fillvalue="none")
    mine, theirs = next(pair for pair in pairs if pair[0] != pair[1])
    raise InputError(
        f"{describe_rank()}: {caller}: {mine or 'none'} here, but {theirs or 'none'} on rank {other}; {remedy}"
    )


def average_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the average of each metric over all learners, in float64. All learners call it together.

    Args:
        metrics: Name -> a number, or an array of one element.

    Raises:
        InputError: The learners' names differ, or a value is not a number.
    """
    names = sorted(metrics)
    check_agreement("average_metrics", names, "all learners average the same metrics")
    try:
        values = np.array([_to_float(metrics[name]) for name in names])
    except (TypeError, ValueError) as error:
        raise InputError(f"{describe_rank()}: average_metrics: {error}; pass numbers") from error
    averages = dict(zip(names, session.all_reduce(values, "avg").tolist(), strict=True))
    return {name: averages[name] for name in metrics}


def _to_float(value: Any) -> float:  # noqa: ANN401 - a number, or an array of one element
    return float(value.detach() if hasattr(value, "detach") else value)
