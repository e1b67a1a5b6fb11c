"""The progress of a job between two snapshots."""

from collections.abc import Collection

from ddlrun.hangs.frames import POLLS, normalize
from ddlrun.hangs.position import Activity, Position, locate_rank, main_process
from ddlrun.hangs.snapshot import ExaminedRank, JobSnapshot, RankSnapshot
from ddlrun.hangs.verdict import HangFinding, HangVerdict
from ddlrun.hangs.work import cpu_share

# A thread that waits in the same call wakes up if it is examined by a signal: once or twice per snapshot.
FEW_SWITCHES = 4
# A wait that looks for signals now and then needs less of a CPU than calls that return: JAX wakes up for 50 us, 5 times
# per second.
LEAST_CPU = 0.001
WITHOUT_WAITING = (HangFinding.RUNNING, HangFinding.BLOCKED)


def has_progressed(before: JobSnapshot, after: JobSnapshot) -> bool:
    """Return True if a rank moved between two snapshots, so that the job does not hang.

    Ranks that wait for others, or for something else, decide: a rank may run in an endless loop. If all ranks run, any
    of their functions decide. A rank that imports modules, ends operations of torch.distributed, ends itself, or goes
    from its program to its end, moves.
    """
    earlier, later = before.snapshots, after.snapshots
    if gone := earlier.keys() - later.keys():  # they have ended, or a host has become silent
        return any(rank.rank in gone and rank.exit_code is not None for rank in after.ranks)
    if later.keys() - earlier.keys():
        return True  # a host was too busy to reply
    positions = [{rank: locate_rank(snapshot) for rank, snapshot in ranks.items()} for ranks in (earlier, later)]
    if any(position.activity is Activity.IMPORTS for ranks in positions for position in ranks.values()):
        return True
    if any(0 < earlier[rank].ended < later[rank].ended for rank in earlier):
        return True
    if any(_leaves_program(positions[0][rank], positions[1][rank]) for rank in earlier):
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


def _leaves_program(before: Position, after: Position) -> bool:
    """Return True if a function of the program ran, and no stack is left, as at the end of Python."""
    return before.activity is Activity.RUNS and after.activity in (Activity.FINALIZES, Activity.UNKNOWN)


def _polls(before: Position, after: Position) -> bool:
    """Return True if a rank asks others in a loop, such as `while not request.Test()`, and so returns each time."""
    return normalize(after.call) in POLLS and before.frame == after.frame


def _has_returned(before: RankSnapshot, after: RankSnapshot) -> bool:
    """Return True if a rank has left a call of a library, and is in the same one again."""
    earlier, later = main_process(before), main_process(after)
    sleeps = "futex" in (earlier.call, later.call)  # a wait without a limit, or with a long one
    dozes = later.pid in later.counters.threads and cpu_share(earlier, later, later.pid) < LEAST_CPU
    wakes = sleeps and not dozes and later.switches - earlier.switches > FEW_SWITCHES
    return later.replies > earlier.replies or wakes


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


def is_computing(job: JobSnapshot, verdict: HangVerdict, work: Collection[int]) -> bool:
    """Return True if no rank of a job waits for another, and all that do not sleep are among those that work.

    Such ranks may be at the same positions for long. An endless loop of all ranks looks the same.
    """
    snapshots = job.snapshots.items()
    awake = [rank for rank, snapshot in snapshots if locate_rank(snapshot).activity is not Activity.SLEEPS]
    return verdict.finding in WITHOUT_WAITING and bool(awake) and all(rank in work for rank in awake)
