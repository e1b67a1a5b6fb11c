"""The comparison of the dimensions with the hosts of the ranks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.ddl.bootstrap import start_learner
from ddlrun.ddl.group.dimensions import coords_of, peers_of
from ddlrun.ddl.group.order_check import describe_mismatch
from ddlrun.ddl.launch_context import LaunchContext, Options
from ddlrun.topology import RankOrder, Topology, parse_topology
from tests.ddl.test_tcp import endpoints, together

DDL, HOST = RankOrder.DDL, RankOrder.HOST
TOPOLOGIES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(lambda dims: Topology(tuple(dims)))


def describe(topology: Topology, order: RankOrder, host_of: str | list[int]) -> str:
    """Return the message for ranks on these hosts, in rank order."""
    hosts = [[rank for rank, name in enumerate(host_of) if name == host] for host in dict.fromkeys(host_of)]
    return describe_mismatch(LaunchContext(Options(), topology, order), hosts)


@given(TOPOLOGIES, st.sampled_from(RankOrder), st.data())
def test_an_order_of_ranks_is_reported_where_x_leaves_a_host(
    topology: Topology, order: RankOrder, data: st.DataObject
) -> None:
    placed = [topology.host_index(rank, order) for rank in range(topology.size)]
    assert describe(topology, order, placed) == ""
    host_of = data.draw(st.permutations(placed))
    lines = [peers_of(topology, order, coords_of(topology, order, rank), 0) for rank in range(topology.size)]
    leaves = any(len({host_of[rank] for rank in line}) > 1 for line in lines)
    assert ("leaves a host" in describe(topology, order, host_of)) == leaves


@given(TOPOLOGIES, st.integers(1, 4))
def test_hosts_may_hold_several_parts_of_the_dimensions(topology: Topology, axes: int) -> None:
    """In host order, a host may have all ranks that differ in the first dimensions alone."""
    block = math.prod(topology.dims[:axes])
    assert describe(topology, HOST, [rank // block for rank in range(topology.size)]) == ""


@pytest.mark.parametrize(
    ("shape", "order", "hosts", "problem", "remedy"),
    [
        ("2x2x2", DDL, "aabbccdd", "dimension X leaves a host in 8 of 8 steps instead of 0",
         "set DDLRUN_RANK_ORDER=host on all ranks"),
        ("2x2x2", HOST, "abcdabcd", "dimension X leaves a host in 8 of 8 steps instead of 0",
         "set DDLRUN_RANK_ORDER=ddl on all ranks"),
        ("8", DDL, "abcdabcd", "dimension X leaves a host in 8 of 8 steps instead of 4",
         "set -mode r:2x4x1 on all ranks"),
        ("2x2x2", DDL, "abcddcba", "dimension X leaves a host in 8 of 8 steps instead of 0",
         "start the ranks by the rank file of ddlrun gen-rankfile 2x2x2 HOSTS"),
        ("2x4", HOST, "abcddcba", "dimension X leaves a host in 8 of 8 steps instead of 0",
         "start the ranks by the rank file of ddlrun gen-rankfile --rank-order host 2x4x1 HOSTS"),
        ("2x2x2", HOST, "aabbaabb", "dimension Y leaves a host in 8 of 8 steps instead of 0",
         "start the ranks of a host one after another (mpirun --map-by slot) with DDLRUN_RANK_ORDER=host"),
        ("3x2", HOST, "aabbcc", "X is 3, but a host has 2 ranks", "set -mode r:2x3x1 on all ranks"),
        ("3x2", DDL, "aabbcc", "dimension X leaves a host in 6 of 6 steps instead of 4",
         "set -mode r:2x3x1 and DDLRUN_RANK_ORDER=host on all ranks"),
        ("2x3x2", HOST, "aaaabbbbcccc", "XxY is 6, but a host has 4 ranks", "set -mode r:4x3x1 on all ranks"),
        ("6", HOST, "abaabb", "dimension X leaves a host in 4 of 6 steps instead of 2",
         "start the ranks of a host one after another (mpirun --map-by slot) with DDLRUN_RANK_ORDER=host"),
        ("2x3", HOST, "abaaab", "dimension X leaves a host in 4 of 6 steps instead of 0",
         "start the ranks of a host one after another (mpirun --map-by slot) with DDLRUN_RANK_ORDER=host"),
    ],
)  # fmt: skip
def test_the_message_names_the_dimension_and_the_remedy(
    shape: str, order: RankOrder, hosts: str, problem: str, remedy: str
) -> None:
    topology = parse_topology(shape)
    begin = f"{topology} in {order.value} order does not match the hosts, so reductions are slow: "
    assert describe(topology, order, hosts) == f"{begin}{problem}; {remedy}"


@pytest.mark.parametrize(
    ("shape", "hosts"),
    [
        ("8", "aabbccdd"),
        ("2x2x2", "a" * 8),
        ("2x2x2", "abcdefgh"),
        ("2x3", "aaaabb"),
        ("4x2", "aabbccdd"),
        ("4", "aaab"),
    ],
)
def test_dimensions_that_match_in_host_order(shape: str, hosts: str) -> None:
    assert describe(parse_topology(shape), HOST, hosts) == ""


@pytest.mark.parametrize(("order", "lines"), [({}, 1), ({"DDLRUN_RANK_ORDER": "host"}, 0)])
def test_rank_0_reports_it_over_tcp(order: dict[str, str], lines: int, capfd: pytest.CaptureFixture[str]) -> None:
    with endpoints(4, hosts="aabb") as made:
        ends = together(made, lambda comm: start_learner("-mode r:2x2", comm, None, order).grid.coords)
    assert len({*ends}) == 4
    assert capfd.readouterr().err == "".join(
        f"ddlrun.ddl: {describe(Topology((2, 2)), DDL, 'aabb')}\n" for _ in range(lines)
    )
