"""Failed hosts are replaced, or the topology shrinks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList
from ddlrun.mapping.spare_hosts import HostAssignment, replace_hosts
from ddlrun.mapping.topology_request import TopologyRequest, choose_topology
from ddlrun.plan.settings import shrink_request
from ddlrun.topology import Topology


def assignment(per_rack: int, racks: int, spares: int = 0) -> HostAssignment:
    names = [f"r{rack}n{place}" for rack in range(racks) for place in range(per_rack)]
    spare_hosts = tuple(Host(f"s{number}") for number in range(spares))
    return HostAssignment(HostList(tuple(Host(name, 4) for name in names), "test"), spare_hosts, racks)


def test_a_spare_takes_the_place_and_the_slots() -> None:
    after = replace_hosts(assignment(2, 2, 2), {"r0n1": "gone", "s0": "gone too"}, None)
    assert after.hosts.names == ("r0n0", "s1", "r1n0", "r1n1")
    assert [host.slots for host in after.hosts] == [4] * 4
    assert (after.spares, after.notes) == ((), ("s1 takes the place of r0n1: gone",))


@pytest.mark.parametrize(
    ("bad", "least", "shape", "hosts"),
    [
        (["r1n0"], "1x1", (2, 1), ["r0n0", "r0n1"]),
        (["r1n0"], "1x1x2", (1, 2), ["r0n0", "r1n1"]),
        (["r0n0", "r1n1"], "1x1", (1, 2), ["r0n1", "r1n0"]),
        (["r0n0", "r0n1"], "1x1", (2, 1), ["r1n0", "r1n1"]),
    ],
)
def test_without_spares_it_shrinks(bad: list[str], least: str, shape: tuple[int, int], hosts: list[str]) -> None:
    topology = Topology(tuple(map(int, least.split("x"))))
    after = replace_hosts(assignment(2, 2), dict.fromkeys(bad, "gone"), topology)
    assert ((after.per_rack, after.racks), list(after.hosts.names)) == (shape, hosts)


def test_too_few_hosts_are_an_error() -> None:
    with pytest.raises(InputError, match="nothing takes the place of r0n0; name --spare-hosts, or allow fewer"):
        replace_hosts(assignment(2, 1), {"r0n0": "gone"}, None)
    with pytest.raises(InputError, match="fewer hosts than --min-topology 1x2x1 needs"):
        replace_hosts(assignment(2, 1), {"r0n0": "gone"}, Topology((1, 2)))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.sets(st.integers(0, 15)))
def test_racks_stay_equal_and_hosts_are_used_or_spare(per_rack: int, racks: int, spares: int, gone: set[int]) -> None:
    before = assignment(per_rack, racks, spares)
    bad = {name: "gone" for number, name in enumerate(before.hosts.names) if number in gone}
    if len(bad) == len(before.hosts) and not spares:
        return
    after = replace_hosts(before, bad, Topology((1, 1)))
    assert len(after.hosts) == after.per_rack * after.racks
    assert not {*after.hosts.names} & {*bad}
    present = {*before.hosts.names, *(host.name for host in before.spares)} - {*bad}
    assert {*after.hosts.names, *(host.name for host in after.spares)} <= present
    if len(bad) <= spares:
        assert len(after.hosts) == len(before.hosts)


@pytest.mark.parametrize(
    ("request_", "slots", "left", "topology"),
    [
        (TopologyRequest(processes=6), (4, 2), [0], "4x1x1"),  # the slots of the host that is left
        (TopologyRequest(processes=6), (4, 2), [1], "2x1x1"),
        (TopologyRequest(processes=7), (4, 2, 1), [0, 2], "4+1"),
        (TopologyRequest(processes=4), (4, 2), [0], "2x1x1"),  # 2 ranks per host
        (TopologyRequest(), (4, 2, 1), [1, 2], "2+1"),
        (TopologyRequest(ranks_per_host=1), (4, 2, 1), [1, 2], "1x2x1"),
        (TopologyRequest(topology=Topology((2, 2))), (4, 2), [1], "2x1x1"),
    ],
)
def test_unequal_hosts_that_are_left_keep_their_slots(
    request_: TopologyRequest, slots: tuple[int, ...], left: list[int], topology: str
) -> None:
    hosts = HostList(tuple(Host(f"h{number}", count) for number, count in enumerate(slots)), "-H")
    after = HostAssignment(hosts.take(hosts.hosts[number] for number in left), (), 1)
    request = shrink_request(request_, after, hosts)
    assert str(choose_topology(request, after.hosts, {})[0]) == topology
