"""ddlrun show schema: the JSON Schemas of ddlrun's output and files."""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddlrun.application.inputs import read_text
from ddlrun.errors import InputError
from ddlrun.wording import did_you_mean

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.report.view_records import SchemasRecord

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "schemas")


def show_schema(name: str | None, more: Sequence[str], *, as_json: bool) -> None:
    """Print a schema, or the list of all. Raises InputError where there is none of that name."""
    if more:
        raise InputError(f"show schema {name} {' '.join(more)}: name one schema")
    if name is not None:
        click.echo(_read(name), nl=False)
        return
    titles = {name: str(json.loads(_read(name))["title"]) for name in _names()}
    record: SchemasRecord = {"schema": "urn:ddlrun:show-schema:1", "schemas": titles}
    width = max(map(len, titles))
    text = "\n".join(f"{name.ljust(width)}  {title}" for name, title in titles.items())
    click.echo(json.dumps(record, indent=2) if as_json else text)


def _read(name: str) -> str:
    names = _names()
    if name not in names:
        raise InputError(f"schema {name!r}: no such schema{did_you_mean(name, names)}; there are {', '.join(names)}")
    return read_text(f"{FOLDER}/{name}.json", "schema")


def _names() -> list[str]:
    return sorted(file.removesuffix(".json") for file in os.listdir(FOLDER) if file.endswith(".json"))
