import re

import pytest

from ddlrun.errors import InputError
from ddlrun.hosts import parse_hosts
from ddlrun.machine import Machine
from ddlrun.machine.preset import parse_machine
from ddlrun.mapping.topology_request import TopologyRequest, check_request, choose_topology
from ddlrun.topology import parse_topology
from tests.support.shapes import machine

GPUS = parse_machine("{packages: 2, cores_per_package: 10, gpus: 4}", "gpus")
NUMA = parse_machine("{packages: 2, cores_per_package: 8, numa_per_package: 4}", "numa")


def chosen(choice: TopologyRequest, hosts: str, described: Machine) -> tuple[str, str]:
    listed = parse_hosts(hosts, "-H")
    topology, reason = choose_topology(choice, listed, dict.fromkeys(listed.names, described))
    return str(topology), reason.accelerators


@pytest.mark.parametrize(
    ("choice", "hosts", "described", "topology", "reason"),
    [
        (TopologyRequest(), "a", GPUS, "4x1x1", "one rank per GPU"),
        (TopologyRequest(), "a", machine("4x6"), "4x1x1", "one rank per package"),
        (TopologyRequest(), "a,b", GPUS, "4x2x1", "one rank per GPU"),
        (TopologyRequest(), "a:2,b:2", GPUS, "2x2x1", "the slots of -H"),
        (TopologyRequest(processes=4), "a:2,b:2", GPUS, "2x2x1", "-np 4 over 2 hosts"),
        (TopologyRequest(processes=2), "a:4", GPUS, "2x1x1", "-np 2 over 1 host"),
        (TopologyRequest(accelerators="core"), "a", machine("1x2"), "2x1x1", "--accelerators core"),
        (TopologyRequest(accelerators="package"), "a", machine("4x6"), "4x1x1", "--accelerators package"),
        (TopologyRequest(accelerators="numa"), "a", NUMA, "8x1x1", "--accelerators numa"),
        (TopologyRequest(accelerators="gpu"), "a", GPUS, "4x1x1", "--accelerators gpu"),
        (TopologyRequest(accelerators=3), "a,b", GPUS, "3x2x1", "--accelerators 3"),
        (TopologyRequest(accelerators=2, racks=3), "n[1-6]", GPUS, "2x2x3", "--accelerators 2"),
        (TopologyRequest(accelerators=2, nodes=2), "n[1-6]", GPUS, "2x2x3", "--accelerators 2"),
        (TopologyRequest(accelerators=1, racks=2, aisles=2), "n[1-8]", GPUS, "1x2x2x2", "--accelerators 1"),
        (TopologyRequest(accelerators=1, nodes=2, racks=2, aisles=2), "n[1-8]", GPUS, "1x2x2x2", "--accelerators 1"),
        (TopologyRequest(topology=parse_topology("4x2x3")), "n[1-6]", GPUS, "4x2x3", "--topology 4x2x3"),
        (
            TopologyRequest(topology=parse_topology("4x2x3"), processes=24, nodes=2),
            "n[1-6]:4",
            GPUS,
            "4x2x3",
            "--topology",
        ),
    ],
)
def test_chosen(choice: TopologyRequest, hosts: str, described: Machine, topology: str, reason: str) -> None:
    result, reason_text = chosen(choice, hosts, described)
    assert result == topology
    assert reason_text.startswith(reason)


@pytest.mark.parametrize(
    ("choice", "hosts", "both"),
    [
        (TopologyRequest(topology=parse_topology("4x2")), "a,b,c", ["4x2x1 needs 2 hosts", "3 are there (-H: a,b,c)"]),
        (
            TopologyRequest(topology=parse_topology("4x2"), processes=6),
            "a,b",
            ["4x2x1 means 8 ranks", "-np 6 means 6"],
        ),
        (
            TopologyRequest(topology=parse_topology("4x2"), accelerators=2),
            "a,b",
            ["means X = 4", "--accelerators 2 means X = 2"],
        ),
        (TopologyRequest(topology=parse_topology("4x2"), racks=2), "a,b", ["means Z = 1", "--racks 2 means Z = 2"]),
        (
            TopologyRequest(processes=8, accelerators=2),
            "a,b",
            ["--accelerators 2 means X = 2", "-np 8 over 2 hosts means X = 4"],
        ),
        (TopologyRequest(processes=3), "a,b", ["-np 3", "2 hosts (a,b)", "use 2 or 4"]),
        (TopologyRequest(processes=1), "a,b", ["-np 1", "2 hosts (a,b)", "use 2,"]),
        (TopologyRequest(), "a:2,b:4", ["a:2, b:4", "--accelerators N"]),
        (TopologyRequest(), "a:2,b", ["a:2, b:?"]),
        (TopologyRequest(accelerators=1, racks=2), "a,b,c", ["--racks 2", "3 are there (a,b,c)"]),
        (TopologyRequest(accelerators=1, nodes=1, racks=2), "n[1-4]", ["--nodes 1 --racks 2", "4 are there (n[1-4])"]),
        (TopologyRequest(topology=parse_topology("4")), "a:2", ["4x1x1 puts 4 ranks", "a offers 2 slots"]),
    ],
)
def test_a_contradiction_shows_both_sides_before_any_host_is_probed(
    choice: TopologyRequest, hosts: str, both: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        check_request(choice, parse_hosts(hosts, "-H"))
    for part in both:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "both"),
    [
        (
            TopologyRequest(topology=parse_topology("2"), accelerators="gpu"),
            ["2x1x1 means X = 2", "--accelerators gpu means X = 4"],
        ),
        (
            TopologyRequest(processes=1, accelerators="package"),
            ["-np 1 over 1 host means X = 1", "package means X = 2"],
        ),
    ],
)
def test_a_contradiction_with_the_machine(choice: TopologyRequest, both: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        chosen(choice, "a", GPUS)
    for part in both:
        assert part in str(caught.value)


def test_hosts_that_differ_are_shown() -> None:
    with pytest.raises(InputError, match=re.escape("a has 4, b has 0")):
        choose_topology(TopologyRequest(accelerators="gpu"), parse_hosts("a,b"), {"a": GPUS, "b": NUMA})


def test_no_gpu_is_an_error_that_names_the_host() -> None:
    with pytest.raises(InputError, match="a has no gpu"):
        chosen(TopologyRequest(accelerators="gpu"), "a", NUMA)


def test_hosts_of_which_one_has_no_gpu_get_one_rank_per_package() -> None:
    topology, _ = choose_topology(TopologyRequest(), parse_hosts("a,b"), {"a": GPUS, "b": NUMA})
    assert str(topology) == "2x2x1"
