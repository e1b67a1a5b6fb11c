"""Limits of what a reader meets: words of the pages, commands, options, schemas. They may shrink, not grow."""

from pathlib import Path

import click

from ddlrun.cli import group
from ddlrun.cli.launch import command as launch
from docs.reference.schemas import render_schemas

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))

WORDS = 65_000
WORDS_OF_A_PAGE = 4_000
GENERATED = {"command-line.md"}
LINES_OF_THE_CHANGELOG = 40
COMMANDS = 17
OPTIONS = 74
SCHEMAS = 8


def words(path: Path) -> int:
    return len(path.read_text().split())


def test_the_pages_stay_short() -> None:
    counts = {path: words(path) for path in PAGES}
    assert sum(counts.values()) <= WORDS
    assert [path for path in PAGES if counts[path] > WORDS_OF_A_PAGE and path.name not in GENERATED] == []
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= LINES_OF_THE_CHANGELOG


def test_the_surface_stays_small() -> None:
    assert len(group.list_commands(click.Context(group))) <= COMMANDS
    visible = [param for param in launch.params if isinstance(param, click.Option) and not param.hidden]
    assert len(visible) <= OPTIONS
    assert len(render_schemas()) <= SCHEMAS
