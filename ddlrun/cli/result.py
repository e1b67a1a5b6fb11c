"""The result of a command: a text, or with --json its record."""

import json

import click


def print_result(record: object, text: str, *, as_json: bool) -> None:
    """Print what a command was asked for: with --json its record, else a text."""
    click.echo(json.dumps(record, indent=2) + "\n" if as_json else text, nl=False)
