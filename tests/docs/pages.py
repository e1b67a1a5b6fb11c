"""The fenced blocks of the how-to pages, by heading."""

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"


class Block(NamedTuple):
    """A fenced block: its language, its text, and the heading that it stands under."""

    title: str
    kind: str
    text: str


def blocks(page: str) -> list[Block]:
    """Return a page's blocks in their order."""
    found = []
    for section in re.split(r"(?m)^#+ (?=.*\n\n)", (FOLDER / f"{page}.md").read_text())[1:]:
        title = section.partition("\n")[0]
        found += [Block(title, *pair) for pair in re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", section)]
    return found


def script(page: str, title: str, place: int = 0, *, kind: str = "sh") -> str:
    """Return one of a heading's blocks of that language."""
    return [block.text for block in blocks(page) if (block.title, block.kind) == (title, kind)][place]
