"""Ranks that differ from the others, where all wait: in the order of their operations, or in the data of one."""

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from ddlrun.hangs.frames import normalize
from ddlrun.hangs.snapshot import MOST_MESSAGES, UNNAMED, ProcessGroup, RankSnapshot, RecentOperation, RecordedOperation
from ddlrun.hangs.waits import PARTNERS, LocatedJob, find_unmatched

# The operations whose tensors have the same types and sizes in all ranks.
EQUAL_DATA = frozenset(
    "allreduce reduce broadcast allgatherbase reducescatterbase allgathersingle reducescattersingle".split()
)
# A job whose ranks have more histories is not compared.
MOST_HISTORIES = 64


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


def find_missing(ranks: Sequence[int], located: LocatedJob) -> tuple[int, ...]:
    """Return the ranks of a ring for which more than half of a group waits, but those that wait for another of them.

    There are none if groups wait for different ones.
    """
    lacks = set()
    for rank in ranks:
        operation = located.positions[rank].collective
        members = set() if operation is None or operation.peer is not None else set(operation.group.members)
        if 0 < 2 * len(located.lacking.get(rank, ())) < len(members):
            lacks.add(frozenset(located.lacking[rank]))
    missing = next(iter(lacks)) if len(lacks) == 1 else frozenset[int]()
    return tuple(sorted(rank for rank in missing if not missing.intersection(located.lacking.get(rank, ()))))


def find_unbalanced(ring: Sequence[int], located: LocatedJob) -> tuple[int, ...]:
    """Return the rank of a ring whose numbers of sends and receives differ from those of all the others."""
    snapshots = located.job.snapshots
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank, snapshot in snapshots.items():
        names = [use.name for use in snapshot.messages]
        alike.setdefault(tuple(map(names.count, PARTNERS)), []).append(rank)
    most = max(alike, key=lambda counts: len(alike[counts]), default=())
    odd = [rank for rank in snapshots if rank not in alike.get(most, ())]
    is_known = any(most) and all(sum(counts) < MOST_MESSAGES for counts in alike)
    return tuple(odd) if is_known and len(odd) == 1 < len(snapshots) - 1 and odd[0] in ring else ()


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
    """Return the ranks of a ring that have left out what others of it wait for, each with a note.

    Until now, they began it as often before each operation of the kind in which they wait. All ranks of a ring may have
    reasons to differ: there are none then.
    """
    notes = {}
    for rank, other in permutations(ring, 2):
        own, wanted = located.positions[rank].collective, _other_half(located.positions[other].collective, other)
        if own is None or wanted is None or rank not in located.lacking[other]:
            continue
        if _has_left_out(own, wanted, located.job.snapshots[rank].recent):
            notes[rank] = f"rank {rank} has skipped {wanted.short_text}, which so far came before each {own.short_text}"
    return notes if len(notes) < len(ring) else {}


def _other_half(operation: RecordedOperation | None, rank: int) -> RecordedOperation | None:
    """Return the operation that one of a rank lacks: the same one of another rank, or the other half of a message."""
    if operation is None or operation.peer is None:
        return operation
    return operation._replace(name=PARTNERS.get(operation.name, ""), peer=rank)


def _has_left_out(own: RecordedOperation, wanted: RecordedOperation, recent: Sequence[RecentOperation]) -> bool:
    """Return True if the n-th own operation has fewer than n wanted ones before it, and each earlier one had a new one.

    What came before the first of the records is not known.
    """
    begun = next((use.number - 1 for use in recent if use.series == wanted.series), 0)
    is_new, has_new, lacks = False, list[bool](), False
    for use in recent:
        if use.series == wanted.series:
            begun, is_new = use.number, is_new or use.name == wanted.name
        elif (use.series, use.name) == (own.series, own.name):
            has_new.append(is_new)
            is_new, lacks = False, begun < use.number
        if (use.series, use.number) == (own.series, own.number):
            break
    return lacks and any(has_new[:-1]) and all(has_new[1:-1] or has_new[:-1])


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
