"""The progress of a job between two snapshots."""

from ddlrun.hangs.frames import POLLS, find_communication, normalize
from ddlrun.hangs.position import Activity, Position, locate_rank, main_process
from ddlrun.hangs.snapshot import ExaminedRank, JobSnapshot, RankSnapshot
from ddlrun.hangs.verdict import HangFinding, judge

# A thread that waits in the same call wakes up if it is examined by a signal: once or twice per snapshot.
FEW_SWITCHES = 4
# A rank that computes is busy for this share of the time; examinations stop it for a part of the rest.
LEAST_BUSY = 0.3
# A rank that reads or writes as much moves: it loads data, or writes a checkpoint. Status files have less.
LEAST_BYTES = 1 << 20
WITHOUT_WAITING = (HangFinding.RUNNING, HangFinding.BLOCKED)
# No Python stack shows whether such a rank waits for others.
OBSCURE = (Activity.FINALIZES, Activity.UNKNOWN)


def has_progressed(before: JobSnapshot, after: JobSnapshot) -> bool:
    """Return True if a rank moved between two snapshots, so that the job does not hang.

    Ranks that wait for others, or for something else, decide: a rank may run in an endless loop. If all ranks run, any
    of their functions decide. A rank that imports modules, ends operations of torch.distributed, or does not wait for
    others and transfers data, moves.
    """
    earlier, later = before.snapshots, after.snapshots
    if earlier.keys() - later.keys():
        return False  # a host has become silent, or a rank has ended
    if later.keys() - earlier.keys():
        return True  # a host was too busy to reply
    positions = [{rank: locate_rank(snapshot) for rank, snapshot in ranks.items()} for ranks in (earlier, later)]
    if any(position.activity is Activity.IMPORTS for ranks in positions for position in ranks.values()):
        return True
    if any(0 < earlier[rank].ended < later[rank].ended for rank in earlier):
        return True
    if any(_has_transferred(earlier[rank], later[rank]) for rank in earlier if not positions[1][rank].waits_for_ranks):
        return True
    none_runs = all(position.activity is not Activity.RUNS for position in positions[1].values())
    polls = {rank for rank in earlier if none_runs and _polls(positions[0][rank], positions[1][rank])}
    waits = {rank for rank, position in positions[0].items() if position.activity is not Activity.RUNS}
    deciding = (waits or earlier.keys()) - polls
    return any(
        _has_moved(positions[0][rank], positions[1][rank])
        or (positions[0][rank].waits_for_ranks and _has_returned(earlier[rank], later[rank]))
        for rank in deciding
    )


def _has_moved(before: Position, after: Position) -> bool:
    """Return True if a rank is at another position, or in another collective operation."""
    if before.collective is not None and after.collective is not None and before.collective != after.collective:
        return True
    return before.key != after.key


def _polls(before: Position, after: Position) -> bool:
    """Return True if a rank asks others in a loop, such as `while not request.Test()`, and so returns each time."""
    return normalize(after.call) in POLLS and before.frame == after.frame


def _has_returned(before: RankSnapshot, after: RankSnapshot) -> bool:
    """Return True if a rank has left a call of a library, and is in the same one again."""
    earlier, later = main_process(before), main_process(after)
    sleeps = "futex" in (earlier.call, later.call)  # a wait without a limit, or with a long one
    return later.replies > earlier.replies or (sleeps and later.switches - earlier.switches > FEW_SWITCHES)


def _has_transferred(before: RankSnapshot, after: RankSnapshot) -> bool:
    """Return True if a rank's processes have read or written much between two snapshots."""
    earlier, later = (sum(process.transferred for process in snapshot.processes) for snapshot in (before, after))
    return 0 < earlier <= later - LEAST_BYTES


def mark_stays(before: JobSnapshot, after: JobSnapshot) -> JobSnapshot:
    """Return the later snapshot, with `stays` set on ranks that have been in one operation since the earlier one."""
    earlier = {rank: snapshot for rank, snapshot in before.snapshots.items() if snapshot.processes}

    def mark(rank: ExaminedRank) -> ExaminedRank:
        former = earlier.get(rank.rank)
        if rank.snapshot is None or former is None or not rank.snapshot.processes:
            return rank
        now, then = main_process(rank.snapshot), main_process(former)
        stays = (now.pid, now.replies, rank.snapshot.operations) == (then.pid, then.replies, former.operations)
        return rank._replace(snapshot=rank.snapshot._replace(stays=stays))

    return JobSnapshot(tuple(map(mark, after.ranks)))


def is_computing(before: JobSnapshot, after: JobSnapshot) -> bool:
    """Return True if no rank waits for another, and all that do not sleep have computed between two snapshots.

    Such ranks may be at the same positions for long. An endless loop of all ranks looks the same.
    """
    if judge(after).finding not in WITHOUT_WAITING:
        return False
    earlier, later = before.snapshots, after.snapshots
    awake = [rank for rank, snapshot in later.items() if locate_rank(snapshot).activity is not Activity.SLEEPS]
    return bool(awake) and all(rank in earlier and _computes(earlier[rank], later[rank]) for rank in awake)


def _computes(before: RankSnapshot, after: RankSnapshot) -> bool:
    """Return True if a rank, or threads or processes that it waits for, were busy with something other than waiting."""
    stacks = (thread.frames for process in after.processes for thread in process.threads)
    if not before.processes or locate_rank(after).activity in OBSCURE or any(map(find_communication, stacks)):
        return False
    earlier, later = main_process(before), main_process(after)
    if later.gpu and later.replies == earlier.replies:
        return False  # a call that waits for a GPU may keep a CPU busy, and the GPU may wait for other ranks
    begun = {process.pid: process.busy for process in before.processes}
    busy = sum(process.busy - begun[process.pid] for process in after.processes if process.pid in begun)
    return busy > LEAST_BUSY * (later.time - earlier.time)
