"""Sets of numbers: parse what was rendered, and refuse everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.ranges import MOST_NUMBERS, find_runs, is_successor, parse_ranges, render_ranges


@given(st.frozensets(st.integers(0, MOST_NUMBERS - 1)))
def test_what_is_rendered_can_be_parsed(numbers: frozenset[int]) -> None:
    assert parse_ranges(render_ranges(numbers)) == numbers


@given(st.lists(st.integers(0, 20)))
def test_runs_are_the_numbers_in_their_order(numbers: list[int]) -> None:
    runs = find_runs(numbers, is_successor)
    assert [number for low, high in runs for number in range(low, high + 1)] == numbers


@pytest.mark.parametrize("text", ["-3", "3-1", "1-2:0", "x", "1 2", "²", f"{MOST_NUMBERS}", "1-2-3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a range of numbers"):
        parse_ranges(text)


@pytest.mark.parametrize("text", ["0-2,8\n", "0-2,,8,", " 0-2, 8", "8,0,1,2,2", "0-2,8-8:3"])
def test_spellings_of_one_set(text: str) -> None:
    assert parse_ranges(text) == {0, 1, 2, 8}
