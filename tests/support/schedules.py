"""Schedules of the allreduce, executed without a network."""

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from ddlrun.block_sizing import JobLinks
from ddlrun.ddl.schedules.schedule import ScheduleStep


def carry_out(programs: Sequence[Sequence[ScheduleStep]], buffers: list[np.ndarray]) -> None:
    """Run the steps of all learners; messages between two learners arrive in order.

    A step that is never complete fails the test.
    """
    wires: dict[tuple[int, int], deque[np.ndarray]] = defaultdict(deque)
    at, sent = [0] * len(programs), [False] * len(programs)
    moved = True
    while moved:
        moved = False
        for me, program in enumerate(programs):
            while at[me] < len(program):
                step = program[at[me]]
                if not sent[me]:
                    for peer, low, high in step.sends:
                        wires[me, peer].append(buffers[me][low:high].copy())
                    sent[me] = True
                if any(not wires[message.peer, me] for message in step.receives):
                    break
                for number, (peer, low, high) in enumerate(step.receives, 1):
                    received = wires[peer, me].popleft()
                    assert len(received) == high - low
                    buffers[me][low:high] = buffers[me][low:high] + received if step.combine else received
                    if number > len(step.receives) - step.closing and step.divisor > 1:
                        buffers[me][low:high] /= step.divisor
                at[me], sent[me], moved = at[me] + 1, False, True
    assert at == [len(program) for program in programs]
    assert not any(wires.values())


def least_seconds(links: JobLinks) -> float:
    """Return a lower bound of the seconds per byte of any allreduce.

    Each host and each rack sends its part and receives the result. All parts together are sent 2 (H - 1) times: every
    host but the last one sends a partial sum, and every host but the first one receives the result.
    """
    nics, uplinks = links.nics, links.uplinks
    bounds = [0.0]
    if len(nics) > 1:
        bounds += [1 / min(nics), 2 * (len(nics) - 1) / sum(nics)]
    if len(uplinks) > 1:
        bounds += [1 / min(uplinks), 2 * (len(uplinks) - 1) / sum(uplinks)]
    return max(bounds)
