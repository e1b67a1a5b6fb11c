"""Topologies: text, ranks and coordinates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import InputError
from ddlrun.topology import RankOrder, Topology, parse_topology

topologies = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(lambda dims: Topology(tuple(dims)))


@given(topologies)
def test_text_and_value_are_inverses(topology: Topology) -> None:
    assert parse_topology(str(topology)) == topology


@pytest.mark.parametrize(
    ("text", "dims"),
    [("4", (4, 1, 1)), ("4x2", (4, 2, 1)), ("4X2x3", (4, 2, 3)), ("4x2x3x1", (4, 2, 3)), ("1x2x3x4", (1, 2, 3, 4))],
)
def test_missing_dimensions_are_one(text: str, dims: tuple[int, ...]) -> None:
    assert parse_topology(text).dims == dims


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["a number is missing"]),
        ("4x", ["column 3", "a number is missing"]),
        ("4xx3", ["column 3"]),
        ("4xtwox3", ["'two'", "column 3"]),
        ("ax2xb", ["'a'", "'b'"]),
        ("0x2x3", ["X (ranks per host) is 0", "at least 1"]),
        ("4x0x0", ["Y (hosts per rack)", "Z (racks)"]),
        ("4x-2", ["'-2'"]),
        ("4x2x3x1x1", ["5 dimensions"]),
        ("4.5x2", ["'4.5'"]),
        ("٤x٢", ["'٤'"]),
        ("999999x999999x9", ["MPI allows at most"]),
        ("9" * 5000, ["not a positive integer"]),
    ],
)
def test_each_error_has_its_place(text: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_topology(text)
    for part in parts:
        assert part in str(caught.value)


@given(topologies, st.sampled_from(RankOrder))
def test_ranks_are_a_permutation(topology: Topology, order: RankOrder) -> None:
    ranks = [
        topology.rank(host, x, order) for host in range(topology.hosts) for x in range(topology.ranks_per_host)
    ]  # fmt: skip
    assert sorted(ranks) == list(range(topology.size))
    assert ranks[0] == 0
    per_host = topology.ranks_per_host
    assert [topology.host_index(rank, order) for rank in ranks] == [at // per_host for at in range(topology.size)]


@given(topologies)
def test_rank_orders_equal_their_formulas(topology: Topology) -> None:
    sizes = (*topology.dims, 1)[:4]
    _, y_size, z_size, a_size = sizes
    for x in range(sizes[0]):
        for y in range(y_size):
            for z in range(z_size):
                for a in range(a_size):
                    host = (a * z_size + z) * y_size + y
                    rank = ((x * y_size + y) * z_size + z) * a_size + a
                    assert topology.rank(host, x, RankOrder.DDL) == rank
                    assert topology.rank(host, x, RankOrder.HOST) == host * sizes[0] + x
                    assert (*topology.host_coords(host), 0)[:3] == (y, z, a)
