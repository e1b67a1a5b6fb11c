"""The waits of ranks for each other: the ranks that an operation lacks, and those at the root of all waits.

A rank that waits in an operation of a group is compared with that group's members alone. A member that has not begun
the operation is lacking. It may wait itself, in another group: the waits lead to a rank that does not wait for any
other, or to ranks that wait for each other.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ddlrun.hangs.frames import POINT_TO_POINT, normalize
from ddlrun.hangs.position import Position, locate_rank
from ddlrun.hangs.snapshot import ANY, MOST_MESSAGES, JobSnapshot, ProcessGroup, RankSnapshot, RecordedOperation

Node = TypeVar("Node", bound=Hashable)
# The operations that end together.
PARTNERS = {"send": "recv", "recv": "send"}


class LocatedJob(NamedTuple):
    """A job, with the position of each rank that was examined."""

    job: JobSnapshot
    positions: Mapping[int, Position]
    lacking: Mapping[int, frozenset[int]]
    """A rank that waits in a known operation -> the ranks that the operation lacks."""

    @property
    def is_known(self) -> bool:
        """Whether the operation of each rank that waits for others is known, or that it is in none."""
        snapshots = self.job.snapshots
        waiting = [rank for rank, position in self.positions.items() if position.waits_for_ranks]
        return all(snapshots[rank].started or snapshots[rank].operations for rank in waiting)


def locate_ranks(job: JobSnapshot) -> LocatedJob:
    """Return the positions of all ranks; of several operations, a rank waits in the first that lacks ranks."""
    snapshots = job.snapshots
    positions = {rank: locate_rank(snapshot) for rank, snapshot in snapshots.items()}
    waiting = {rank for rank, position in positions.items() if position.waits_for_ranks}
    users = _list_users(job)
    lacks_of: dict[Hashable, tuple[RecordedOperation, frozenset[int]]] = {}
    lacking: dict[int, frozenset[int]] = {}
    for rank in sorted(waiting):
        operations = snapshots[rank].operations
        if not operations and normalize(positions[rank].call) in POINT_TO_POINT:
            operations = tuple(find_unmatched(rank, snapshots))
        keys = [_key(rank, operation) for operation in operations]
        for key, operation in zip(keys, operations, strict=True):
            if key not in lacks_of:
                whole = _complete(operation, users)
                lacks_of[key] = whole, frozenset(_find_lacking(rank, whole, snapshots, waiting)) - {rank}
        if keys:
            index = next((index for index, key in enumerate(keys) if lacks_of[key][1]), 0)
            whole, lacking[rank] = lacks_of[keys[index]]
            own = operations[index]._replace(group=whole.group)
            positions[rank] = positions[rank]._replace(collective=own)
    return LocatedJob(job, positions, lacking)


def find_unmatched(rank: int, snapshots: Mapping[int, RankSnapshot]) -> Iterable[RecordedOperation]:
    """Yield the messages of a rank of which its peer has not begun the other half, as far as the records show that."""
    for (group, name, peer), use in {use.series: use for use in snapshots[rank].messages}.items():
        other = None if peer is None else snapshots.get(peer)
        if other is not None and other.started and all(half.peer != ANY for half in other.messages):
            halves = [half.number for half in other.messages if half.series == (group, PARTNERS.get(name), rank)]
            if max(halves, default=use.number if len(other.messages) == MOST_MESSAGES else 0) < use.number:
                described = ProcessGroup(group, snapshots[rank].started[group].description)
                yield RecordedOperation(0, name, "", group=described, peer=peer)


def _key(rank: int, operation: RecordedOperation) -> Hashable:
    """Return a key that operations share if they lack the same ranks."""
    return operation.call, operation.group.members, None if operation.peer is None else rank


def _list_users(job: JobSnapshot) -> Mapping[str, tuple[int, ...]]:
    """Return the ranks that have used each group, by the group's name."""
    users: dict[str, list[int]] = {}
    for rank, snapshot in sorted(job.snapshots.items()):
        for name in snapshot.started:
            users.setdefault(name, []).append(rank)
    return {name: tuple(ranks) for name, ranks in users.items()} | {"": tuple(rank.rank for rank in job.ranks)}


def _complete(operation: RecordedOperation, users: Mapping[str, tuple[int, ...]]) -> RecordedOperation:
    """Return an operation whose group has members: all ranks, or those that have used it, unless they are known."""
    group = operation.group
    if group.members:
        return operation
    members = users.get("" if group.is_default else group.name, ())
    return operation._replace(group=group._replace(members=members, is_certain=group.is_default))


def _find_lacking(
    rank: int, operation: RecordedOperation, snapshots: Mapping[int, RankSnapshot], waiting: Collection[int]
) -> Iterable[int]:
    """Return the ranks that an operation of a rank lacks: those that have not begun it, or else those that do not wait.

    A rank that waits, and whose records are not known, lacks in none.
    """
    if operation.peer is not None:
        return [] if _meets(rank, operation, snapshots.get(operation.peer)) else [operation.peer]
    members = operation.group.members
    behind = [rank for rank in members if _is_behind(operation, snapshots.get(rank), waits=rank in waiting)]
    return behind or [rank for rank in members if rank not in waiting]


