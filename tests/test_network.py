"""The network's description, and what an allreduce costs on it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.ddl.dimensions import coords_of, peers_of
from ddlrun.ddl.schedule import Dimension, backwards, reduce_scatter
from ddlrun.errors import InputError
from ddlrun.network.cost import Model, axes_of, blocks_of
from ddlrun.network.fabric import LEVELS, Fabric, Link, parse_fabric, render_fabric
from ddlrun.topology import RankOrder, Topology
from ddlrun.ways import Way

LINKS = st.builds(
    Link,
    bandwidth=st.integers(1, 10**13).map(float),
    latency=st.integers(0, 10**6).map(lambda nanoseconds: nanoseconds / 1e9),
    payload=st.sampled_from([1, 0.5, 1448 / 1514]),
    parallel=st.integers(1, 8),
    burst=st.integers(0, 10**7),
)
COUNT = st.none() | st.integers(1, 10**6)
NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "Zs"]), min_size=1)


@given(
    st.builds(
        Fabric, st.tuples(LINKS | st.just(Link()), LINKS, *[LINKS | st.just(Link())] * 2), NAMES, NAMES, COUNT, COUNT
    )
)
def test_fabric_reads_what_it_writes(fabric: Fabric) -> None:
    again = parse_fabric(render_fabric(fabric), "a file")
    assert again._replace(links=()) == fabric._replace(links=())
    for link, other in zip(again.links, fabric.links, strict=True):
        assert link == pytest.approx(other, rel=1e-6)


def test_fabric_says_all_that_is_wrong_with_a_file() -> None:
    text = "nic: {bandwidth: fast, latency: 5, size: 3}\nhost: 12\nuplink: {payload: 2}\nhosts_per_rack: 0\nracks: 3\n"
    with pytest.raises(InputError) as caught:
        parse_fabric(text, "net.yaml")
    assert caught.value.problems == (
        f"net.yaml: key 'racks' is not known; there are {', '.join((*LEVELS, *Fabric._fields[1:]))}",
        "net.yaml: hosts_per_rack: 0 is no number of at least 1",
        "net.yaml: host: 12 is no link; write {bandwidth: 100 Gbit/s, latency: 5 us}",
        "net.yaml: nic.bandwidth: 'fast' is no rate; write it with its unit, as in 100 Gbit/s or 12.5 GB/s",
        "net.yaml: nic.latency: '5' is no time; write it with its unit, as in 5us, 120ms or 2s",
        "net.yaml: nic: key 'size' is not known; there are bandwidth, latency, payload, parallel, burst",
        "net.yaml: uplink.payload: 2 is no share; it is more than 0 and at most 1",
        "net.yaml: uplink: bandwidth is missing; write it with its unit, as in 100 Gbit/s",
    )


@pytest.mark.parametrize(("text", "said"), [
    ("- 1", "describes no network"), ("a: [", "expected"), ("name: x", "nic is missing"), ("", "describes no network"),
])  # fmt: skip
def test_what_is_no_fabric(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_fabric(text, "net.yaml")


def test_links_that_are_not_described_limit_nothing() -> None:
    fabric = parse_fabric("nic: {bandwidth: 100 Gbit/s, payload: 0.5, parallel: 2}", "net.yaml")
    assert {level: link.capacity for level, link in zip(LEVELS, fabric.links, strict=True)} == {
        "host": math.inf, "nic": 12.5e9, "uplink": math.inf, "aisle": math.inf,
    }  # fmt: skip


def moved(shape: Topology, wiring: Topology, algorithms: tuple[str, ...]) -> tuple[int, ...]:
    """Return what the links of each level carry at most, one direction, as the allreduce's own schedule says."""
    count = 12 * shape.size  # whole messages for every shape here
    blocks = blocks_of(wiring)
    left = [[0] * shape.size for _ in LEVELS]
    for rank in range(shape.size):
        coords = coords_of(shape, RankOrder.HOST, rank)
        seen = [
            Dimension(peers_of(shape, RankOrder.HOST, coords, axis), at, algorithm)
            for axis, (at, algorithm) in enumerate(zip(coords, algorithms, strict=True))
        ]
        half = reduce_scatter(seen, count)
        for step in (*half, *backwards(half)):
            for peer, low, high in step.sends:
                if rank // blocks[1] == peer // blocks[1]:
                    left[0][rank] += high - low
                for level in range(1, len(LEVELS)):
                    if rank // blocks[level] != peer // blocks[level]:
                        left[level][rank // blocks[level]] += high - low
    return tuple(max(carried) for carried in left)


SIZES = st.sampled_from(
    [(2, 2, 2), (4, 2, 1), (2, 4, 2), (1, 4, 4), (3, 2, 2), (2, 3, 2), (4, 4, 1), (2, 2, 3), (8, 1, 2)]
)


@given(SIZES, SIZES, st.data())
def test_volumes_are_those_of_the_schedule(wired: tuple[int, ...], dims: tuple[int, ...], data: st.DataObject) -> None:
    wiring = Topology(wired)
    shape = Topology(dims if math.prod(dims) == wiring.size else data.draw(st.permutations(wired).map(tuple)))
    names = data.draw(st.tuples(*[st.sampled_from(["ring", "direct", "halving"])] * 3))
    model = Model(axes_of(shape), wiring, Fabric((Link(1e9),) * 4))
    size = 12 * shape.size
    predicted = model.cost(Way("chunks", names, size, 1), size).volumes
    counted = moved(shape, wiring, names)
    halves = "halving" in names
    if not halves or (shape == wiring and all(size in (1, 2, 4, 8) for size in shape.dims)):
        assert predicted[1:] == pytest.approx(counted[1:])
    if shape == wiring and not halves:
        assert predicted[0] == pytest.approx(counted[0])
