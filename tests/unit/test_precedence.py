"""Precedence: the tables of the code, and the page that shows them."""

import itertools
import re
from pathlib import Path

import pytest

from ddlrun.application.options.hosts import HOST_READERS
from ddlrun.plan.job_placement import ORDER_CHOICES
from ddlrun.plan.precedence import (
    ENVIRONMENT_LAYERS,
    EXCLUSIVE_GROUPS,
    HOST_SOURCES,
    OPTION_SOURCES,
    RANK_ORDER_SOURCES,
    USER_VARIABLES,
    EnvironmentLayer,
    merge_layers,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "precedence.md"
NAMES = [layer.name for layer in ENVIRONMENT_LAYERS]
NO_VARIABLES: dict[str, dict[str, str]] = {name: {} for name in NAMES}


def tables() -> list[list[list[str]]]:
    """Return the cells of each table on the page, without its head."""
    blocks = re.findall(r"(?m)^\|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text())
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in block.splitlines()] for block in blocks]


def test_the_page_shows_the_tables_of_the_code() -> None:
    assert tables() == [
        [[source] for source in OPTION_SOURCES],
        [[group.name, ", ".join(f"`{name}`" for name in group.parameters)] for group in EXCLUSIVE_GROUPS],
        [[source] for source in HOST_SOURCES],
        [[source] for source in RANK_ORDER_SOURCES],
        [[layer.name, layer.variables, "stays" if layer.yields else "is replaced"] for layer in ENVIRONMENT_LAYERS],
        [[source] for source in USER_VARIABLES],
    ]


def test_each_source_has_its_reader() -> None:
    assert {*HOST_SOURCES} == {*HOST_READERS}
    assert {*RANK_ORDER_SOURCES} == {*ORDER_CHOICES}


@pytest.mark.parametrize(("lower", "higher"), list(itertools.pairwise(NAMES)))
def test_a_layer_wins_over_the_one_before_it(lower: str, higher: str) -> None:
    layers = NO_VARIABLES | {lower: {"A": "lower", "B": "lower"}, higher: {"A": "higher"}}
    assert merge_layers(layers, {}) == {"A": "higher", "B": "lower"}


@pytest.mark.parametrize("layer", ENVIRONMENT_LAYERS, ids=lambda layer: layer.name)
def test_a_layer_that_yields_leaves_an_inherited_variable_alone(layer: EnvironmentLayer) -> None:
    merged = merge_layers(NO_VARIABLES | {layer.name: {"A": "layer"}}, {"A": "inherited"})
    assert merged == ({} if layer.yields else {"A": "layer"})