def _meets(rank: int, operation: RecordedOperation, other: RankSnapshot | None) -> bool:
    """Return True if the peer of a rank's operation is in its other half."""
    expected = (PARTNERS.get(operation.name), operation.group.name, rank, operation.tag)
    halves = () if other is None else other.operations
    return any((half.name, half.group.name, half.peer, half.tag) == expected for half in halves)


def _is_behind(operation: RecordedOperation, other: RankSnapshot | None, *, waits: bool) -> bool:
    if other is None or not (other.started or other.operations):
        return not waits
    use = other.started.get(operation.group.name)
    return use is None or use.number < operation.number


class Roots(NamedTuple):
    """The ranks to which all waits lead."""

    ranks: frozenset[int]
    """Those that lack in an operation, and do not wait for ranks that lack in theirs."""
    ring: tuple[int, ...]
    """Those that wait for each other."""


def find_roots(located: LocatedJob) -> Roots | None:
    """Return the ranks at the root of all waits; None if that is not known, or no rank is known to lack."""
    if not located.is_known or not any(located.lacking.values()):
        return None
    nodes = {rank.rank: _node(rank.rank, located) for rank in located.job.ranks}
    ranks: dict[Hashable, list[int]] = {}
    for rank, node in nodes.items():
        ranks.setdefault(node, []).append(rank)
    lacking = {node: located.lacking.get(members[0], frozenset()) for node, members in ranks.items()}
    successors = {node: {nodes[rank] for rank in lacks if rank in nodes} for node, lacks in lacking.items()}
    awaited = {other for others in successors.values() for other in others}
    bottoms = [bottom for bottom in find_bottoms(successors) if awaited.issuperset(bottom)]
    single = [rank for bottom in bottoms if len(bottom) == 1 for rank in ranks[bottom[0]]]
    ring = [rank for bottom in bottoms if len(bottom) > 1 for node in bottom for rank in ranks[node]]
    return Roots(frozenset(single), tuple(sorted(ring)))


def _node(rank: int, located: LocatedJob) -> Hashable:
    """Return a key that ranks share if they wait together; a rank that waits for none is alone."""
    operation = located.positions[rank].collective if rank in located.lacking else None
    if operation is not None and operation.peer is not None and not located.lacking[rank]:
        return frozenset((rank, operation.peer))  # in both halves
    return rank if operation is None else _key(rank, operation)


def find_cut_off(job: JobSnapshot) -> tuple[tuple[int, ...], str] | None:
    """Return the ranks to whose address most connections are dead, and a sentence; None if no connection is."""
    dead = [(rank, pair) for rank in job.ranks if rank.snapshot is not None for pair in rank.snapshot.connections]
    if not dead:
        return None
    pairs = {(rank.rank, pair) for rank, pair in dead}
    [(address, _)] = Counter(address for _, pair in pairs for address in (pair.local, pair.remote)).most_common(1)
    own = {rank.host for rank, pair in dead if pair.local == address}
    ranks = tuple(rank.rank for rank in job.ranks if rank.host in own)
    where = f"{', '.join(sorted(own))} ({address})" if own else address
    return ranks, f"data to and from {where} is not acknowledged: its network, or the way to it, is down"


def describe_ring(ranks: Sequence[int], located: LocatedJob) -> str:
    """Return a ring of waits: `rank 1 waits for rank 2 in recv, rank 2 for rank 1 in recv`."""
    rank, path = ranks[0], list[int]()
    while rank not in path:
        path.append(rank)
        rank = min(located.lacking[rank].intersection(ranks))
    ring = path[path.index(rank) :]
    parts = [
        f"rank {waiter} for rank {other} in {_name_call(located.positions[waiter])}"
        for waiter, other in zip(ring, [*ring[1:], rank], strict=True)
    ]
    return ", ".join(parts).replace(" for", " waits for", 1)


def _name_call(position: Position) -> str:
    operation = position.collective
    if operation is None:
        return position.call
    return operation.name if operation.group.is_default else f"{operation.name} of {operation.group.kind}"


def find_bottoms(successors: Mapping[Node, Collection[Node]]) -> list[list[Node]]:
    """Return the parts of a graph that nothing leaves: single nodes without successors, and nodes in a ring.

    >>> sorted(map(sorted, find_bottoms({1: [2], 2: [3], 3: [2], 4: [5], 5: []})))
    [[2, 3], [5]]
    """
    predecessors: dict[Node, list[Node]] = {node: [] for node in successors}
    for node, others in successors.items():
        for other in others:
            predecessors[other].append(node)
    bottoms, rest = [], dict.fromkeys(successors)
    while rest:
        node = next(iter(rest))
        ahead, behind = _reach(node, successors), _reach(node, predecessors)
        while len(ahead.keys() - behind.keys()):
            node = [other for other in ahead if other not in behind][-1]
            ahead, behind = _reach(node, successors), _reach(node, predecessors)
        bottoms.append(list(ahead))
        rest = {other: None for other in rest if other not in behind}
    return bottoms


def _reach(start: Node, links: Mapping[Node, Collection[Node]]) -> dict[Node, None]:
    """Return the nodes to which links lead from a node, and it, the nearest first."""
    reached = {start: None}
    for node in (queue := [start]):
        new = [other for other in links[node] if other not in reached]
        reached.update(dict.fromkeys(new))
        queue.extend(new)
    return reached
