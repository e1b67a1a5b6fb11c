"""Sizes, rates and times: parse what was rendered."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.units import (
    parse_bytes,
    parse_rate,
    parse_seconds,
    parse_time_limit,
    render_byte_rate,
    render_bytes,
    render_clock,
    render_duration,
    render_memory,
    render_rate,
    render_seconds,
    render_size,
)

Pair = tuple[Callable[[float], str], Callable[[str, str], float]]


@pytest.mark.parametrize(
    "pair",
    [(render_bytes, parse_bytes), (render_memory, parse_bytes), (render_rate, parse_rate),
     (render_byte_rate, parse_rate), (render_seconds, parse_seconds)],
)  # fmt: skip
@given(st.integers(1, 999), st.integers(0, 2))
def test_three_digits_survive(pair: Pair, digits: int, power: int) -> None:
    render, parse = pair
    text = render(digits * 10**power)
    if "," not in text:  # whole seconds, from 1000 on
        assert render(parse(text, "test")) == text


@given(st.integers(1, 999), st.integers(0, 3))
def test_sizes_are_exact_in_units_of_1024(count: int, power: int) -> None:
    size = count * 1024**power
    assert parse_bytes(render_size(size), "test") == size
    assert render_memory(size) == render_size(size)


@given(st.integers(1, 359_999_999))
def test_times(seconds: int) -> None:
    assert parse_time_limit(render_clock(seconds)) == seconds
    if seconds >= 60:
        rendered = parse_time_limit(render_duration(seconds))
        assert rendered <= seconds < rendered + 3600
        assert render_duration(rendered) == render_duration(seconds)
