"""The console: what a launch shows goes to standard error."""

from typing import TYPE_CHECKING

import click

from ddlrun.errors import spell_options

if TYPE_CHECKING:
    from ddlrun.plan.outcome import Outcome
    from ddlrun.plan.settings import RunOptions


class ConsoleReporter:
    """The Reporter of the command line. Raises OSError where the reader of standard error is gone."""

    raises_cause = False

    def spell(self, names: str) -> str:
        """Return the names of an option, which are those of the command line."""
        return names

    def line(self, text: str) -> None:
        """Print a line of ddlrun."""
        click.echo(f"ddlrun: {spell_options(text, self.spell)}", err=True)

    def text(self, text: str) -> None:
        """Print a text as it is; colours are left out elsewhere than on a terminal."""
        click.echo(text, nl=False, err=True)

    def ended(self, run: "RunOptions", outcome: "Outcome") -> None:
        """Do nothing: the text of a failure has been printed, and the run folder has the outcome."""


def print_note(text: str) -> None:
    """Print a note."""
    ConsoleReporter().line(f"note: {text}")
