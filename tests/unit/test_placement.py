import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import InputError, PlacementError
from ddlrun.hosts import Host, HostList
from ddlrun.machine import Machine
from ddlrun.machine.preset import parse_machine
from ddlrun.mapping.local_ranks import place_local_ranks
from ddlrun.mapping.placement import place
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.ranges import render_ranges
from ddlrun.topology import RankOrder, Topology, parse_topology
from tests.support.shapes import machine, placement

sizes = st.lists(st.integers(1, 24), min_size=1, max_size=6)


def described(text: str) -> Machine:
    return parse_machine(text, "test")


def spread(text: str, ranks: int) -> list[list[tuple[int, int]]]:
    """Return (package, core inside it) of each rank's cores."""
    return [
        [(core.package, core.index_in_package) for core in binding.cores]
        for binding in place_local_ranks(described(text), ranks)
    ]


@given(sizes, st.data())
def test_no_core_is_lost_or_shared_and_ranks_cross_packages_only_if_they_must(
    packages: list[int], data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(1, sum(packages)))
    bindings = place_local_ranks(described(f"packages: {packages}"), ranks)
    cores = [core.logical_index for binding in bindings for core in binding.cores]
    assert len(bindings) == ranks
    assert all(binding.cores for binding in bindings)
    assert len(set(cores)) == len(cores)
    crossing = [binding for binding in bindings if len({core.package for core in binding.cores}) > 1]
    if ranks >= len(packages):
        assert not crossing
    if not crossing:
        home = {binding.local_rank: binding.cores[0].package for binding in bindings}
        shares = [len(binding.cores) for binding in bindings]
        for package in set(home.values()):
            inside = [share for rank, share in enumerate(shares) if home[rank] == package]
            assert sum(inside) == packages[package]
            assert max(inside) - min(inside) <= 1


@pytest.mark.parametrize(
    ("text", "ranks", "shares"),
    [
        ("{packages: 2, cores_per_package: 10}", 4, [5, 5, 5, 5]),
        ("{packages: 2, cores_per_package: 10}", 1, [20]),
        ("{packages: 2, cores_per_package: 10}", 3, [5, 5, 10]),
        ("{packages: 4, cores_per_package: 6}", 2, [12, 12]),
        ("{packages: 4, cores_per_package: 6}", 3, [6, 12, 6]),
        ("{packages: [2, 2, 4]}", 2, [4, 4]),
        ("{packages: [1, 1, 1, 9]}", 2, [3, 9]),
        ("{packages: [8, 10]}", 2, [8, 10]),
        ("{packages: [4, 2]}", 2, [4, 2]),  # no package is idle, as the smallest share would be the same
        ("{packages: [1, 20]}", 2, [10, 10]),
        ("{packages: 1, cores_per_package: 7}", 3, [3, 2, 2]),
    ],
)
def test_shares(text: str, ranks: int, shares: list[int]) -> None:
    assert [len(cores) for cores in spread(text, ranks)] == shares


def test_a_rank_is_in_the_package_of_its_gpu() -> None:
    text = "{packages: 2, cores_per_package: 4, gpus: [1, 0, 1, 0]}"
    assert [cores[0][0] for cores in spread(text, 4)] == [1, 0, 1, 0]
    assert [cores[0] for cores in spread(text, 2)] == [(1, 0), (0, 0)]


def test_ranks_are_on_the_numa_nodes_of_their_gpus_or_beside_them() -> None:
    text = "{packages: 1, cores_per_package: 8, numa_per_package: 4, gpus: [3, 3, 1, 1], gpus_by: numa}"
    assert [[core for _, core in cores] for cores in spread(text, 4)] == [[5, 6], [4, 7], [1, 2], [0, 3]]


def test_gpus_with_unknown_packages_do_not_matter() -> None:
    assert spread("{packages: 2, cores_per_package: 2, gpus: 4}", 4) == spread("{packages: 2, cores_per_package: 2}", 4)


def test_ranks_stay_near_their_gpus_as_far_as_a_package_has_room() -> None:
    shares = spread("{packages: [4, 3], gpus: [1, 1, 1, 1, 0, 0, 0]}", 7)
    assert [cores[0][0] for cores in shares] == [1, 1, 1, 0, 0, 0, 0]


def test_ranks_whose_gpus_have_unknown_packages_leave_room_for_the_others() -> None:
    two = described("{packages: 2, cores_per_package: 2, gpus: [1, 0, 1]}")

    def packages(*unknown: int) -> list[int]:
        gpus = tuple(gpu._replace(package=None) if gpu.number in unknown else gpu for gpu in two.gpus)
        return [binding.cores[0].package for binding in place_local_ranks(two._replace(gpus=gpus), 3)]

    assert packages(1) == [1, 0, 1]
    assert packages(0, 1) == [0, 0, 1]
    assert packages(2) == [1, 0, 0]


def test_a_rank_is_near_its_gpu_though_the_package_of_another_gpu_has_no_usable_core() -> None:
    three = described("{packages: 3, cores_per_package: 2, gpus: [2, 1]}")
    cores = tuple(core._replace(usable=core.package != 1) for core in three.cores)
    bindings = place_local_ranks(three._replace(cores=cores), 2)
    assert [binding.cores[0].package for binding in bindings] == [2, 0]


