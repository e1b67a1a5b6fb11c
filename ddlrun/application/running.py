"""The stages of a launch from its Plan on: files, the run, its report, and the restart."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ddlrun.application.attempt import Attempt
from ddlrun.application.events import LaunchEvents
from ddlrun.application.inputs import scheduler_context
from ddlrun.application.leftovers import describe_unchecked, end_leftovers
from ddlrun.application.planning import Planned, Surveyed, place_ranks, plan_job
from ddlrun.errors import EXIT_INTERRUPTED, DdlrunError
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.plan import Plan, shown_command
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.settings import Settings, restart_settings
from ddlrun.plan.supervision import SupervisionOptions, choose_shown
from ddlrun.remote.processes import FinishedProcess
from ddlrun.report.outcome import colour_report, render_outcome
from ddlrun.report.plan import render_plan
from ddlrun.runs.history import write_start
from ddlrun.runs.names import restart_name
from ddlrun.runs.registry import forget_run, lock_registry, write_record
from ddlrun.runs.retention import empty_trash, remove_old_runs
from ddlrun.runs.state_folders import choose_path, lacks_room, link_last_run
from ddlrun.runs.store import make_output_folder, state_folder, write_end, write_report, write_run_dir
from ddlrun.schedulers import JobEnd, read_job_end
from ddlrun.supervise.launch import describe_relays, run_plan
from ddlrun.supervise.listener import check_files
from ddlrun.supervise.signals import Signals


class Finished(NamedTuple):
    """An attempt that is over."""

    attempt: Attempt
    plan: Plan
    outcome: Outcome
    unchecked: Mapping[str, FinishedProcess]
    """Host -> the reply of a host that could not be searched for processes of the run."""
    taken_port: int | None
    """A port of a failed rank that another process has taken."""
    cause_in_view: bool
    """Whether the last lines of the rank that failed first are the last on the console."""


def choose_run_folder(attempt: Attempt) -> Attempt:
    """Return the attempt with its run folder in /tmp if the state folder, or that of a restart, cannot be written."""
    run = attempt.settings.run
    path = run.run_dir.path
    chosen = path if run.keep_dry_run and not run.attempt else choose_path(path)
    if chosen == path:
        return attempt
    if not run.quiet:
        attempt.reporter.line(f"note: {os.path.dirname(path)}: {lacks_room(path)}; this run is in {chosen}")
    settings = attempt.settings._replace(run=run._replace(run_dir=RunDir(chosen)))
    return attempt._replace(settings=settings)


def prepare_run(surveyed: Surveyed, show: Callable[[str], None]) -> Planned:
    """Plan a run beside the other runs of this user, write its files, put those of --ship on the hosts, and show it.

    Raises InputError, PlacementError, PreflightError or UnreachableError; FileNotFoundError where the current folder
    has been removed, as no rank can start there.
    """
    os.getcwd()
    state = state_folder(os.environ)
    with lock_registry(state):
        planned = plan_job(place_ranks(surveyed))
        check_files(planned.plan.placement.topology.size, planned.plan.manager_files)
        write_record(planned.plan, state)
    try:
        write_plan(planned)
        with outcome_without_job(planned):
            planned = ship_files(write_files(planned))
            show(planned.plan.run_dir.path)
    except BaseException:
        forget_run(state, planned.plan.run_id)
        raise
    return planned


@contextmanager
def outcome_without_job(planned: Planned) -> Iterator[None]:
    """Write the outcome of a run that an error or a signal ends before its job has one."""
    try:
        yield
    except BaseException as error:
        code = getattr(error, "exit_code", EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)
        outcome = Outcome(code, None, 0.0, str(error) or None, requested=not isinstance(error, Exception))
        write_end(planned.plan, (), outcome)
        raise


def write_files(planned: Planned) -> Planned:
    """Write the record of the run's start, and make the folder for output. Raises InputError."""
    run, state = planned.attempt.settings.run, state_folder(os.environ)
    write_start(planned.plan, run.arguments, state)
    link_last_run(planned.plan, state)
    remove_old_runs(state, run.retention)
    empty_trash(state)
    make_output_folder(planned.attempt.settings.supervision)
    return planned


def ship_files(planned: Planned) -> Planned:
    """Put the files of --ship on the hosts. Raises InputError, PreflightError or UnreachableError."""
    attempt = planned.attempt
    if attempt.settings.ship is not None:
        from ddlrun.application.shipping import ship  # noqa: PLC0415 - 22 ms, for --ship alone

        ship(attempt.settings.ship, attempt, planned.plan)
    return planned


def write_plan(planned: Planned) -> None:
    """Write the files of a plan into its run folder. Raises InputError."""
    check = None
    if planned.report is not None and planned.attempt.settings.check.checks != frozenset():
        from ddlrun.preflight.table import check_json  # noqa: PLC0415 - 4 ms, loaded by the check itself

        check = check_json(planned.report)
    write_run_dir(planned.plan, check)


def supervise_run(planned: Planned, signals: Signals) -> Finished:
    """Show the plan, run the job, and keep its outcome in the run folder."""
    attempt, plan = planned.attempt, planned.plan
    settings = attempt.settings
    events = LaunchEvents(settings.run.on_event, plan, attempt.reporter)
    try:
        with outcome_without_job(planned):
            if not settings.run.quiet:
                _show_plan(attempt, plan)
            events.start()
            restarts = settings.run.attempt < attempt.restarts
            options = _supervision(settings, plan)._replace(restarts=restarts, on_stall=events.stall)
            done = run_plan(plan, options, os.environ, signals, links=attempt.links)
    finally:
        forget_run(state_folder(os.environ), plan.run_id)
    unchecked = end_leftovers(done, planned, signals)
    outcome = _judge_by_scheduler(done.outcome, settings, signals)
    write_end(plan, tuple(done.ranks.bindings.values()), outcome)
    attempt.reporter.ended(settings.run, outcome)
    events.end(outcome)
    with suppress(KeyboardInterrupt), signals.interruptible():
        events.finish()
    return Finished(attempt, plan, outcome, unchecked, done.ranks.taken_port, done.cause_in_view)


