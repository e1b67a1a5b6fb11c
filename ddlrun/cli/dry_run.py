"""The plan of a launch with --dry-run."""

import json

import click

from ddlrun.application.attempt import Attempt
from ddlrun.application.planning import plan_attempt
from ddlrun.cli.options.notes import note_on_descriptions
from ddlrun.plan.plan import shown_command
from ddlrun.report.plan import render_plan
from ddlrun.runs.store import check_rank_file, write_run_dir


def print_plan(attempt: Attempt) -> None:
    """Print the plan of an attempt; write its files where --run-dir names their folder."""
    with note_on_descriptions():
        planned = plan_attempt(attempt)
        plan, run = planned.plan, attempt.settings.run
        if run.keep_dry_run:
            write_run_dir(plan)
        else:
            check_rank_file(plan)
        if run.as_json:
            click.echo(json.dumps(plan.as_dict(), indent=2))
        else:
            click.echo(render_plan(plan, shown_command(plan), full=True), nl=False)