@pytest.mark.parametrize(
    ("text", "ranks", "count", "cores"),
    [
        ("{packages: 1, cores_per_package: 6, numa_per_package: 2}", 3, 2, ["0-1", "3-4", "2,5"]),
        (
            "{packages: 1, cores_per_package: 6, numa_per_package: 2, gpus: [1, 0, 0], gpus_by: numa}",
            3,
            2,
            ["3-4", "0-1", "2,5"],
        ),
        ("{packages: [6, 2]}", 3, 2, ["0-1", "3-4", "6-7"]),
        ("{packages: [5, 3, 4]}", 2, 6, ["0-5", "6-11"]),
    ],
)
def test_cores_per_rank_that_equal_shares_do_not_have(text: str, ranks: int, count: int, cores: list[str]) -> None:
    placed = place_local_ranks(described(text), ranks, PlacementPolicy(cores_per_rank=count))
    assert [render_ranges(core.logical_index for core in binding.cores) for binding in placed] == cores


def test_cores_per_rank_that_do_not_fit_inside_packages() -> None:
    with pytest.raises(PlacementError, match=r"no more than 1 core to a rank inside one package; .* at most 1"):
        place_local_ranks(described("{packages: [3, 3]}"), 3, PlacementPolicy(cores_per_rank=2))


def test_ranks_and_coordinates_of_the_powerai_example() -> None:
    hosts = [f"sys-{n}" for n in range(89074, 89080)]
    placed = {rank.rank: rank for rank in placement("4x2x3", hosts, machine("minsky")).by_host()}
    assert sorted(placed) == list(range(24))
    assert (placed[0].host.name, placed[0].coords) == ("sys-89074", (0, 0, 0))
    assert (placed[3].host.name, placed[3].coords) == ("sys-89075", (0, 1, 0))
    assert (placed[22].host.name, placed[22].coords) == ("sys-89077", (3, 1, 1))
    assert placed[22].binding.gpu is not None
    assert placed[22].binding.gpu.number == 3


def test_host_order_is_contiguous() -> None:
    ranks = list(placement("2x2x1", ["a", "b"], machine("1x2"), RankOrder.HOST).by_host())
    assert [(rank.rank, rank.host.name) for rank in ranks] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]


def test_too_few_hosts_names_both_numbers_and_the_product() -> None:
    with pytest.raises(InputError) as caught:
        placement("4x2x3", ["a", "b"], machine("minsky"))
    assert "4x2x3 needs 6 hosts (2 hosts per rack x 3 racks), but the job has 2 (test: a,b)" in str(caught.value)


def test_too_many_ranks_for_the_cores() -> None:
    with pytest.raises(PlacementError, match="3 ranks on each host, but a has 2 usable cores") as caught:
        placement("3x1x1", ["a"], machine("1x2"), policy=PlacementPolicy(strict=True))
    assert "use at most 2 ranks per host" in str(caught.value)
    with pytest.raises(PlacementError, match="not 3 x 1; use at most 2 ranks per host, or no --cores-per-rank"):
        placement("3x1x1", ["a"], machine("1x2"), policy=PlacementPolicy(cores_per_rank=1))


@pytest.mark.parametrize(("bind", "cores"), [("core", ["1-3"] * 4), ("package", ["1", "1", "2-3", "2-3"])])
def test_more_ranks_than_cores_run_unbound(bind: str, cores: list[str]) -> None:
    two_packages = described("{packages: 2, cores_per_package: 2}")
    placed = placement("4x1x1", ["a"], two_packages, policy=PlacementPolicy(bind=bind, reserve_cores=1))
    local_ranks = placed.bindings[0]
    assert [render_ranges(core.logical_index for core in rank.cores) for rank in local_ranks] == cores
    assert {rank.threads for rank in local_ranks} == {1}
    how = "run unbound on" if bind == "core" else "share"
    note = f"a: 4 ranks {how} 3 cores; for a core per rank, use at most 3 ranks per host"
    assert placement_notes(placed)[0] == note


def test_too_few_slots_names_every_short_host() -> None:
    hosts = HostList((Host("a", 2), Host("b", 4), Host("c", 1)), "hostfile F")
    with pytest.raises(InputError) as caught:
        place(parse_topology("4x3"), hosts, dict.fromkeys(hosts.names, machine("minsky")), RankOrder.DDL)
    assert [problem.split("but ")[1] for problem in caught.value.problems] == [
        "a offers 2 slots (hostfile F); 1x3x1 would fit",
        "c offers 1 slot (hostfile F); 1x3x1 would fit",
    ]


def test_hosts_with_different_machines() -> None:
    hosts = HostList((Host("a"), Host("b")), "test")
    machines = {"a": machine("minsky"), "b": machine("2x22")}
    placed = place(Topology((2, 2)), hosts, machines, RankOrder.HOST)
    assert [rank.binding.threads for rank in placed.by_host()] == [5, 5, 22, 22]
    assert [indexes for indexes, _, _ in placed.groups()] == [[0], [1]]
