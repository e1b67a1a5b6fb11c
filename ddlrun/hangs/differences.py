"""Ranks that differ from the others, where all wait: in the order of their operations, or in the data of one."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from ddlrun.hangs.snapshot import ProcessGroup, RankSnapshot
from ddlrun.hangs.waits import LocatedJob

# The operations whose tensors have the same types and sizes in all ranks.
EQUAL_DATA = frozenset(("all_reduce", "reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base"))


def find_out_of_order(ranks: Sequence[int], snapshots: Mapping[int, RankSnapshot]) -> tuple[int, ...]:
    """Return the ranks whose operations come in another order than those of more other ranks.

    Of two ranks that run the same program, one is ahead of the other in all kinds of groups, or they are equal. The
    ranks returned are in all pairs of which that is not true.
    """
    alike: dict[frozenset[tuple[str, int]], list[int]] = {}
    for rank in ranks:
        alike.setdefault(frozenset(_count_by_kind(snapshots[rank]).items()), []).append(rank)
    complete = all(snapshots[rank].complete for rank in ranks)
    conflicts = [pair for pair in combinations(alike, 2) if _is_in_conflict(*map(dict, pair), complete=complete)]
    for counts, members in alike.items():
        against = [other for pair in conflicts if counts in pair for other in pair if other != counts]
        if conflicts and len(against) == len(conflicts) and sum(len(alike[other]) for other in against) > len(members):
            return tuple(members)
    return ()


def find_missing(ranks: Sequence[int], located: LocatedJob) -> tuple[int, ...]:
    """Return the ranks of a ring for which more than half of a group waits; none if groups wait for different ones."""
    lacks = set()
    for rank in ranks:
        operation = located.positions[rank].collective
        members = set() if operation is None or operation.peer is not None else set(operation.group.members)
        if 0 < 2 * len(located.lacking.get(rank, ())) < len(members):
            lacks.add(frozenset(located.lacking[rank]))
    return tuple(sorted(next(iter(lacks)))) if len(lacks) == 1 else ()


def group_by_data(ranks: Sequence[int], located: LocatedJob) -> list[tuple[str, tuple[int, ...]]]:
    """Return the types and sizes of tensors that have to be equal, and the ranks that have them, the most first."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        operation = located.positions[rank].collective
        if operation is not None and operation.name in EQUAL_DATA:
            groups.setdefault(operation.data, []).append(rank)
    return sorted(((data, tuple(alike)) for data, alike in groups.items()), key=lambda item: (-len(item[1]), item[1]))


def _count_by_kind(snapshot: RankSnapshot) -> dict[str, int]:
    """Return the collective operations that a rank has begun in each kind of group, such as all of mesh_tp."""
    counts: dict[str, int] = {}
    for name, use in snapshot.started.items():
        kind = ProcessGroup(name, use.description).kind
        counts[kind] = counts.get(kind, 0) + use.number
    return counts


def _is_in_conflict(counts: Mapping[str, int], other: Mapping[str, int], *, complete: bool) -> bool:
    """Return True if each of two ranks is ahead of the other in a kind of group; of some kinds, it may not be known."""
    kinds = counts.keys() | other.keys() if complete else counts.keys() & other.keys()
    differences = [counts.get(kind, 0) - other.get(kind, 0) for kind in kinds]
    return min(differences, default=0) < 0 < max(differences, default=0)
