"""Blocks of reduce-scatter and allgather, and the dimensions of a process group."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.ddl.group.block_chunks import ArrayBlocks
from ddlrun.ddl.group.dimensions import GroupDimensions, find_dimensions
from ddlrun.ddl.schedules.partition import block_bounds, chunk_ranges
from ddlrun.ddl.selection.unequal_links import HostGroups, make_layout
from ddlrun.errors import InputError


@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 40))
def test_chunks_hold_the_same_part_of_every_block(count: int, parts: int, longest: int) -> None:
    """Within a chunk the blocks lie as in an array of the chunk's length."""
    array = np.arange(count)
    blocks, copy = ArrayBlocks(array, parts), np.full(count, -1)
    rows = list(itertools.pairwise(block_bounds(count, parts)))
    for low, high in chunk_ranges(blocks.longest, longest):
        chunk = np.empty(blocks.count(low, high), array.dtype)
        blocks.load(low, high, chunk)
        for (start, end), (first, last) in zip(rows, itertools.pairwise(block_bounds(len(chunk), parts)), strict=True):
            assert chunk[first:last].tolist() == array[start:end][low:high].tolist()
        ArrayBlocks(copy, parts).store(low, high, chunk)
    assert (copy == array).all()


def test_blocks_in_another_order() -> None:
    array, copy, chunk = np.arange(12), np.zeros(12, int), np.empty(6, int)
    ArrayBlocks(array, 3, [2, 0, 1]).load(1, 3, chunk)
    assert chunk.tolist() == [9, 10, 1, 2, 5, 6]
    ArrayBlocks(copy, 3, [2, 0, 1]).store(1, 3, chunk)
    assert copy.tolist() == [0, 1, 2, 0, 0, 5, 6, 0, 0, 9, 10, 0]


def peers_of(group: GroupDimensions) -> list[tuple[int, ...]]:
    """Return the members of the dimensions that have several."""
    return [dimension.peers for dimension in group.dimensions("r").values() if len(dimension.peers) > 1]


HOSTS = ("a", "a", "b", "b", "c", "c", "d", "d")
LAUNCHED = {"DDLRUN_TOPOLOGY": "2x2x2", "DDLRUN_RANK_ORDER": "host"}


@pytest.mark.parametrize(
    ("hosts", "environ", "peers", "order"),
    [
        (HOSTS, {}, [(2, 3), (1, 3, 5, 7)], [0, 2, 4, 6, 1, 3, 5, 7]),
        (HOSTS, LAUNCHED, [(2, 3), (1, 3), (3, 7)], [0, 4, 2, 6, 1, 5, 3, 7]),
        (HOSTS, LAUNCHED | {"DDLRUN_TOPOLOGY": "4x2"}, [(2, 3), (1, 3, 5, 7)], [0, 2, 4, 6, 1, 3, 5, 7]),
        (HOSTS[:4], LAUNCHED, [(2, 3), (1, 3)], [0, 2, 1, 3]),
        (("a", "a", "a", "a", "b", "b"), {}, [(2, 3), (1, 3, 5)], [0, 2, 4, 1, 3, 5]),
        (HOSTS[:5], {}, [(0, 1, 2, 3, 4)], [0, 1, 2, 3, 4]),
        (HOSTS, LAUNCHED | {"DDLRUN_TOPOLOGY": "3*2+2"}, [(2, 3), (1, 3, 5, 7)], [0, 2, 4, 6, 1, 3, 5, 7]),
    ],
)
def test_groups_follow_the_topology_or_the_hosts(
    hosts: tuple[str, ...], environ: dict[str, str], peers: list[tuple[int, ...]], order: list[int]
) -> None:
    group, _ = find_dimensions(hosts, range(len(hosts)), rank=3, environ=environ)
    assert (peers_of(group), sorted(group.ranks, key=group.index_of)) == (peers, order)


@pytest.mark.parametrize(
    ("numbers", "peers"),
    [((0, 2, 4, 6), [(0, 1), (0, 2)]), ((0, 1, 4, 5), [(0, 1), (0, 2)]), ((2, 4, 6), [(0, 1, 2)])],
)
def test_a_group_of_some_ranks_has_the_racks_of_the_job(numbers: tuple[int, ...], peers: list[tuple[int, ...]]) -> None:
    group, _ = find_dimensions([HOSTS[number] for number in numbers], numbers, rank=0, environ=LAUNCHED)
    assert peers_of(group) == peers


@pytest.mark.parametrize(
    ("hosts", "environ", "ranks", "racks"),
    [
        (("b", "a", "a"), {}, ((0,), (1, 2)), 1),
        (("a", "b", "c"), {"DDLRUN_RACKS": "2+1"}, ((0,), (1,), (2,)), 2),
        (("a", "b", "a", "c"), LAUNCHED | {"DDLRUN_RACKS": "1+2"}, ((0, 2), (1,), (3,)), 2),
        (("a", "b"), {"DDLRUN_RACKS": "2+1"}, None, 0),  # a part of the job
        (("a", "b"), {}, None, 0),
    ],
)
def test_groups_on_unequal_hosts_or_racks_have_a_layout(
    hosts: tuple[str, ...], environ: dict[str, str], ranks: tuple[tuple[int, ...], ...] | None, racks: int
) -> None:
    _, found = find_dimensions(hosts, range(len(hosts)), rank=0, environ=environ)
    layout = make_layout("", found, is_part=False)
    assert (layout and layout.hosts) == ranks
    assert layout is None or len(layout.shares.racks) == racks


FAST_AND_SLOW = HostGroups(((0,), (1,), (2,)), (3,))


def test_a_group_has_blocks_sized_by_the_links() -> None:
    layout = make_layout("nics=2*100+50", FAST_AND_SLOW, is_part=True)
    assert layout is not None
    shares = layout.shares.hosts[0]
    assert shares[2] < shares[0] == shares[1]


def test_the_links_of_other_hosts_count_only_in_parts_of_the_job() -> None:
    text = "nics=3*100+50"
    assert make_layout(text, FAST_AND_SLOW, is_part=True) is None
    with pytest.raises(InputError, match="4 NICs, but the job has 3"):
        make_layout(text, FAST_AND_SLOW, is_part=False)
    with pytest.raises(InputError, match="'nic=3' is not NAME=NUMBERS"):
        make_layout("nic=3", FAST_AND_SLOW, is_part=True)
