"""The attempts at a job: through the stages of a launch, and again after a failure."""

import os

from ddlrun.application.dashboard import LaunchDashboard
from ddlrun.application.planning import Attempt, Planned, place_ranks, plan_job, survey_hosts
from ddlrun.environment.frameworks import NAMES
from ddlrun.environment.open_mpi import ROOT, SINGLETON
from ddlrun.errors import DdlrunError, PreflightError
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.settings import Settings
from ddlrun.supervise.signals import Signals


def plan_attempt(attempt: Attempt) -> Planned:
    """Take an attempt through the stages up to its plan. Raises DdlrunError."""
    return plan_job(place_ranks(survey_hosts(attempt)))


def run_until_done(attempt: Attempt) -> Outcome:
    """Run the job, and restart it after a failure as often as allowed; return the last outcome. Raises DdlrunError."""
    from ddlrun.application import running  # noqa: PLC0415 - 30 ms, while this machine is probed

    finished, request = None, None
    with LaunchDashboard(attempt.settings.run.dashboard, attempt.reporter) as dashboard:
        while True:
            try:
                attempt = attempt if finished is None else running.next_attempt(finished, request)
                planned = running.prepare_run(survey_hosts(attempt), dashboard.show)
            except DdlrunError as error:
                if finished is None:
                    raise
                for problem in error.problems:
                    attempt.reporter.line(f"no restart: {problem}")
                return finished.outcome
            with Signals(attempt.settings.supervision.forward) as signals:
                finished = running.report_outcome(running.supervise_run(planned, signals), signals)
            request = signals.request
            finished = running.fetch_files(finished)
            finished = running.allow_port_restart(finished)
            if running.is_final(finished):
                return finished.outcome


def check_root(settings: Settings) -> None:
    """Raise PreflightError where root starts a job without having allowed it."""
    allowed = settings.mpi.allow_root or all(os.environ.get(name) == "1" for name in ROOT)
    if os.geteuid() == 0 and not allowed:
        raise PreflightError(
            "you are root, and a mistake in a job could then harm the whole machine; use another account, or give "
            f"`--allow-run-as-root` (in a container, where root is usual, set {'=1 and '.join(ROOT)}=1)"
        )


def forget_outer_job() -> None:
    """Remove the variables of another job from the environment, where its rank or a program with MPI started ddlrun."""
    if "DDLRUN_RUN" in os.environ:
        names = {"DDL_OPTIONS", *NAMES}
        for name in [name for name in os.environ if name.startswith("DDLRUN_") or name in names]:
            del os.environ[name]
    if os.environ.get(SINGLETON) == "singleton":
        del os.environ[SINGLETON]
