"""Processes that an attempt has left on its hosts: they are searched for and ended."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from ddlrun.application.attempt import Attempt
from ddlrun.application.inputs import reach
from ddlrun.application.planning import Planned
from ddlrun.errors import EXIT_INTERRUPTED
from ddlrun.hosts import by_number, fold
from ddlrun.remote.links import HostLinks
from ddlrun.remote.probe import describe_failure
from ddlrun.remote.processes import FinishedProcess
from ddlrun.runs.orphans import end_runs
from ddlrun.supervise.launch import FinishedJob
from ddlrun.supervise.signals import Signals

# The reply of a host whose search was interrupted.
INTERRUPTED = FinishedProcess(EXIT_INTERRUPTED, "", "the search was interrupted")
# A host that is searched has this long to answer, and as long over a new link.
SEARCH_SECONDS = 10.0


def end_leftovers(done: FinishedJob, planned: Planned, signals: Signals) -> Mapping[str, FinishedProcess]:
    """End the processes that are left of the run on hosts where no keeper sees to that, unless a signal interrupts.

    Returns the replies of hosts that failed.
    """
    plan, settings = planned.plan, planned.attempt.settings
    unwatched, unswept = done.ranks.unwatched_hosts().difference(plan.local_hosts), done.ranks.unswept_hosts()
    orphaned = unswept | unwatched if plan.manager.marks_daemons else unswept
    folder, known = done.session_folder, done.ranks.daemon_folders()
    daemons = {host: known.get(host, "") for host in sorted(unwatched) if folder is not None}
    try:
        with signals.interruptible(at_once=True):
            links = planned.attempt.links
            links.drop(done.outcome.lost_hosts)
            unchecked = _search(sorted(orphaned), settings.run.run_id, links)
            if not folder or not daemons:
                return unchecked
            return {**unchecked, **plan.manager.end_daemons(daemons, folder, reach(links, SEARCH_SECONDS))}
    except KeyboardInterrupt:
        return dict.fromkeys(sorted(orphaned.union(daemons)), INTERRUPTED)


def _search(hosts: Iterable[str], run: str, links: HostLinks) -> Mapping[str, FinishedProcess]:
    """End the processes of a run on hosts, also an agent that was stopped; return the replies of hosts that failed."""
    target = reach(links, SEARCH_SECONDS)
    failed = end_runs({host: [run] for host in hosts}, 0, target)[1]
    silent = {host: [run] for host, reply in failed.items() if reply.code is None}
    links.drop(silent)
    answered = {host: reply for host, reply in failed.items() if host not in silent}
    return {**answered, **end_runs(silent, 0, target)[1]}


def leave_hosts(attempt: Attempt, unchecked: Collection[str], *, at_once: bool) -> None:
    """Close the links after a job, and end agents that were stopped meanwhile, but not on hosts that did not answer.

    A signal shortens the wait for that, but no longer changes the outcome.
    """
    links = attempt.links
    with Signals() as signals, suppress(KeyboardInterrupt):
        signals.queue()
        with signals.interruptible():
            left = {host: [links.run_id] for host in links.close(at_once=at_once) if host not in unchecked}
            attempt.reporter.text(describe_unchecked(end_runs(left, 0, reach(links, SEARCH_SECONDS))[1]))


def describe_unchecked(failed: Mapping[str, FinishedProcess]) -> str:
    """Return a line with the hosts that could not be searched for processes of the run, the reason, and the remedy."""
    if not failed:
        return ""
    hosts, (name, reply) = fold(sorted(failed, key=by_number)), next(iter(failed.items()))
    return (
        f"ddlrun: note: processes of this run may be left on {hosts}, which could not be searched "
        f"({name}: {describe_failure(reply)}); once reachable: ddlrun clean {hosts}\n"
    )
