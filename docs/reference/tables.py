"""Tables of Markdown pages."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]


def read_table(page: str | Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading of a page, without its head; docs is the folder of a page.

    Raises ValueError where there is none.
    """
    text = (DOCS / page).read_text()
    section = re.search(rf"(?ms)^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text)
    table = re.search(r"(?m)^\|.*\n\|[-| :]+\|\n((?:^\|.*\n)+)", section[1]) if section else None
    if table is None:
        raise ValueError(f"{page}: no table under {heading!r}")
    return [_cells(row) for row in table[1].splitlines()]


def _cells(row: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
