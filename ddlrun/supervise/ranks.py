"""The ranks of a running job: their ends, and the one that made the others end."""

from collections.abc import Iterable
from itertools import chain

from ddlrun.plan.outcome import RankEnd
from ddlrun.plan.tracebacks import find_failure, is_collateral


def root_of(ends: Iterable[RankEnd]) -> RankEnd | None:
    """Return the end that caused the others: the first failure that does not blame another rank.

    A dying process closes its sockets before its keeper notices. Another rank may fail because of that, and
    ddlrun's order reach the first one's keeper meanwhile. The cause is then the rank that was ordered to end but
    has an exit code of its own; or else one with a traceback, whose Python was still waiting for its own threads or
    processes.
    """
    listed = list(ends)
    failed = [end for end in listed if end.exit_code and not end.ordered]
    ordered = [end for end in listed if end.exit_code and end.ordered and not end.ended_by_order]
    ending = (end for end in listed if failed and end.ended_by_order and _has_own_failure(end, failed[0]))
    own = (end for end in chain(failed, ordered, ending) if not is_collateral(end))
    return next(own, next(iter(failed), None))


def _has_own_failure(end: RankEnd, other: RankEnd) -> bool:
    """Return True for a failure that the other rank did not print, too; a caught exception is printed by both."""
    failure = find_failure(end.tail)
    return failure is not None and failure.message not in other.tail
