"""The attempts at a job: through the stages of a launch, and again after a failure."""

import os
from contextlib import closing

from ddlrun.application.attempt import Attempt, start_probe
from ddlrun.application.page import LaunchPage
from ddlrun.environment.frameworks import NAMES
from ddlrun.environment.open_mpi import SINGLETON
from ddlrun.errors import DdlrunError
from ddlrun.plan.outcome import Outcome
from ddlrun.supervise.signals import Signals


def run_until_done(attempt: Attempt) -> Outcome:
    """Run the job, and restart it after a failure as often as allowed; return the last outcome. Raises DdlrunError."""
    finished, surveyed, request = None, None, None
    with closing(attempt.links), LaunchPage(attempt.settings.run.web, attempt.reporter) as page:
        attempt = start_probe(attempt)
        from ddlrun.application import leftovers, planning, running  # noqa: PLC0415 - 30 ms, while hosts are probed

        while True:
            try:
                attempt = attempt if finished is None else running.next_attempt(finished, request)
                attempt = running.choose_run_folder(attempt)
                if finished is None or surveyed is None:
                    surveyed = planning.survey_hosts(attempt)
                else:
                    lost, port = finished.outcome.lost_hosts, finished.taken_port
                    surveyed = planning.survey_again(attempt, surveyed, lost, port)
                planned = running.prepare_run(surveyed, page.show)
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
                leftovers.leave_hosts(attempt, finished.unchecked, at_once=signals.urgent)
                return finished.outcome


def forget_outer_job() -> None:
    """Remove the variables of another job from the environment, where its rank or a program with MPI started ddlrun."""
    if "DDLRUN_RUN" in os.environ:
        names = {"DDL_OPTIONS", *NAMES}
        for name in [name for name in os.environ if name.startswith("DDLRUN_") or name in names]:
            del os.environ[name]
    if os.environ.get(SINGLETON) == "singleton":
        del os.environ[SINGLETON]
