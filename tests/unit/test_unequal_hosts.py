"""Hosts with different numbers of ranks: text, ranks, placement, rank file, the ranks' environment and lint."""

import json
import math
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.ddl.group.dimensions import coords_of
from ddlrun.environment.frameworks import Rendezvous, plan_framework_variables
from ddlrun.environment.placement_variables import render_rank_variables
from ddlrun.errors import InputError, PlacementError
from ddlrun.hosts import Host, HostList, parse_hosts
from ddlrun.keeper.binding import parse_binding
from ddlrun.keeper.framework_environment import set_framework_variables
from ddlrun.keeper.host_position import RankPositions
from ddlrun.mapping.lint_findings import LintCode
from ddlrun.mapping.placement import Placement, place
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.mapping.rack_layout import arrange
from ddlrun.mapping.rankfile import RankFileLine, parse, render
from ddlrun.mapping.rankfile_entries import parse_places
from ddlrun.mapping.rankfile_lint import lint
from ddlrun.mapping.slot_notation import render_slots
from ddlrun.mapping.topology_request import TopologyRequest, choose_topology
from ddlrun.topology import (
    JobTopology,
    RankOrder,
    Topology,
    UnequalTopology,
    ddl_topology,
    parse_job_topology,
    parse_topology,
)
from tests.support.shapes import MACHINES, machine

SIZES = st.lists(st.integers(1, 4), min_size=2, max_size=7).filter(lambda sizes: len(set(sizes)) > 1)
TOPOLOGIES = SIZES.map(UnequalTopology)


def placed_on(topology: UnequalTopology, name: str) -> Placement:
    """Return the placement on hosts h0, h1, ... of one kind of machine, which have a core for each rank."""
    names = [f"h{number}" for number in range(topology.hosts)]
    host_list = HostList(tuple(map(Host, names)), "test")
    return place(topology, host_list, dict.fromkeys(names, machine(name)), RankOrder.HOST, PlacementPolicy(strict=True))


def slots_of(topology: UnequalTopology) -> HostList:
    return HostList(tuple(Host(f"h{number}", size) for number, size in enumerate(topology.local_sizes)), "-H")


@given(TOPOLOGIES)
def test_text_and_value_are_inverses(topology: UnequalTopology) -> None:
    assert parse_job_topology(str(topology)) == topology
    with pytest.raises(InputError, match="by their slots"):
        parse_topology(str(topology))


@pytest.mark.parametrize(
    ("sizes", "text"), [((4, 2), "4+2"), ((2, 2, 2, 1), "3*2+1"), ((1, 2, 1), "1+2+1"), ((1,) * 10 + (12,), "10*1+12")]
)
def test_text(sizes: tuple[int, ...], text: str) -> None:
    assert str(UnequalTopology(sizes)) == text


@pytest.mark.parametrize("text", ["4+", "4+x", "0+2", "2+2", "4+2x2", "2*+1", "1000000000*1+2", "9*9999999*1+1"])
def test_text_of_no_hosts_is_an_error(text: str) -> None:
    with pytest.raises(InputError):
        parse_job_topology(text, "DDLRUN_TOPOLOGY")


def positions_in(topology: JobTopology, order: RankOrder) -> RankPositions:
    return RankPositions({"DDLRUN_TOPOLOGY": str(topology), "DDLRUN_RANK_ORDER": order.value})


@given(TOPOLOGIES)
def test_ranks_are_contiguous_on_each_host(topology: UnequalTopology) -> None:
    on_hosts = [topology.ranks_of(host, RankOrder.HOST) for host in range(topology.hosts)]
    positions = positions_in(topology, RankOrder.HOST)
    assert [rank for ranks in on_hosts for rank in ranks] == list(range(topology.size))
    assert tuple(map(len, on_hosts)) == topology.local_sizes
    for host, ranks in enumerate(on_hosts):
        for local_rank, rank in enumerate(ranks):
            assert topology.host_index(rank, RankOrder.HOST) == host
            assert topology.rank(host, local_rank, RankOrder.HOST) == rank
            assert positions.find(rank) == (host, local_rank)
    assert positions.all() == [
        (host, local_rank) for host, ranks in enumerate(on_hosts) for local_rank in range(len(ranks))
    ]
    assert tuple(positions.host_sizes) == topology.local_sizes


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.sampled_from(RankOrder))
def test_a_rank_finds_its_host_in_a_topology_of_dimensions(x: int, y: int, z: int, order: RankOrder) -> None:
    topology = Topology((x, y, z))
    positions = positions_in(topology, order)
    places = positions.all()
    assert positions.host_sizes == [x] * (y * z)
    for host in range(topology.hosts):
        assert [places[rank] for rank in topology.ranks_of(host, order)] == [(host, local) for local in range(x)]


@given(TOPOLOGIES)
def test_dimension_x_of_ddl_never_leaves_a_host(topology: UnequalTopology) -> None:
    dims = ddl_topology(topology)
    assert (dims.size, dims.ranks_per_host) == (topology.size, math.gcd(*topology.local_sizes))
    for rank in range(0, topology.size, dims.ranks_per_host):
        part = range(rank, rank + dims.ranks_per_host)
        assert len({topology.host_index(other, RankOrder.HOST) for other in part}) == 1
        assert [coords_of(dims, RankOrder.HOST, other)[0] for other in part] == list(range(dims.ranks_per_host))


