"""The verdict on a job: the rank or the line that is the reason why the other ranks wait, in a sentence."""

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple

from ddlrun.hangs.description import describe
from ddlrun.hangs.differences import (
    find_left_out,
    find_misdirected,
    find_missing,
    find_other_operations,
    find_out_of_order,
    find_unbalanced,
    group_by_data,
    may_differ_rightly,
)
from ddlrun.hangs.frames import POINT_TO_POINT, normalize
from ddlrun.hangs.position import Activity, Position
from ddlrun.hangs.snapshot import JobSnapshot, name_ranks
from ddlrun.hangs.waits import LocatedJob, Roots, describe_ring, find_cut_off, find_roots, locate_ranks

UNREACHABLE = "which is down, or cut off from the network"
NOBODY = "the rank at fault is unclear"
MOST_GROUPS = 8
UNANSWERED = "where ddlrun's processes do not run: the host is too busy, or they were stopped"


class HangFinding(Enum):
    """The kinds of verdicts."""

    SILENT_HOST = "silent_host"
    """The keepers of some ranks sent no snapshot."""
    STOPPED = "stopped"
    """Some ranks are stopped by a signal."""
    ABSENT = "absent"
    """Some ranks are elsewhere, while others wait for them in a collective operation."""
    ENDED = "ended"
    """Some ranks have ended, while others wait for them."""
    DIFFERENT_CALLS = "different_calls"
    """All ranks wait, but in different operations or lines."""
    NETWORK = "network"
    """All ranks wait, and data to a host is not acknowledged."""
    SAME_CALL = "same_call"
    """All ranks wait in the same operation."""
    BLOCKED = "blocked"
    """No rank waits for another, and some wait for something else."""
    RUNNING = "running"
    """No rank waits, or all GPUs are in the same operation: they may compute what comes before it."""
    UNKNOWN = "unknown"
    """No rank could be examined."""


class HangVerdict(NamedTuple):
    """The result of an examination."""

    finding: HangFinding
    guilty: tuple[int, ...]
    """The ranks that the others wait for, or that differ from them; empty if none stands out."""
    text: str
    """A sentence."""


class PositionGroup(NamedTuple):
    """Ranks at the same position."""

    ranks: tuple[int, ...]
    position: Position

    @property
    def text(self) -> str:
        """The ranks and their position in words."""
        return f"{name_ranks(self.ranks)} {describe(self.position, plural=len(self.ranks) > 1)}"


def group_ranks(located: LocatedJob) -> list[PositionGroup]:
    """Return the ranks that have been examined by their positions, the largest group first."""
    groups: dict[tuple[object, ...], list[tuple[int, Position]]] = {}
    # A rank whose operation is not known, as it was too busy to reply, does not differ from the others.
    known = located.is_known
    named = all(position.label for position in located.positions.values() if position.waits_for_ranks)
    for rank, plain in located.positions.items():
        position = plain._replace(collective=plain.collective if known else None, label=plain.label if named else "")
        collective = position.collective and position.collective.call
        groups.setdefault((*position.key, collective), []).append((rank, position))
    joined = [_join(members) for members in groups.values()]
    return sorted(joined, key=lambda group: (-len(group.ranks), group.ranks))


def _join(members: Sequence[tuple[int, Position]]) -> PositionGroup:
    """Return a group; its position has no frame if its ranks wait for their GPUs in different lines."""
    position = members[0][1]
    if position.activity is Activity.GPU and any(other.frame != position.frame for _, other in members):
        position = position._replace(frame=None)
    return PositionGroup(tuple(rank for rank, _ in members), position)


def judge(job: JobSnapshot) -> HangVerdict:
    """Return the verdict on a job."""
    located = locate_ranks(job)
    groups = group_ranks(located)
    waiting = [group for group in groups if group.position.waits_for_ranks]
    others = [group for group in groups if not group.position.waits_for_ranks]
    silent = tuple(rank.rank for rank in job.ranks if rank.snapshot is None and rank.exit_code is None)
    ended = tuple(rank.rank for rank in job.ranks if rank.snapshot is None)
    stopped = [group for group in others if group.position.activity is Activity.STOPPED]
    if silent and not job.dumped:
        return _judge_silent(job, silent, groups)
    if stopped:
        return HangVerdict(HangFinding.STOPPED, _all_ranks(stopped), _sentence([*waiting, *stopped]))
    roots = find_roots(located)
    if roots is not None:
        others = [group for group in (_narrow(group, roots.ranks) for group in others) if group.ranks]
        ended = tuple(rank for rank in ended if rank in roots.ranks)
    if waiting and others:
        return _judge_absent(waiting, others)
    if waiting and ended:
        return _judge_ended(waiting, ended, dumped=job.dumped)
    if waiting:
        return _judge_waiting(located, waiting, roots)
    return _judge_without_waiting(others)


def _narrow(group: PositionGroup, ranks: Collection[int]) -> PositionGroup:
    return group._replace(ranks=tuple(rank for rank in group.ranks if rank in ranks))


