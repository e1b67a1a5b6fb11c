"""Sections of a page as values: facts, tables and charts, which the page draws all alike."""

from collections.abc import Iterable, Sequence
from typing import TypedDict


class Table(TypedDict):
    """A table of texts."""

    caption: str
    columns: list[str]
    rows: list[list[str]]


class Line(TypedDict):
    """A line of a chart."""

    name: str
    rank: int | None
    """The rank whose line it is; None: none."""
    values: list[float | None]


class Chart(TypedDict):
    """Lines over the numbers of iterations."""

    title: str
    unit: str
    iterations: list[int]
    lines: list[Line]


class PageSection(TypedDict):
    """A section; its empty parts are not shown, nor is a section without others."""

    title: str
    unfolded: bool
    charts: list[Chart]
    facts: list[tuple[str, str]]
    tables: list[Table]


class Column(TypedDict):
    """A column of the table of ranks."""

    title: str
    number: bool
    width: str
    """always: on each screen, wide: on a wide one, chosen: of the chosen rank alone."""
    texts: list[str]
    """The text of each rank; empty: none."""
    failures: list[int]
    """Ranks whose text is a failure."""


def make_section(
    title: str,
    *,
    unfolded: bool = False,
    charts: Iterable[Chart] = (),
    facts: Iterable[tuple[str, str]] = (),
    tables: Iterable[Table] = (),
) -> PageSection:
    """Return a section without its empty parts."""
    return {
        "title": title,
        "unfolded": unfolded,
        "charts": [chart for chart in charts if chart["lines"]],
        "facts": [(name, words) for name, words in facts if words],
        "tables": [table for table in tables if table["rows"]],
    }


def make_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table without its empty columns.

    >>> make_table("", ["check", "remedy"], [["tcp", ""]])["columns"]
    ['check']
    """
    lines = [list(row) for row in rows]
    used = [index for index in range(len(columns)) if any(row[index] for row in lines)]
    chosen = [[row[index] for index in used] for row in lines]
    return {"caption": caption, "columns": [columns[index] for index in used], "rows": chosen}


def has_content(section: PageSection) -> bool:
    """Return False for a section that shows nothing."""
    return bool(section["charts"] or section["facts"] or section["tables"])