@given(TOPOLOGIES, st.sampled_from(sorted(MACHINES)))
def test_rank_file_and_placement_are_inverses(topology: UnequalTopology, name: str) -> None:
    described = machine(name)
    if topology.largest > len(described.cores):
        with pytest.raises(PlacementError, match=re.escape(f"{topology} puts {topology.largest} ranks on a host")):
            placed_on(topology, name)
        return
    placed = placed_on(topology, name)
    text = "".join(render(placed, "test"))
    assert parse(text) == tuple(
        RankFileLine(rank.rank, rank.host.name, render_slots(rank.binding.cores, described) or "none")
        for rank in placed.by_host()
    )
    assert parse_places(text, lambda _: described) == {
        rank.rank: (rank.host.name, rank.binding.cores) for rank in placed.by_host()
    }
    findings = lint(text, lambda _: described, topology.size, placed.hosts.names)
    assert not [finding for finding in findings if finding.error]
    assert LintCode.UNEQUAL_HOSTS in {finding.code for finding in findings}


@given(TOPOLOGIES)
def test_hosts_of_one_size_and_machine_share_their_placement(topology: UnequalTopology) -> None:
    groups = placed_on(topology, "minsky").groups()
    assert len(groups) == len(set(topology.local_sizes))
    for indexes, _, bindings in groups:
        assert {topology.local_size(index) for index in indexes} == {len(bindings)}


@given(TOPOLOGIES)
def test_each_rank_finds_its_binding_and_the_variables_of_its_frameworks(topology: UnequalTopology) -> None:
    placed = placed_on(topology, "minsky")
    addresses = tuple(f"10.0.0.{number}" for number in range(topology.hosts))
    shared = plan_framework_variables(("torch", "tensorflow"), placed, Rendezvous(addresses, 20000), (), {})
    variables = render_rank_variables(placed, "p") | shared.rendezvous | shared.ranks | {"DDLRUN_PORTS": ""}
    assert variables["DDL_OPTIONS"] == f"-mode p:{ddl_topology(topology)}"
    workers = [f"{addresses[host]}:{20002 + local}" for host, local in positions_in(topology, RankOrder.HOST).all()]
    for rank in placed.by_host():
        local_rank, host = rank.binding.local_rank, placed.hosts.names.index(rank.host.name)
        found = parse_binding(variables, rank.rank, local_rank, topology.size)
        assert found is not None
        assert found.threads == rank.binding.threads
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "environ", {**os.environ, **variables})
            set_framework_variables(rank.rank, local_rank, topology.size)
            names = "RANK LOCAL_RANK LOCAL_WORLD_SIZE WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE".split()
            values = [int(os.environ[name]) for name in names]
            config = json.loads(os.environ["TF_CONFIG"])
        assert values == [rank.rank, local_rank, topology.local_size(host), topology.size, host, topology.hosts]
        assert config == {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank.rank}}


@given(TOPOLOGIES, st.data())
def test_np_fills_the_slots_of_each_host_in_turn(topology: UnequalTopology, data: st.DataObject) -> None:
    processes = data.draw(st.integers(1, topology.size))
    hosts = slots_of(topology)
    layout = arrange(TopologyRequest(processes=processes), hosts)
    chosen, _ = choose_topology(layout.request, layout.hosts, {})
    sizes = [chosen.local_size(index) for index in range(chosen.hosts)]
    assert sum(sizes) == processes
    share, left = divmod(processes, len(sizes))
    slots = topology.local_sizes[: len(sizes)]
    if not left and share <= min(slots):
        assert sizes == [share] * len(sizes)
        return
    assert (*sizes[:-1],) == slots[:-1]
    assert 0 < sizes[-1] <= slots[-1]
    assert [host.name for host in layout.left_out] == list(hosts.names[len(sizes) :])


def test_slots_that_stay_unused_are_noted() -> None:
    hosts = parse_hosts("a:4,b:2,c:2", "-H")
    machines = dict.fromkeys(hosts.names, machine("4x6"))
    topology, reason = choose_topology(TopologyRequest(processes=7), hosts, machines)
    assert (str(topology), str(reason)) == ("4+2+1", "-np 7 over the slots of -H")
    placed = place(topology, hosts, machines, RankOrder.HOST)
    assert "c: 1 of 2 slots unused" in placement_notes(placed)
    equal = place(parse_topology("2x3"), hosts, machines, RankOrder.HOST)
    assert "a: 2 of 4 slots unused" in placement_notes(equal)
    same = place(parse_topology("1x2"), parse_hosts("a:4,b:4"), machines, RankOrder.HOST)
    assert not [note for note in placement_notes(same) if "slot" in note]


def test_hosts_that_get_no_rank_are_left_out_with_a_note() -> None:
    layout = arrange(TopologyRequest(processes=3), parse_hosts("a:2,b:1,n[1-3]:4", "-H"))
    assert layout.hosts.names == ("a", "b")
    assert [str(note) for note in layout.notes] == [
        "left out, as the slots of the other hosts take all ranks of -np 3: n[1-3]"
    ]