def _all_ranks(groups: Sequence[PositionGroup]) -> tuple[int, ...]:
    return tuple(sorted(rank for group in groups for rank in group.ranks))


def _sentence(groups: Sequence[PositionGroup], *more: str) -> str:
    """Return the positions of groups, of many only those of some, the last ones among them."""
    if len(groups) > MOST_GROUPS:
        half = MOST_GROUPS // 2
        left_out = f"{name_ranks(_all_ranks(groups[half:-half]))} are elsewhere"
        return "; ".join([*(group.text for group in [*groups[:half], *groups[-half:]]), left_out, *more])
    return "; ".join([*(group.text for group in groups), *more])


def _judge_silent(job: JobSnapshot, silent: tuple[int, ...], groups: Sequence[PositionGroup]) -> HangVerdict:
    """Return the verdict where some ranks were not examined; those on hosts that are cut off are the reason."""
    lost = [rank for rank in job.ranks if rank.rank in silent and not rank.reachable]
    mute = lost or [rank for rank in job.ranks if rank.rank in silent]
    hosts = ", ".join(dict.fromkeys(rank.host for rank in mute))
    cause = UNREACHABLE if lost else UNANSWERED
    silent = tuple(rank.rank for rank in mute)
    text = f"{name_ranks(silent)}: no reply from {hosts}, {cause}"
    return HangVerdict(HangFinding.SILENT_HOST if groups else HangFinding.UNKNOWN, silent, _sentence(groups, text))


def _judge_absent(waiting: Sequence[PositionGroup], others: Sequence[PositionGroup]) -> HangVerdict:
    """Return the verdict where some ranks wait for others that are elsewhere.

    Ranks that are at their end wait for the others too: the smaller part differs.
    """
    left = [group for group in others if group.position.activity is Activity.FINALIZES]
    if len(left) == len(others):
        fewer = min(waiting, others, key=lambda groups: len(_all_ranks(groups)))
        guilty = _all_ranks(others) if len(_all_ranks(others)) == len(_all_ranks(waiting)) else _all_ranks(fewer)
        return HangVerdict(HangFinding.ENDED, guilty, _sentence([*waiting, *others]))
    absent = [group for group in others if group not in left]
    unclear = len(absent) == 1 and absent[0].position.activity in (Activity.WAITS, Activity.UNKNOWN)
    if unclear and len(absent[0].ranks) > len(_all_ranks(waiting)):  # which may wait for the few, too
        return HangVerdict(HangFinding.ABSENT, (), _sentence([*waiting, *left, *absent], NOBODY))
    return HangVerdict(HangFinding.ABSENT, _all_ranks(absent), _sentence([*waiting, *left, *absent]))


def _judge_ended(waiting: Sequence[PositionGroup], ended: tuple[int, ...], *, dumped: bool) -> HangVerdict:
    """Return the verdict where ranks wait for others that have ended, or have left no dump."""
    fewer = len(ended) <= len(_all_ranks(waiting))
    if dumped:
        text = f"{name_ranks(ended)} left no dump"
        return HangVerdict(HangFinding.SILENT_HOST, ended if fewer else (), _sentence(waiting, text))
    verb = "has" if len(ended) == 1 else "have"
    guilty = ended if fewer else _all_ranks(waiting)
    return HangVerdict(HangFinding.ENDED, guilty, _sentence(waiting, f"{name_ranks(ended)} {verb} ended"))


def _judge_waiting(located: LocatedJob, waiting: Sequence[PositionGroup], roots: Roots | None) -> HangVerdict:
    """Return the verdict where all ranks wait for each other."""
    cut = find_cut_off(located.job)
    if cut is not None:
        return HangVerdict(HangFinding.NETWORK, cut[0], _sentence(waiting, cut[1]))
    if _are_in_one_operation(waiting):
        return _judge_one_operation(located, waiting)
    if len(waiting) > 1:
        guilty, notes = _find_odd(located, waiting, roots)
        return HangVerdict(HangFinding.DIFFERENT_CALLS, guilty, _sentence(waiting, *notes))
    return _judge_one_position(waiting[0])


def _judge_one_operation(located: LocatedJob, waiting: Sequence[PositionGroup]) -> HangVerdict:
    """Return the verdict where all ranks that wait are in the same operation, whose data may differ."""
    by_data = group_by_data(_all_ranks(waiting), located)
    if len(by_data) > 1:
        guilty = _all_odd([ranks for _, ranks in by_data])
        parts = ", ".join(f"{data or 'no tensor'} on {name_ranks(ranks)}" for data, ranks in by_data)
        note = f"tensors differ: {parts}"
        return HangVerdict(HangFinding.DIFFERENT_CALLS, guilty, _sentence(waiting, note, *_nobody(guilty)))
    on_gpu = any(group.position.activity is Activity.GPU for group in waiting)
    if len(waiting) > 1 and not on_gpu:
        guilty, notes = _find_odd(located, waiting, None)
        return HangVerdict(HangFinding.DIFFERENT_CALLS, guilty, _sentence(waiting, *notes))
    if len(waiting) > 1:
        return HangVerdict(HangFinding.SAME_CALL, (), _sentence(waiting))
    if on_gpu:
        return HangVerdict(HangFinding.RUNNING, (), _sentence(waiting, "the GPUs may compute what comes before it"))
    return _judge_one_position(waiting[0])


