"""mpibind's published mappings beside ddlrun's."""

from pathlib import Path

import pytest

from tests.machines.mpibind import HEAD, MAPPINGS, Mapping, our_cores, row, their_cores

PAGE = Path(__file__).parents[2] / "docs/explanation/placement.md"


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: f"{mapping.title}-{len(mapping.cpus)}")
def test_a_mapping_is_the_same_or_has_a_reason(mapping: Mapping) -> None:
    assert (our_cores(mapping) == their_cores(mapping)) == (not mapping.reason)


def test_the_page_has_the_table() -> None:
    assert "\n".join([HEAD, *map(row, MAPPINGS)]) in PAGE.read_text()
