"""The console: what a launch shows goes to standard error."""

import click


class ConsoleReporter:
    """The Reporter of the command line. Raises OSError where the reader of standard error is gone."""

    def line(self, text: str) -> None:
        """Print a line of ddlrun."""
        click.echo(f"ddlrun: {text}", err=True)

    def text(self, text: str) -> None:
        """Print a text as it is; colours are left out elsewhere than on a terminal."""
        click.echo(text, nl=False, err=True)