def _judge_one_position(group: PositionGroup) -> HangVerdict:
    if len(group.ranks) == 1:
        return HangVerdict(HangFinding.SAME_CALL, group.ranks, group.text)
    return HangVerdict(HangFinding.SAME_CALL, (), f"all ranks {describe(group.position, plural=True)}")


def _are_in_one_operation(waiting: Sequence[PositionGroup]) -> bool:
    operations = {group.position.collective and group.position.collective.call for group in waiting}
    return len(operations) == 1 and None not in operations


def _find_odd(
    located: LocatedJob, waiting: Sequence[PositionGroup], roots: Roots | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ranks that differ, and notes: those at the root of all waits, or else those unlike more than half."""
    at_root = waiting if roots is None else [group for group in waiting if roots.ranks.intersection(group.ranks)]
    calls = {group.position.collective and group.position.collective.call[:2] for group in at_root}
    only_stacks = calls == {None} and may_differ_rightly([group.position for group in at_root])
    if only_stacks or any(_has_unknown_peer(group, located) for group in at_root):
        return (), (NOBODY,)
    if roots is not None and None in calls:  # they wait for others in an unknown way: the fewer differ
        rest = tuple(rank for rank in _all_ranks(waiting) if rank not in roots.ranks)
        guilty = _all_odd(sorted((_all_ranks(at_root), rest), key=len, reverse=True))
        return guilty, _nobody(guilty)
    if len(calls) == 1 and len(at_root) > 1:
        guilty = _all_odd([group.ranks for group in at_root])
        guilty = guilty or find_out_of_order(_all_ranks(waiting), located.job.snapshots) or ()
        return guilty, _nobody(guilty)
    if roots is not None and roots.ranks:
        begun, operations = find_other_operations(_all_ranks(at_root), located)
        guilty = _all_odd(begun) if begun else _all_ranks(at_root)
        return guilty, (operations, *_nobody(guilty)) if begun else ()
    ring = () if roots is None else roots.ring
    shown = [describe_ring(ring, located)] if ring else []
    guilty, note = _compare_records(located, ring, _all_ranks(waiting))
    return guilty, (*shown, *note)


def _compare_records(
    located: LocatedJob, ring: tuple[int, ...], waiting: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ranks whose records differ from those of others, or from what they did before, and a note on that."""
    odd = find_out_of_order(ring or waiting, located.job.snapshots)
    if odd:
        verb = "calls" if len(odd) == 1 else "call"
        return odd, (f"{name_ranks(odd)} {verb} these in a different order",)
    if unbalanced := find_unbalanced(ring, located):
        return unbalanced, (f"{name_ranks(unbalanced)} has started more or fewer sends or receives than the others",)
    misdirected = find_misdirected(ring, located)
    missing = find_missing(ring, located) if odd is None and not misdirected else ()
    if missing:
        return missing, ()
    notes = misdirected or find_left_out(ring, located)
    return tuple(notes), tuple(notes.values()) or (NOBODY,)


def _has_unknown_peer(group: PositionGroup, located: LocatedJob) -> bool:
    """Return True in a send or receive whose other side may be any rank, as MPI records none."""
    snapshot, position = located.job.snapshots[group.ranks[0]], group.position
    is_message = bool(snapshot.messages) or not snapshot.started  # a wait for a store is none
    return is_message and position.collective is None and normalize(position.call) in POINT_TO_POINT


def _all_odd(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the ranks of all parts but the largest, which comes first and has to be more than half."""
    odd = tuple(sorted(rank for part in parts[1:] for rank in part))
    return odd if len(parts[0]) > len(odd) else ()


def _nobody(guilty: tuple[int, ...]) -> tuple[str, ...]:
    return () if guilty else (NOBODY,)


def _judge_without_waiting(others: Sequence[PositionGroup]) -> HangVerdict:
    """Return the verdict where no rank is known to wait for another. A rank with an unknown wait may do so."""
    if not others:
        return HangVerdict(HangFinding.UNKNOWN, (), "no rank could be examined")
    free = (Activity.RUNS, Activity.IMPORTS, Activity.SLEEPS, Activity.FINALIZES, Activity.UNKNOWN)
    blocked = [group for group in others if group.position.activity not in free]
    finding = HangFinding.BLOCKED if blocked else HangFinding.RUNNING
    known = [group for group in blocked if group.position.activity is not Activity.WAITS]
    return HangVerdict(finding, _all_ranks(known), _sentence(others))
