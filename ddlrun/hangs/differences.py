"""Ranks that differ from the others, where all wait: in the order of their operations, or in the data of one."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from ddlrun.hangs.frames import normalize
from ddlrun.hangs.position import Position
from ddlrun.hangs.snapshot import (
    MOST_MESSAGES,
    UNNAMED,
    ProcessGroup,
    RankSnapshot,
    RecentOperation,
    RecordedOperation,
    name_ranks,
)
from ddlrun.hangs.waits import PARTNERS, LocatedJob, find_unmatched

# The operations whose tensors have the same types and sizes in all ranks.
EQUAL_DATA = frozenset(
    "allreduce reduce broadcast allgatherbase reducescatterbase allgathersingle reducescattersingle".split()
)
# Operations that other ranks leave before their root has begun them.
TO_A_ROOT = frozenset("gather gatherv gatherobject reduce".split())
# A job whose ranks have more histories is not compared.
MOST_HISTORIES = 64


def may_differ_rightly(positions: Sequence[Position]) -> bool:
    """Return True if the stacks alone do not show which ranks are at fault.

    The fewer ranks may wait in a smaller communicator for one of the others. Ranks leave a gather before its root.

    Args:
        positions: The positions of ranks that wait for others, that of most ranks first.
    """
    most, *others = positions
    pairs = permutations(positions, 2)
    if any(normalize(position.call) in TO_A_ROOT and not _is_later(position, other) for position, other in pairs):
        return True
    return any(_find_object(other) != _find_object(most) and not _is_later(other, most) for other in others)


def _find_object(position: Position) -> str:
    """Return the name of the object whose method a rank has called, such as `comm`; empty if it is not known."""
    source = "" if position.frame is None else position.frame.source
    match = re.search(rf"(\w+)\.{re.escape(position.call)}\s*\(", source)
    return match[1] if match else ""


def _is_later(position: Position, other: Position) -> bool:
    """Return True for a later line of the same function."""
    mine, theirs = position.frame, other.frame
    if mine is None or theirs is None or (mine.file, mine.function) != (theirs.file, theirs.function):
        return False
    return mine.line > theirs.line


def find_out_of_order(ranks: Sequence[int], snapshots: Mapping[int, RankSnapshot]) -> tuple[int, ...] | None:
    """Return the ranks whose operations come in another order than those of more other ranks; None if none do.

    Of two ranks that run the same program, one has begun what the other one has, and more. The ranks returned are in
    all pairs of which that is not true.
    """
    kinds = _name_kinds({rank: snapshots[rank] for rank in ranks})
    alike: dict[_History, list[int]] = {}
    for rank in ranks:
        counts = frozenset((kinds[rank][name], use.number) for name, use in snapshots[rank].started.items())
        recent = tuple(use._replace(group=kinds[rank][use.group]) for use in snapshots[rank].recent if use.peer is None)
        alike.setdefault(_History(counts, recent), []).append(rank)
    if len(alike) > MOST_HISTORIES:
        return ()
    conflicts = [pair for pair in combinations(alike, 2) if _is_in_conflict(*pair)]
    if not conflicts:
        return None
    for history, members in alike.items():
        against = [other for pair in conflicts if history in pair for other in pair if other != history]
        if len(against) == len(conflicts) and sum(len(alike[other]) for other in against) > len(members):
            return tuple(members)
    return ()


def find_other_operations(ranks: Sequence[int], located: LocatedJob) -> tuple[list[tuple[int, ...]], str]:
    """Compare the operations that members of a group have begun under the number of the one in which a rank waits.

    Return the members of each operation, those of the most frequent one first, and a note; empty if all are the same.

    Args:
        ranks: The ranks at the root of all waits.
        located: The job.
    """
    snapshots = located.job.snapshots
    for operation in filter(None, (located.positions[rank].collective for rank in ranks)):
        begun: dict[str, list[int]] = {}
        for member in operation.group.members if operation.peer is None else ():
            for use in snapshots[member].recent if member in snapshots else ():
                if (*use.series, use.number) == (*operation.series, operation.number):
                    begun.setdefault(use.name, []).append(member)
        if len(begun) > 1:
            alike = {name: tuple(begun[name]) for name in sorted(begun, key=lambda name: -len(begun[name]))}
            parts = ", ".join(f"{name} in {name_ranks(members)}" for name, members in alike.items())
            return [*alike.values()], operation._replace(name=parts).text
    return [], ""


def find_missing(ranks: Sequence[int], located: LocatedJob) -> tuple[int, ...]:
    """Return the ranks of a ring for which more than half of a group waits, but those that wait for another of them.

    There are none if groups wait for different ones, or if one waits for a message: its peer may have left that out.
    """
    lacks = set()
    for rank in ranks:
        operation = located.positions[rank].collective
        members = set() if operation is None or operation.peer is not None else set(operation.group.members)
        if 0 < 2 * len(located.lacking.get(rank, ())) < len(members):
            lacks.add(frozenset(located.lacking[rank]))
    missing = next(iter(lacks)) if len(lacks) == 1 else frozenset[int]()
    first = sorted(rank for rank in missing if not missing.intersection(located.lacking.get(rank, ())))
    waits = [located.positions[rank].collective for rank in first if rank in located.positions]
    return () if any(wait is None or wait.peer is not None for wait in waits) else tuple(first)


def find_unbalanced(ring: Sequence[int], located: LocatedJob) -> tuple[int, ...]:
    """Return the rank of a ring that has gone on with one message less than all others, which are alike.

    These have sent to, and received from, the ranks at the same distances, as in an exchange. The other half of the
    message is in a batch of its peer: one that is begun last may be one too many.
    """
    snapshots, alike = located.job.snapshots, dict[tuple[tuple[str, int], ...], list[int]]()
    for rank, snapshot in snapshots.items():
        size = len(located.job.ranks)
        distances = [(use.name, ((use.peer or 0) - rank) % size) for use in snapshot.messages]
        alike.setdefault(tuple(distances), []).append(rank)
    most, *others = sorted(alike, key=lambda messages: -len(alike[messages])) or [()]
    if len(others) != 1 or len(alike[most]) == 1 or len(alike[others[0]]) > 1 or len(most) == MOST_MESSAGES:
        return ()
    if all((*most[:at], *most[at + 1 :]) != others[0] for at in range(len(most))):
        return ()
    (odd,) = alike[others[0]]
    waits = {rank: located.positions[rank].collective for rank in ring if odd in (rank, *located.lacking[rank])}
    ends = [wait for rank, wait in waits.items() if rank != odd and wait and _is_last(wait, snapshots[rank])]
    own = waits.get(odd)
    return () if own is None or own.peer is not None or ends else (odd,)


def _is_last(operation: RecordedOperation, snapshot: RankSnapshot) -> bool:
    return any((use.name, use.peer) == (operation.name, operation.peer) for use in snapshot.messages[-1:])


def find_misdirected(ring: Sequence[int], located: LocatedJob) -> dict[int, str]:
    """Return the ranks of a ring with a message to another rank than the one that waits for it, each with a note.

    The other one has not begun its half, and is in the same collective operation as the rank.
    """
    notes, waits = {}, {rank: position.collective for rank, position in located.positions.items()}
    for rank, waiting in permutations(ring, 2):
        own, wanted = waits[rank], waits[waiting]
        if own is None or own.peer is not None or wanted is None or wanted.peer != rank:
            continue
        for message in find_unmatched(rank, located.job.snapshots):
            other = waits.get(-1 if message.peer is None else message.peer)
            if message.name == PARTNERS.get(wanted.name) and other is not None and other.call == own.call:
                lacks = f"which has not started a matching {wanted.name}"
                notes[rank] = f"rank {rank} has started {message.short_text}, {lacks}"
    return notes


def find_left_out(ring: Sequence[int], located: LocatedJob) -> dict[int, str]:
    """Return the rank of a ring that has left out what another one of it waits for, with a note.

    With that operation, it would repeat what it did before, as often as all other ranks do. Numbers of operations do
    not show that: stages of a pipeline begin and end in different orders, and a rank in an evaluation may be right.
    """
    snapshots = located.job.snapshots
    turns = {rank: _count_turns(snapshot.recent) for rank, snapshot in snapshots.items()}
    notes = {}
    for rank, other in permutations(ring, 2):
        own, wanted = located.positions[rank].collective, _other_half(located.positions[other].collective, other)
        if own is None or wanted is None or rank not in located.lacking[other]:
            continue
        left_out = RecentOperation(wanted.group.name, 0, wanted.name, wanted.peer)
        expected = _count_turns(snapshots[rank].recent, left_out)
        if expected and all(turn == expected for member, turn in turns.items() if member != rank):
            notes[rank] = f"rank {rank} has skipped {wanted.short_text}, which so far came before each {own.short_text}"
    return notes if len(notes) == 1 < len(snapshots) - 1 else {}


def _other_half(operation: RecordedOperation | None, rank: int) -> RecordedOperation | None:
    """Return the operation that one of a rank lacks: the same one of another rank, or the other half of a message."""
    if operation is None or operation.peer is None:
        return operation
    return operation._replace(name=PARTNERS.get(operation.name, ""), peer=rank)


def _count_turns(uses: Sequence[RecentOperation], left_out: RecentOperation | None = None) -> int:
    """Return the number of times that operations repeat, if need be with one that was left out; 0: they do not.

    Those at the start do not count if they are collectives that come there alone, such as barriers.
    """
    calls = [use._replace(number=0) for use in uses]
    run = next((at for at, call in enumerate(calls) if call != calls[0]), 0)
    if run and (calls[0].peer is not None or calls[0] in (*calls[run:], left_out)):
        run = 0
    before = {use.series: use.number - 1 for use in reversed(uses[run:])}  # the first of each series
    total = len(calls) - run + sum(before.values()) - (run if uses and uses[0].series in before else 0)
    missing, calls = int(left_out is not None), calls[run:]
    periods = range(1, min((len(calls) + missing) // 2 + 2, len(calls)))
    if left_out is not None and any(_has_period(calls, period, None) for period in periods):
        return 0
    period = next((period for period in periods if _has_period(calls, period, left_out)), 0)
    return -(-(total + missing) // period) if period else 0


def _has_period(calls: Sequence[RecentOperation], period: int, left_out: RecentOperation | None) -> bool:
    pairs = enumerate(zip(calls[period:], calls, strict=False), period)
    at = next((at for at, (call, before) in pairs if call != before), None)
    if at is None or left_out is None:
        return at is None and left_out is None
    return left_out == calls[at - period] and _has_period([*calls[:at], left_out, *calls[at:]], period, None)


def group_by_data(ranks: Sequence[int], located: LocatedJob) -> list[tuple[str, tuple[int, ...]]]:
    """Return the types and sizes of tensors that have to be equal, and the ranks that have them, the most first."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        operation = located.positions[rank].collective
        if operation is not None and normalize(operation.name) in EQUAL_DATA:
            groups.setdefault(operation.data, []).append(rank)
    return sorted(((data, tuple(alike)) for data, alike in groups.items()), key=lambda item: (-len(item[1]), item[1]))


