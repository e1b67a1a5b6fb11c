"""The attempts at a job: through the stages of a launch, and again after a failure."""

import os
from contextlib import closing
from typing import TYPE_CHECKING

from ddlrun.application.page import LaunchPage
from ddlrun.application.planning import Attempt, Planned, Surveyed, place_ranks, plan_job, start_probe, survey_hosts
from ddlrun.environment.frameworks import NAMES
from ddlrun.environment.open_mpi import SINGLETON
from ddlrun.errors import DdlrunError
from ddlrun.plan.outcome import Outcome
from ddlrun.supervise.signals import Signals

if TYPE_CHECKING:
    from ddlrun.application.running import Finished


def plan_attempt(attempt: Attempt) -> Planned:
    """Take an attempt through the stages up to its plan. Raises DdlrunError."""
    with closing(attempt.links):
        return plan_job(place_ranks(survey_hosts(start_probe(attempt))))


def run_until_done(attempt: Attempt) -> Outcome:
    """Run the job, and restart it after a failure as often as allowed; return the last outcome. Raises DdlrunError."""
    finished, surveyed, request = None, None, None
    with closing(attempt.links), LaunchPage(attempt.settings.run.web, attempt.reporter) as page:
        attempt = start_probe(attempt)
        from ddlrun.application import running  # noqa: PLC0415 - 30 ms, while hosts are probed

        while True:
            try:
                attempt = attempt if finished is None else running.next_attempt(finished, request)
                attempt = running.choose_run_folder(attempt)
                surveyed = survey_again(attempt, surveyed, finished)
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
                attempt.links.close(at_once=signals.urgent)
                return finished.outcome


def survey_again(attempt: Attempt, surveyed: Surveyed | None, finished: "Finished | None") -> Surveyed:
    """Survey the hosts of an attempt, unless the attempt before ran on the same ones and none was lost."""
    if surveyed is None or finished is None or finished.outcome.lost_hosts:
        return survey_hosts(attempt)
    if attempt.settings.hosts.hosts.names != surveyed.attempt.settings.hosts.hosts.names:
        return survey_hosts(attempt)
    survey = surveyed.survey
    if survey.busy_ports is not None and finished.taken_port is not None:
        survey = survey._replace(busy_ports=survey.busy_ports | {finished.taken_port})
    return surveyed._replace(attempt=attempt, survey=survey)


def forget_outer_job() -> None:
    """Remove the variables of another job from the environment, where its rank or a program with MPI started ddlrun."""
    if "DDLRUN_RUN" in os.environ:
        names = {"DDL_OPTIONS", *NAMES}
        for name in [name for name in os.environ if name.startswith("DDLRUN_") or name in names]:
            del os.environ[name]
    if os.environ.get(SINGLETON) == "singleton":
        del os.environ[SINGLETON]
