"""Shares of cores near GPUs: by package, NUMA node, L3 domain and core, on described machines and on random ones."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import PlacementError
from ddlrun.hosts import Host, HostList
from ddlrun.machine import GPU, PU, Core, Machine
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.machine.preset import parse_machine
from ddlrun.mapping.core_shares import leave_out_reserved
from ddlrun.mapping.local_ranks import LocalRankPlacement, place_local_ranks
from ddlrun.mapping.placement import place
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.mapping.share_notes import share_notes
from ddlrun.ranges import render_ranges
from ddlrun.topology import RankOrder, Topology
from tests.machines.facts import load
from tests.machines.render_hwloc import render_hwloc

PRESETS = Path(__file__).parents[2] / "configs/machines"
FAST = PlacementPolicy(core_kinds="fast")
SPREAD = PlacementPolicy(packing="spread")


def machine(name: str) -> Machine:
    """Return a preset or a described machine as lstopo shows it."""
    preset = PRESETS / f"{name}.yaml"
    if preset.exists():
        return parse_machine(preset.read_text(), name)
    return parse_hwloc(render_hwloc(load(name)), name)


@pytest.mark.parametrize(
    ("name", "ranks", "policy", "shares"),
    [
        # Each rank has its GPU's node (1, 2, 6 and 7) and the nearest node without a GPU, in equal parts.
        ("turin-4-gpus", 4, PlacementPolicy(), ["0-31", "32-63", "80-111", "64-79,112-127"]),
        ("corona-4-gpus", 4, PlacementPolicy(), ["0-11", "12-23", "24-35", "36-47"]),
        # Two GPUs per odd node: half of it each, and half of the node beside it.
        (
            "dgx-a100", 8, PlacementPolicy(),
            ["40-55", "32-39,56-63", "8-23", "0-7,24-31", "104-119", "96-103,120-127", "72-87", "64-71,88-95"],
        ),
        (
            "dgx-a100", 8, PlacementPolicy(cores_per_rank=8),
            ["48-55", "56-63", "16-23", "24-31", "112-119", "120-127", "80-87", "88-95"],
        ),
        ("dgx-a100", 4, SPREAD, ["32-63", "0-31", "96-127", "64-95"]),
        # A GPU per L3 domain.
        ("tioga", 8, PlacementPolicy(), ["48-55", "56-63", "16-23", "24-31", "0-7", "8-15", "32-39", "40-47"]),
        ("tioga", 4, SPREAD, ["48-63", "16-31", "0-15", "32-47"]),
        # Equal shares, though they cross L3 domains.
        ("ac922-22-cores-caches", 6, PlacementPolicy(), ["0-7", "8-14", "15-21", "22-29", "30-36", "37-43"]),
        # Each kind in equal parts, or the fast one alone.
        ("raptor-lake", 2, PlacementPolicy(), ["0-2,6-9", "3-5,10-13"]),
        ("raptor-lake", 4, PlacementPolicy(), ["0-1,6-7", "2-3,8-9", "4,10-11", "5,12-13"]),
        ("raptor-lake", 2, FAST, ["0-2", "3-5"]),
        ("raptor-lake", 2, PlacementPolicy(cores_per_rank=3), ["0-2", "3-5"]),
        ("arm-four-kinds-of-cores", 2, PlacementPolicy(), ["0-1,3,5", "2,4,6"]),
        ("arm-four-kinds-of-cores", 8, PlacementPolicy(), ["0", "1", "2", "3", "4", "5", "6", "7"]),
        # Two kinds, of which some cores clock higher.
        ("gb10", 2, PlacementPolicy(), ["0-9", "10-19"]),
        ("gb10", 2, FAST, ["5-9", "15-19"]),
    ],
)  # fmt: skip
def test_shares(name: str, ranks: int, policy: PlacementPolicy, shares: list[str]) -> None:
    placed = place_local_ranks(machine(name), ranks, policy)
    assert [render_ranges(core.logical_index for core in local_rank.cores) for local_rank in placed] == shares


def test_the_nearest_node_is_that_of_the_smallest_distance() -> None:
    text = "{packages: 1, cores_per_package: 4, numa_per_package: 4, gpus: [1, 2], gpus_by: numa}"
    described = parse_machine(text, "test")
    far = ((10, 20, 11, 20), (20, 10, 20, 11), (11, 20, 10, 20), (20, 11, 20, 10))

    def nodes(distances: tuple[tuple[int, ...], ...]) -> list[set[int | None]]:
        placed = place_local_ranks(described._replace(numa_distances=distances), 2)
        return [{core.numa_node for core in rank.cores} for rank in placed]

    assert nodes(far) == [{1, 3}, {0, 2}]
    assert nodes(()) == [{0, 1}, {2, 3}]


@pytest.mark.parametrize(
    ("name", "count", "reserved"),
    [
        ("tioga", 8, "0,8,16,24,32,40,48,56"),  # 8 L3 domains
        ("tioga", 12, "0-1,8-9,16-17,24-25,32,40,48,56"),
        ("tioga", 4, "0,16,32,48"),  # 4 NUMA nodes
        ("power9-lassen", 4, "0-1,20-21"),  # 20 L3 domains of two cores
        ("turin-4-gpus", 16, ",".join(str(core) for core in range(0, 128, 8))),
    ],
)
def test_reserved_cores_are_those_of_l3_domains_or_nodes(name: str, count: int, reserved: str) -> None:
    described = machine(name)
    left = {core for package in leave_out_reserved(described.packages, count) for core in package}
    assert render_ranges(core.logical_index for core in described.cores if core not in left) == reserved


MEMORY = "cores on several NUMA nodes, so that memory is on the node of the core that touches it first"


@pytest.mark.parametrize(
    ("name", "ranks", "policy", "parts"),
    [
        ("minsky", 4, PlacementPolicy(), []),
        ("minsky", 3, PlacementPolicy(), ["have 5 to 10 cores", "--cores-per-rank 5, or use 2 or 4 ranks per host"]),
        ("minsky", 3, PlacementPolicy(cores_per_rank=5), []),
        ("knl-snc4", 5, PlacementPolicy(), ["have 9 to 18 cores", "--cores-per-rank 9, or use"]),
        ("turin-4-gpus", 4, PlacementPolicy(), [f"local ranks 0-3: {MEMORY}; launch --membind binds it"]),
        ("turin-4-gpus", 4, PlacementPolicy(membind="gpu"), []),
        ("turin-4-gpus", 4, PlacementPolicy(cores_per_rank=16), []),
        ("raptor-lake", 2, PlacementPolicy(), ["2 ranks with 3 fast and 4 slow; --core-kinds fast"]),
        ("raptor-lake", 2, FAST, ["8 slow cores are idle; --core-kinds all"]),
        ("arm-four-kinds-of-cores", 2, PlacementPolicy(), ["1 core idle, of kinds with fewer cores than ranks"]),
    ],
)  # fmt: skip
def test_notes(name: str, ranks: int, policy: PlacementPolicy, parts: list[str]) -> None:
    described = machine(name)
    notes = list(share_notes(described, place_local_ranks(described, ranks, policy), policy))
    assert bool(notes) == bool(parts)
    assert all(any(part in note for note in notes) for part in parts)


def test_a_rank_off_the_node_of_its_gpu_is_noted() -> None:
    described = parse_machine(
        "{packages: 1, cores_per_package: 4, numa_per_package: 4, gpus: [3, 3, 3], gpus_by: numa}", "t"
    )
    notes = list(share_notes(described, place_local_ranks(described, 3), PlacementPolicy()))
    assert [note for note in notes if "its GPU" in note] == [
        "local rank 1 is on NUMA node 2, its GPU on NUMA node 3",
        "local rank 2 is on NUMA node 1, its GPU on NUMA node 3",
    ]


def test_kinds_of_intel_may_have_one_capacity() -> None:
    xml = render_hwloc(load("raptor-lake"))
    equal = xml.replace("<info", '<info name="LinuxCapacity" value="1024" /><info')
    assert [core.kind for core in parse_hwloc(equal, "h").cores] == [core.kind for core in parse_hwloc(xml, "h").cores]
    assert "LinuxCapacity" in equal


def test_too_few_fast_cores_are_an_error() -> None:
    with pytest.raises(PlacementError, match="has 6 usable cores of the fastest kind"):
        place_local_ranks(machine("raptor-lake"), 7, FAST._replace(strict=True))
    unbound = place_local_ranks(machine("raptor-lake"), 7, FAST)
    assert {render_ranges(core.logical_index for core in seat.cores) for seat in unbound} == {"0-5"}


def test_memory_is_bound_to_the_nodes_of_the_cores_or_of_the_gpu() -> None:
    described = machine("turin-4-gpus")

    def nodes(membind: str) -> list[tuple[int, ...]]:
        return [rank.memory_nodes for rank in place_local_ranks(described, 4, PlacementPolicy(membind=membind))]

    assert nodes("local") == nodes("interleave") == [(0, 1), (2, 3), (5, 6), (4, 7)]
    assert nodes("gpu") == [(1,), (2,), (6,), (7,)]


@pytest.mark.parametrize(("name", "membind"), [("knl-snc4", "gpu"), ("dgx-a100", "local")])
def test_unknown_nodes_of_memory_are_an_error(name: str, membind: str) -> None:
    with pytest.raises(PlacementError, match=f"leave --membind {membind} out"):
        place_local_ranks(machine(name), 2, PlacementPolicy(membind=membind))


@st.composite
def machines(draw: st.DrawFn, *, equal: bool = False) -> Machine:
    """Draw a machine with NUMA nodes and L3 domains, of equal size if asked for, and GPUs on its nodes."""
    packages, nodes, domains = (draw(st.integers(1, most)) for most in (3, 4, 3))
    size = st.just(draw(st.integers(1, 4))) if equal else st.integers(1, 4)
    cores: list[Core] = []
    counts: Counter[int] = Counter()
    for domain in range(packages * nodes * domains):
        package, first = domain // (nodes * domains), len(cores)
        for _ in range(draw(size)):
            cores.append(
                Core(
                    logical_index=len(cores), package=package, index_in_package=counts[package],
                    numa_node=domain // domains, pus=(PU(len(cores)),), l3=first,
                )
            )  # fmt: skip
            counts[package] += 1
    homes = draw(st.lists(st.sampled_from(cores), max_size=6))
    gpus = tuple(
        GPU(number, package=home.package, numa_node=home.numa_node, l3=home.l3 if draw(st.booleans()) else None)
        for number, home in enumerate(homes)
    )
    return Machine(
        cores=tuple(cores), gpus=gpus, nics=None, source="random", measured=True,
        numa_nodes=tuple(range(packages * nodes)),
    )  # fmt: skip


def placed_or_none(described: Machine, ranks: int) -> tuple[LocalRankPlacement, ...] | None:
    try:
        return place_local_ranks(described, ranks, PlacementPolicy(strict=True))
    except PlacementError:
        return None


@given(machines(), st.integers(1, 12))
def test_no_core_has_two_ranks_and_no_rank_crosses_a_package_without_need(described: Machine, ranks: int) -> None:
    placed = placed_or_none(described, ranks)
    if placed is None:
        assert ranks > len(described.cores)
        return
    cores = [core.logical_index for rank in placed for core in rank.cores]
    assert len(placed) == ranks
    assert len(cores) == len(set(cores))
    assert all(rank.cores for rank in placed)
    packages = {core.package for rank in placed for core in rank.cores}
    assert sorted(cores) == [core.logical_index for core in described.cores if core.package in packages]
    if ranks >= len(described.packages) or placed[0].gpu is not None:
        with_room = all(
            sum(rank.gpu is not None and rank.gpu.package == package for rank in placed) <= len(inside)
            for package, inside in enumerate(described.packages)
        )
        crossing = [rank for rank in placed if len({core.package for core in rank.cores}) > 1]
        assert not crossing or not with_room


@given(machines(), st.integers(1, 6))
def test_a_rank_has_cores_of_the_node_and_the_l3_domain_of_its_gpu_while_there_are_some(
    described: Machine, ranks: int
) -> None:
    placed = placed_or_none(described, ranks)
    if placed is None or placed[0].gpu is None:
        return
    for key in ("package", "numa_node", "l3"):
        sizes = Counter(getattr(core, key) for core in described.cores)
        wanted = Counter(getattr(rank.gpu, key) for rank in placed)
        if any(count > sizes[home] for home, count in wanted.items() if home is not None):
            return  # too few cores for the GPUs there: what is inside cannot be near either
        for rank in placed:
            home = getattr(rank.gpu, key)
            # A rank without a known L3 domain may take a core from one that is wanted.
            if home is not None and (key != "l3" or None not in wanted):
                assert home in {getattr(core, key) for core in rank.cores}


@given(machines(equal=True), st.integers(1, 3), st.sampled_from(["package", "node", "domain"]))
def test_shares_are_equal_where_ranks_divide_a_symmetric_machine(described: Machine, per_group: int, unit: str) -> None:
    groups = {
        "package": len(described.packages),
        "node": len(described.numa_nodes),
        "domain": len({core.l3 for core in described.cores}),
    }
    without_gpus = described._replace(gpus=())
    placed = placed_or_none(without_gpus, per_group * groups[unit])
    if placed is None:
        return
    if unit == "package" and groups["node"] % (per_group * groups["package"]):
        return  # nodes do not divide among the ranks of a package
    sizes = [len(rank.cores) for rank in placed]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == len(described.cores)


@given(machines(equal=True))
def test_a_gpu_per_l3_domain_gets_that_domain(described: Machine) -> None:
    first = {core.l3: core for core in reversed(described.cores)}
    gpus = tuple(
        GPU(number, package=core.package, numa_node=core.numa_node, l3=core.l3)
        for number, core in enumerate(first.values())
    )
    placed = place_local_ranks(described._replace(gpus=gpus), len(gpus))
    assert all({core.l3 for core in rank.cores} == {rank.gpu and rank.gpu.l3} for rank in placed)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_each_kind_of_cores_is_divided_equally(fast: int, slow: int, ranks: int) -> None:
    cores = tuple(Core(index, 0, index, 0, (PU(index),), kind=int(index < fast)) for index in range(fast + slow))
    described = Machine(cores, (), None, "random", measured=True, numa_nodes=(0,))
    if ranks > max(fast, slow):
        return
    placed = place_local_ranks(described, ranks)
    for kind, count in ((1, fast), (0, slow)):
        sizes = [sum(core.kind == kind for core in rank.cores) for rank in placed]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == (count if count >= ranks else 0)
    totals = [len(rank.cores) for rank in placed]
    assert max(totals) - min(totals) <= 1


def taken_by(described: Machine, cores: list[int], gpus: int = 0) -> Machine:
    """Return a machine of which other runs have these cores and its first GPUs."""
    cpus = {pu.os_index for core in described.cores if core.logical_index in cores for pu in core.pus}
    return described._replace(in_use=frozenset({*cpus, *(str(gpu.pci_address) for gpu in described.gpus[:gpus])}))


@pytest.mark.parametrize(
    ("cores", "policy", "shares"),
    [
        ([0, 24], PlacementPolicy(cores_per_rank=2), ["1-2", "25-26"]),
        (list(range(23)), PlacementPolicy(cores_per_rank=2), ["24-25", "36-37"]),  # none of the first package is free
        (list(range(47)), PlacementPolicy(cores_per_rank=2), ["0-47", "0-47"]),
        (list(range(47)), PlacementPolicy(cores_per_rank=2, bind="package"), ["0-23", "24-47"]),
        ([0], PlacementPolicy(), ["0-23", "24-47"]),
    ],
)
def test_cores_of_other_runs_are_taken_last(cores: list[int], policy: PlacementPolicy, shares: list[str]) -> None:
    placed = place_local_ranks(taken_by(machine("epyc-7451"), cores), 2, policy)
    assert [render_ranges(core.logical_index for core in seat.cores) for seat in placed] == shares


def test_a_strict_policy_leaves_other_runs_their_cores() -> None:
    policy = PlacementPolicy(cores_per_rank=1, strict=True)
    with pytest.raises(PlacementError, match=r"has 1 usable core, not 2 x 1; .*; other runs use the others"):
        place_local_ranks(taken_by(machine("epyc-7451"), [*range(47)]), 2, policy)
    assert len(place_local_ranks(taken_by(machine("epyc-7451"), [*range(46)]), 2, policy)) == 2


def test_gpus_of_other_runs_are_taken_last() -> None:
    gpus = tuple(GPU(n, package=n % 2, pci_address=f"0000:{n}1:00.0", vendor="nvidia") for n in range(4))
    described = machine("epyc-7451")._replace(gpus=gpus)

    def chosen(ranks: int, gpus: int) -> list[int | None]:
        placed = place_local_ranks(taken_by(described, [], gpus), ranks)
        return [seat.gpu and seat.gpu.number for seat in placed]

    assert (chosen(1, 0), chosen(1, 1), chosen(2, 2), chosen(3, 2)) == ([0], [1], [2, 3], [0, 1, 2])


def test_notes_on_what_runs_share() -> None:
    described = taken_by(machine("epyc-7451"), [*range(47)])
    hosts = HostList((Host("a"),), "test")

    def notes(policy: PlacementPolicy) -> list[str]:
        placed = place(Topology((2, 1, 1)), hosts, {"a": described}, RankOrder.HOST, policy)
        return [note for note in placement_notes(placed) if "other runs" in note]

    (bound,) = notes(PlacementPolicy())
    assert bound.startswith("a: ranks share CPUs 0-")
    (loose,) = notes(PlacementPolicy(cores_per_rank=1, packing="pack"))
    assert loose.startswith("a: too few cores are free, so that ranks may run on all: they share CPUs ")