class _History(NamedTuple):
    """The recent operations of ranks that have begun the same ones."""

    counts: frozenset[tuple[str, int]]
    """The kinds of their groups, with the number of operations in each."""
    recent: tuple[RecentOperation, ...]


def _name_kinds(snapshots: Mapping[int, RankSnapshot]) -> dict[int, dict[str, str]]:
    """Return the name of each group of each rank -> its kind, such as mesh_tp.

    Where all ranks are in as many groups without a description, the first ones that they have created are of one kind.
    """
    unnamed = {
        rank: [name for name, use in snapshot.started.items() if use.description in UNNAMED]
        for rank, snapshot in snapshots.items()
    }
    alike = all(snapshot.knows_groups for snapshot in snapshots.values()) and len(set(map(len, unnamed.values()))) == 1
    return {
        rank: {name: ProcessGroup(name, use.description).kind for name, use in snapshot.started.items()}
        | {name: f"unnamed {index}" for index, name in enumerate(unnamed[rank]) if alike}
        for rank, snapshot in snapshots.items()
    }


def _is_in_conflict(history: _History, other: _History) -> bool:
    """Return True if none of two ranks has begun all that the other one has, in groups of kinds that both have."""
    pairs = zip(_list_comparable(history, other), _list_comparable(other, history), strict=False)
    return any(use != match for use, match in pairs)


def _list_comparable(history: _History, other: _History) -> list[RecentOperation]:
    """Return the operations in groups of kinds that both have, from the first one on that the records of both show."""
    counts, shown = dict(other.counts), {use[:2] for use in other.recent}
    recent = [use for use in history.recent if use.group in counts]
    start = (index for index, use in enumerate(recent) if use[:2] in shown or use.number > counts[use.group])
    return recent[next(start, len(recent)) :]
