"""Messages that leave a block of learners, per step of an algorithm in one dimension of the grid."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddlrun.topology import Topology

# Where dimensions follow the wiring, all links of a level carry the same; elsewhere this many of them are examined.
MOST_LINKS = 64


@dataclass(frozen=True, slots=True)
class GridAxis:
    """A dimension of the grid: its number of learners, and the distance of neighbours in the order of the wiring."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class MessageStep:
    """Equal steps of one algorithm in one dimension.

    `share`: the size of a message as a share of the dimension's data; `leaving`: the most messages that leave a block
    of learners at once.
    """

    steps: int
    share: float
    leaving: int


def axes_of(topology: Topology) -> list[GridAxis]:
    """Return the dimensions over hosts that are listed rack by rack."""
    strides = [1]
    for size in topology.dims:
        strides.append(strides[-1] * size)
    return [GridAxis(size, stride) for size, stride in zip(topology.dims, strides, strict=False)]


def interleaved(topology: Topology) -> list[GridAxis]:
    """Return the dimensions over hosts that are listed across racks: the first of each rack, then the second."""
    x, *others = topology.dims
    axes, stride = [GridAxis(x, 1)], topology.size
    for size in others:
        stride //= size
        axes.append(GridAxis(size, stride))
    return axes


def blocks_of(wiring: Topology) -> tuple[int, ...]:
    """Return the number of learners below a link of each of LEVELS, for the wiring of a cluster."""
    blocks = [1]
    for size in (*wiring.dims, 1)[:3]:
        blocks.append(blocks[-1] * size)
    return tuple(blocks)


def ring(axis: GridAxis, block: int, total: int) -> Iterator[MessageStep]:
    """Yield the steps of a ring: each learner sends to the next, p - 1 times 1/p (Patarasuk and Yuan, 2009).

    Below a link is a block of the total of learners.
    """
    size, stride = axis.size, axis.stride
    period = size * stride

    def last_in_axis(below: int) -> int:
        """Return the number of learners from 0 to `below` - 1 that are the last of their ring and send to its first."""
        return below // period * stride + max(0, below % period - (period - stride))

    def leaving(start: int) -> int:
        end = min(start + block, total)
        onwards = max(start, end - stride)
        back = min(end, start + period - stride)
        return (end - onwards) - (last_in_axis(end) - last_in_axis(onwards)) + last_in_axis(back) - last_in_axis(start)

    yield MessageStep(size - 1, 1 / size, max(map(leaving, range(0, min(total, block * MOST_LINKS), block))))


def direct(axis: GridAxis, block: int, total: int) -> Iterator[MessageStep]:
    """Yield the one step in which each learner sends to all others of its group; arguments as for `ring`."""
    size, stride = axis.size, axis.stride
    period = size * stride

    def cut(length: int) -> int:
        """Return the number of messages between the first `length` learners of a period and the others of it."""
        full_rows, rest = divmod(length, stride)
        return rest * (full_rows + 1) * (size - full_rows - 1) + (stride - rest) * full_rows * (size - full_rows)

    def leaving(start: int) -> int:
        end = min(start + block, total)
        whole = min((start // period + 1) * period, end)
        return cut(whole - start) + (cut(end % period) if end > whole else 0)

    yield MessageStep(1, 1 / size, max(map(leaving, range(0, min(total, block * MOST_LINKS), block))))


def halving(axis: GridAxis, block: int, total: int) -> Iterator[MessageStep]:
    """Yield the ceil(lg p) exchanges between the halves of a group (Rabenseifner); arguments as for `ring`.

    Exact for p = 2^k where a block holds a whole number of halves or lies inside one; otherwise an upper bound.
    """
    part, share = axis.size, 1.0
    while part > 1:
        half = (part + 1) // 2
        share *= half / part
        inside = block % (2 * half * axis.stride) == 0 or block >= total
        yield MessageStep(1, share, 0 if inside else min(block, 2 * half * axis.stride))
        part = half


MESSAGES: dict[str, Callable[[GridAxis, int, int], Iterator[MessageStep]]] = {
    "ring": ring, "direct": direct, "halving": halving,
}  # fmt: skip
