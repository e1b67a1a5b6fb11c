import re

import pytest

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, parse_hosts
from ddlrun.machine import Machine
from ddlrun.machine.preset import parse_machine
from ddlrun.mapping.placement import check_hosts
from ddlrun.mapping.topology_request import TopologyRequest, check_request, choose_topology
from ddlrun.topology import parse_topology
from tests.support.shapes import machine

GPUS = parse_machine("{packages: 2, cores_per_package: 10, gpus: 4}", "gpus")
NUMA = parse_machine("{packages: 2, cores_per_package: 8, numa_per_package: 4}", "numa")


def chosen(choice: TopologyRequest, hosts: str, described: Machine) -> tuple[str, str]:
    listed = parse_hosts(hosts, "-H")
    topology, reason = choose_topology(choice, listed, dict.fromkeys(listed.names, described))
    return str(topology), reason.ranks_per_host


@pytest.mark.parametrize(
    ("choice", "hosts", "described", "topology", "reason"),
    [
        (TopologyRequest(), "a", GPUS, "4x1x1", "one rank per GPU"),
        (TopologyRequest(), "a", machine("4x6"), "4x1x1", "one rank per package"),
        (TopologyRequest(), "a,b", GPUS, "4x2x1", "one rank per GPU"),
        (TopologyRequest(), "a:2,b:2", GPUS, "2x2x1", "the slots of -H"),
        (TopologyRequest(processes=4), "a:2,b:2", GPUS, "2x2x1", "-np 4 over 2 hosts"),
        (TopologyRequest(processes=2), "a:4", GPUS, "2x1x1", "-np 2 over 1 host"),
        (TopologyRequest(processes=6), "a:4,b:2", GPUS, "4+2", "-np 6 over the slots of -H"),
        (TopologyRequest(processes=5), "a:4,b:2", GPUS, "4+1", "-np 5 over the slots of -H"),
        (TopologyRequest(processes=5), "a:4,b:4", GPUS, "4+1", "-np 5 over the slots of -H"),
        (TopologyRequest(processes=4), "a:4,b:2", GPUS, "2x2x1", "-np 4 over 2 hosts"),
        (TopologyRequest(processes=6), "a,b", GPUS, "3x2x1", "-np 6 over 2 hosts"),
        (TopologyRequest(), "a:4,b:2", GPUS, "4+2", "the slots of -H"),
        (TopologyRequest(), "n[1-3]:2,m:1", GPUS, "3*2+1", "the slots of -H"),
        (TopologyRequest(ranks_per_host=2), "a:4,b:2", GPUS, "2x2x1", "--ranks-per-host 2"),
        (TopologyRequest(topology=parse_topology("2x2")), "a:4,b:2", GPUS, "2x2x1", "--topology 2x2x1"),
        (TopologyRequest(ranks_per_host="core"), "a", machine("1x2"), "2x1x1", "--ranks-per-host core"),
        (TopologyRequest(ranks_per_host="package"), "a", machine("4x6"), "4x1x1", "--ranks-per-host package"),
        (TopologyRequest(ranks_per_host="numa"), "a", NUMA, "8x1x1", "--ranks-per-host numa"),
        (TopologyRequest(ranks_per_host="gpu"), "a", GPUS, "4x1x1", "--ranks-per-host gpu"),
        (TopologyRequest(ranks_per_host=3), "a,b", GPUS, "3x2x1", "--ranks-per-host 3"),
        (TopologyRequest(ranks_per_host=2, racks=3), "n[1-6]", GPUS, "2x2x3", "--ranks-per-host 2"),
        (TopologyRequest(ranks_per_host=2, nodes=2), "n[1-6]", GPUS, "2x2x3", "--ranks-per-host 2"),
        (TopologyRequest(ranks_per_host=1, racks=2, aisles=2), "n[1-8]", GPUS, "1x2x2x2", "--ranks-per-host 1"),
        (
            TopologyRequest(ranks_per_host=1, nodes=2, racks=2, aisles=2),
            "n[1-8]",
            GPUS,
            "1x2x2x2",
            "--ranks-per-host 1",
        ),
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
        (TopologyRequest(topology=parse_topology("4x2")), "a,b,c", ["needs 2 hosts", "the job has 3 (-H: a,b,c)"]),
        (
            TopologyRequest(topology=parse_topology("4x2"), processes=6),
            "a,b",
            ["4x2x1 means 8 ranks", "-np 6 means 6"],
        ),
        (
            TopologyRequest(topology=parse_topology("4x2"), ranks_per_host=2),
            "a,b",
            ["means X = 4", "--ranks-per-host 2 means X = 2"],
        ),
        (TopologyRequest(topology=parse_topology("4x2"), racks=2), "a,b", ["means Z = 1", "--racks 2 means Z = 2"]),
        (
            TopologyRequest(processes=8, ranks_per_host=2),
            "a,b",
            ["--ranks-per-host 2 means X = 2", "-np 8 over 2 hosts means X = 4"],
        ),
        (TopologyRequest(processes=3), "a,b", ["-np 3", "2 hosts (a,b)", "use 2 or 4"]),
        (TopologyRequest(processes=1), "a,b", ["-np 1", "2 hosts (a,b)", "use 2,"]),
        (TopologyRequest(processes=7), "a:4,b:2", ["-np 7", "a,b have 6 slots (-H)", "use -np 6 or less"]),
        (TopologyRequest(processes=7), "a:4,b", ["-np 7 does not divide equally", "-H HOST:N,HOST:M"]),
        (
            TopologyRequest(processes=7, ranks_per_host=2),
            "a:4,b:3",
            ["--ranks-per-host 2 means X = 2", "means 7 ranks"],
        ),
        (TopologyRequest(topology=parse_topology("3x2")), "a:4,b:2", ["b offers 2 slots", "2x2x1 would fit"]),
        (TopologyRequest(), "a:2,b", ["a:2, b:?", "--ranks-per-host N"]),
        (TopologyRequest(ranks_per_host=1, racks=2), "a,b,c", ["--racks 2", "the job has 3 (a,b,c)"]),
        (TopologyRequest(ranks_per_host=1, nodes=1, racks=2), "n[1-4]", ["--nodes 1 --racks 2", "job has 4 (n[1-4])"]),
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
            TopologyRequest(topology=parse_topology("2"), ranks_per_host="gpu"),
            ["2x1x1 means X = 2", "--ranks-per-host gpu means X = 4"],
        ),
        (
            TopologyRequest(processes=1, ranks_per_host="package"),
            ["-np 1 over 1 host means X = 1", "package means X = 2"],
        ),
    ],
)
def test_a_contradiction_with_the_machine(choice: TopologyRequest, both: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        chosen(choice, "a", GPUS)
    for part in both:
        assert part in str(caught.value)


def test_a_host_without_a_gpu_is_named() -> None:
    with pytest.raises(InputError, match=re.escape("--ranks-per-host gpu: b has no gpu (2 packages")):
        choose_topology(TopologyRequest(ranks_per_host="gpu"), parse_hosts("a,b"), {"a": GPUS, "b": NUMA})


MACHINES = {"a": GPUS, "b": parse_machine("{packages: 4, cores_per_package: 2, gpus: 2}", "two")}


@pytest.mark.parametrize(
    ("request_", "hosts", "topology", "reason"),
    [
        (TopologyRequest(), "a,b", "4+2", "one rank per GPU"),
        (TopologyRequest(ranks_per_host="gpu"), "a,b", "4+2", "--ranks-per-host gpu"),
        (TopologyRequest(ranks_per_host="gpu", processes=6), "a,b", "4+2", "--ranks-per-host gpu"),
        (
            TopologyRequest(ranks_per_host="gpu", gpus=3),
            "a,b",
            "3+2",
            "--ranks-per-host gpu that the scheduler allocated",
        ),
        (TopologyRequest(ranks_per_host="gpu", gpus=2), "a,b", "2x2x1", "--ranks-per-host gpu that the scheduler"),
        (TopologyRequest(ranks_per_host="package"), "a,b", "2+4", "--ranks-per-host package"),
        (TopologyRequest(ranks_per_host="core"), "b,a", "8+20", "--ranks-per-host core"),
    ],
)
def test_each_host_has_its_own_units(request_: TopologyRequest, hosts: str, topology: str, reason: str) -> None:
    chosen_topology, chosen_reason = choose_topology(request_, parse_hosts(hosts, "-H"), MACHINES)
    assert str(chosen_topology) == topology
    assert chosen_reason.ranks_per_host.startswith(reason)


def test_slots_that_are_cores_limit_the_gpus() -> None:
    def choose(slots: dict[str, int]) -> str:
        hosts = tuple(Host(name, count) for name, count in slots.items())
        listed = HostList(hosts, "PE_HOSTFILE", slots_are_capacity=True)
        return str(choose_topology(TopologyRequest(), listed, MACHINES)[0])

    assert choose({"a": 16, "b": 8}) == "4+2"
    assert choose({"a": 4, "b": 1}) == "4+1"  # too few for the GPUs: the slots are ranks


def test_units_and_the_number_of_ranks_must_agree() -> None:
    with pytest.raises(InputError, match=re.escape("--ranks-per-host gpu means 4+2 ranks, but -np 5 means 5 ranks; ")):
        choose_topology(TopologyRequest(ranks_per_host="gpu", processes=5), parse_hosts("a,b"), MACHINES)
    hosts = parse_hosts("a:4,b:1", "-H")
    topology, _ = choose_topology(TopologyRequest(ranks_per_host="gpu"), hosts, MACHINES)
    with pytest.raises(InputError, match=re.escape("topology 4+2 puts 2 ranks on a host, but b offers 1 slot")):
        check_hosts(topology, hosts)


def test_no_gpu_is_an_error_that_names_the_host() -> None:
    with pytest.raises(InputError, match="a has no gpu"):
        chosen(TopologyRequest(ranks_per_host="gpu"), "a", NUMA)


def test_hosts_of_which_one_has_no_gpu_get_one_rank_per_package() -> None:
    topology, _ = choose_topology(TopologyRequest(), parse_hosts("a,b"), {"a": GPUS, "b": NUMA})
    assert str(topology) == "2x2x1"
