"""The pictures that docs/diagrams draws."""

import itertools
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs.diagrams.__main__ import FOLDER, PICTURES
from docs.diagrams.drawing import Box, Drawing

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_script_draws(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text() == PICTURES[name]().render(), "python -m docs.diagrams"


@pytest.mark.parametrize("name", PICTURES)
def test_words_are_inside_and_do_not_overlap(name: str) -> None:
    drawing = PICTURES[name]()
    assert drawing.areas
    for area in drawing.areas:
        assert area.left >= 0, area
        assert area.top >= 0, area
        assert area.right <= drawing.width, area
        assert area.bottom <= drawing.height, area
    for first, second in itertools.combinations(drawing.areas, 2):
        beside = first.right <= second.left or second.right <= first.left
        assert beside or first.bottom <= second.top or second.bottom <= first.top, (first, second)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_a_title_and_a_description(name: str) -> None:
    root = ET.fromstring((FOLDER / f"{name}.svg").read_text())
    assert root.get("role") == "img"
    for part in ("title", "desc"):
        element = root.find(f"{SVG}{part}")
        assert element is not None
        assert element.text


def test_every_picture_is_on_a_page() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(PICTURES)
    assert [name for name in PICTURES if f"diagrams/{name}.svg)" not in pages] == []


def test_words_that_are_wider_than_their_box_are_an_error() -> None:
    drawing = Drawing("title", "description", 100, 50)
    with pytest.raises(ValueError, match="wider than its box of 30"):
        drawing.box(Box(0, 0, 30, 20), "too many words")