def _supervision(settings: Settings, plan: Plan) -> SupervisionOptions:
    """Return the supervision options, with the shown local ranks as ranks."""
    if settings.supervision.style.local_ranks is None:
        return settings.supervision
    local_ranks = {placed.rank: placed.binding.local_rank for placed in plan.placement.by_host()}
    return settings.supervision._replace(style=choose_shown(settings.supervision.style, local_ranks))


def _show_plan(attempt: Attempt, plan: Plan) -> None:
    """Show the plan and the run's name; the short form without its notes comes after those for every user."""
    settings, reporter = attempt.settings, attempt.reporter
    verbose = settings.run.verbose
    notes = describe_relays(plan, os.environ) if verbose else (*settings.hosts.notes, *plan.warnings)
    for note in notes:
        reporter.line(f"note: {note}")
    reporter.text(render_plan(plan, shown_command(plan), full=verbose))
    reporter.text(f"run: {plan.run_id}\n")


def _judge_by_scheduler(outcome: Outcome, settings: Settings, signals: Signals) -> Outcome:
    """Return the outcome; where the scheduler may have ended the job, as the scheduler reports it."""
    allocation = settings.hosts.allocation
    explained = outcome.root is not None and not outcome.root.signal
    if allocation is None or not outcome.exit_code or explained:
        return outcome
    with suppress(KeyboardInterrupt), signals.interruptible():
        end = read_job_end(scheduler_context(), allocation)
        return outcome if end is None else _apply_job_end(outcome, end)
    return outcome


def _apply_job_end(outcome: Outcome, end: JobEnd) -> Outcome:
    """Return the outcome of a job that its scheduler ended: it signals all processes at once."""
    ends = tuple(rank.replace(ordered=True) if rank.signal else rank for rank in outcome.ends)
    return outcome._replace(
        exit_code=end.exit_code,
        signal=None,
        reason=end.reason,
        root=None,
        ends=ends,
        lost_ranks=(),
        requested=True,
        cause="",
    )


def report_outcome(finished: Finished, signals: Signals) -> Finished:
    """Show why a job failed, and how much of its output was not printed; keep the report in the run folder."""
    outcome, plan = finished.outcome, finished.plan
    report = render_outcome(outcome, plan)
    if report:
        write_report(plan, report)
    if finished.cause_in_view or finished.attempt.reporter.raises_cause:
        report = render_outcome(outcome, plan, with_tail=False)
    if report and outcome.unprinted_bytes:  # the output may have ended within a line
        report = f"\n{report}"
    watch = finished.attempt.settings.supervision
    if report and watch.colour:
        report = colour_report(report, many_colours=watch.style.many_colours)
    text = report + describe_unchecked(finished.unchecked)
    with suppress(OSError, KeyboardInterrupt), signals.interruptible():  # the reader may be gone, or slow
        finished.attempt.reporter.text(text)
    return finished


def fetch_files(finished: Finished) -> Finished:
    """Copy the files of --fetch back to the working folder. Raises UnreachableError where results are missing."""
    attempt, request = finished.attempt, finished.attempt.settings.ship
    if request is not None and request.fetched:
        from ddlrun.application.fetching import fetch  # noqa: PLC0415 - 50 ms, for --fetch alone

        fetch(request, attempt, finished.plan, finished.outcome)
    return finished


def allow_port_restart(finished: Finished) -> Finished:
    """Allow one more restart where the first attempt failed because another process took a port of its ranks."""
    attempt = finished.attempt
    port = finished.taken_port
    if port is None or not finished.outcome.exit_code or attempt.settings.run.attempt > 0:
        return finished
    attempt.reporter.line(f"another process took port {port} meanwhile; starting again with others")
    return finished._replace(attempt=attempt._replace(restarts=attempt.restarts + 1))


def is_final(finished: Finished) -> bool:
    """Return True for a job that is not restarted: it succeeded, was ended on purpose, or has no restart left."""
    attempt, outcome = finished.attempt, finished.outcome
    return not outcome.exit_code or outcome.requested or attempt.settings.run.attempt == attempt.restarts


def next_attempt(finished: Finished, request: int | None) -> Attempt:
    """Return the next attempt; hosts that were lost are replaced where the job allows it, else tried again.

    Raises DdlrunError where a signal, the request, asked for the end of the job.
    """
    if request is not None:
        raise DdlrunError(f"received {signal.Signals(request).name}")
    attempt, settings = finished.attempt, finished.attempt.settings
    number = settings.run.attempt + 1
    attempt.reporter.line(f"restart {number} of {attempt.restarts}")
    name = restart_name(settings.run.run_id, number)
    attempt = attempt._replace(settings=restart_settings(settings, number, name), probe=None)
    dead = {*finished.outcome.lost_hosts}
    lost = [host.name for host in settings.hosts.hosts if {host.name, host.name.partition(".")[0]} & dead]
    if not lost or not settings.hosts.replaceable:
        return attempt
    return attempt.without_hosts(dict.fromkeys(lost, "it was lost"))
