"""The description of a network, and the cost of an allreduce on it."""

import json
import math
import re
import subprocess
import sys
from dataclasses import astuple, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.allreduce_algorithms import AllreduceAlgorithm
from ddlrun.cli.network.plan import command as plan
from ddlrun.ddl.group.dimensions import coords_of, peers_of
from ddlrun.ddl.schedules.schedule import Dimension, mirror, reduce_scatter
from ddlrun.errors import InputError
from ddlrun.network.cost import CostModel
from ddlrun.network.fabric import LEVELS, Fabric, Link, parse_fabric, render_fabric
from ddlrun.network.forecast import (
    OrderPenalties,
    OrderPenalty,
    TrainingStep,
    forecast,
    forecasts,
    order_penalties,
    uneven_data,
)
from ddlrun.network.message_counts import axes_of, blocks_of
from ddlrun.network.presets import gradient_of, parse_links
from ddlrun.network.unequal_nics import describe_slow_nics, links_of, nic_rates, unequal_cost
from ddlrun.topology import RankOrder, Topology, UnequalTopology

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
        Fabric,
        st.tuples(LINKS | st.just(Link()), LINKS, *[LINKS | st.just(Link())] * 2),
        *(NAMES, NAMES, COUNT, COUNT),
        st.dictionaries(NAMES, st.integers(1, 10**13).map(float), max_size=3).map(lambda nics: tuple(nics.items())),
    )
)
def test_a_rendered_fabric_parses_to_itself(fabric: Fabric) -> None:
    again = parse_fabric(render_fabric(fabric), "a file")
    assert replace(again, links=(), nics=()) == replace(fabric, links=(), nics=())
    assert dict(again.nics) == pytest.approx(dict(fabric.nics), rel=1e-6)
    for link, other in zip(again.links, fabric.links, strict=True):
        assert astuple(link) == pytest.approx(astuple(other), rel=1e-6)


def test_all_problems_of_a_fabric_are_reported() -> None:
    text = "nic: {bandwidth: fast, latency: 5, size: 3}\nhost: 12\nuplink: {payload: 2}\nhosts_per_rack: 0\nracks: 3\n"
    with pytest.raises(InputError) as caught:
        parse_fabric(text, "net.yaml")
    keys = (*LEVELS, *(field.name for field in fields(Fabric)[1:]))
    assert caught.value.problems == (
        f"net.yaml: unknown key 'racks'; the keys are {', '.join(keys)}",
        "net.yaml: hosts_per_rack: 0 is not a number of at least 1",
        "net.yaml: host: 12 is not a link; write {bandwidth: 100 Gbit/s, latency: 5 us}",
        "net.yaml: nic.bandwidth: 'fast' is not a rate; write it with its unit, as in 100 Gbit/s or 12.5 GB/s",
        "net.yaml: nic.latency: '5' is not a time; write it with its unit, as in 5us, 120ms or 2s",
        "net.yaml: nic: unknown key 'size'; the keys are bandwidth, latency, payload, parallel, burst",
        "net.yaml: uplink.payload: 2 is not a share; it is more than 0 and at most 1",
        "net.yaml: uplink: bandwidth is missing; write it with its unit, as in 100 Gbit/s",
    )


@pytest.mark.parametrize(("text", "problem"), [
    ("- 1", "describes no network"), ("a: [", "expected"), ("name: x", "nic is missing"), ("", "describes no network"),
])  # fmt: skip
def test_malformed_fabrics_are_rejected(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_fabric(text, "net.yaml")


def test_links_that_are_not_described_limit_nothing() -> None:
    fabric = parse_fabric("nic: {bandwidth: 100 Gbit/s, payload: 0.5, parallel: 2}", "net.yaml")
    assert {level: link.capacity for level, link in zip(LEVELS, fabric.links, strict=True)} == {
        "host": math.inf, "nic": 12.5e9, "uplink": math.inf, "aisle": math.inf,
    }  # fmt: skip


def moved(shape: Topology, wiring: Topology, algorithms: tuple[str, ...]) -> tuple[int, ...]:
    """Return the load of the busiest link of each level, one direction, counted in the allreduce's own schedule."""
    count = 12 * shape.size  # whole messages for every shape here
    blocks = blocks_of(wiring)
    sent = [[0] * shape.size for _ in LEVELS]
    for rank in range(shape.size):
        coords = coords_of(shape, RankOrder.HOST, rank)
        dimensions = [
            Dimension(peers_of(shape, RankOrder.HOST, coords, axis), at, algorithm)
            for axis, (at, algorithm) in enumerate(zip(coords, algorithms, strict=True))
        ]
        half = reduce_scatter(dimensions, count)
        for step in (*half, *mirror(half)):
            for peer, low, high in step.sends:
                if rank // blocks[1] == peer // blocks[1]:
                    sent[0][rank] += high - low
                for level in range(1, len(LEVELS)):
                    if rank // blocks[level] != peer // blocks[level]:
                        sent[level][rank // blocks[level]] += high - low
    return tuple(max(carried) for carried in sent)


SIZES = st.sampled_from(
    [(2, 2, 2), (4, 2, 1), (2, 4, 2), (1, 4, 4), (3, 2, 2), (2, 3, 2), (4, 4, 1), (2, 2, 3), (8, 1, 2)]
)


@given(SIZES, SIZES, st.data())
def test_volumes_equal_those_of_the_schedule(
    wired: tuple[int, ...], dims: tuple[int, ...], data: st.DataObject
) -> None:
    wiring = Topology(wired)
    shape = Topology(dims if math.prod(dims) == wiring.size else data.draw(st.permutations(wired).map(tuple)))
    names = data.draw(st.tuples(*[st.sampled_from(["ring", "direct", "halving"])] * 3))
    model = CostModel(axes_of(shape), wiring, Fabric((Link(1e9),) * 4))
    size = 12 * shape.size
    predicted = model.cost(AllreduceAlgorithm("chunks", names, size, 1), size).volumes
    counted = moved(shape, wiring, names)
    halves = "halving" in names
    if not halves or (shape == wiring and all(size in (1, 2, 4, 8) for size in shape.dims)):
        assert predicted[1:] == pytest.approx(counted[1:])
    if shape == wiring and not halves:
        assert predicted[0] == pytest.approx(counted[0])


# The largest error in docs/explanation/network.md.
OFF = 0.03


@pytest.mark.parametrize(("learners", "published"), [(4, 0.9833), (8, 0.9704), (16, 0.9219)])
def test_published_scaling_of_a_3d_unet(learners: int, published: float) -> None:
    # PowerAI DDL on AC922: 590 s per epoch of 228 images on one V100, gradients averaged after each image.
    topology = Topology((4, learners // 4))
    work = TrainingStep(gradient_of("unet3d"), compute=590 / 228)
    predicted = forecast(topology, topology, parse_links("nvlink2,ib-edr", None), work)
    assert predicted.efficiency is not None
    assert predicted.efficiency * uneven_data(228, learners).ceiling == pytest.approx(published, abs=OFF)


def test_published_scaling_of_powerai_ddl_at_256() -> None:
    # 90 epochs of ImageNet in 50 minutes, 8192 images per step, everything included; IBM reports a scaling of 95 %.
    topology = Topology((4, 64))
    step = 50 * 60 / (90 * math.ceil(1_281_167 / 8192))
    work = TrainingStep(gradient_of("resnet50"))
    predicted = forecast(topology, topology, parse_links("nvlink1,ib-edr", None), work)
    assert 1 - predicted.cost.seconds / step == pytest.approx(0.95, abs=OFF)


def test_pipelined_cost_is_the_busiest_link_and_the_first_chunk() -> None:
    # 2x2x2, 16 MiB in 16 chunks: 24 MiB through a NIC, 16 MiB through an uplink of half its rate.
    mib, latency = 2**20, 1e-3
    links = (Link(latency=latency), Link(2.0 * mib, latency), Link(1.0 * mib, latency), Link())
    model = CostModel(axes_of(Topology((2, 2, 2))), Topology((2, 2, 2)), Fabric(links))
    # A chunk of 1 MiB: 2 steps inside, 2 of 1/4 MiB through the NIC by two learners, 2 of 1/8 by four by the uplink.
    walk = 6 * latency + 2 * (2 / 4) / 2 + 2 * (4 / 8) / 1
    piped = model.cost(AllreduceAlgorithm("chunks", ("ring",) * 3, mib, 16), 16 * mib)
    assert piped.seconds == pytest.approx(walk + (16 - 1) * 1)
    assert (piped.busiest, piped.steps) == ("uplink", 6)
    few = model.cost(AllreduceAlgorithm("chunks", ("ring",) * 3, mib, 1), 16 * mib)
    assert few.seconds == pytest.approx(16 * walk)
    whole = model.cost(AllreduceAlgorithm("native"), 16 * mib)
    assert whole.seconds == pytest.approx(6 * latency + 16 * (walk - 6 * latency))


@pytest.mark.parametrize("topology", ["1", "4"])
def test_a_job_without_network_traffic_has_a_table_too(topology: str) -> None:
    done = ddlrun("network", "plan", "--topology", topology, "--links", "100gbe")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{topology}x1x1 *" in done.stdout


@pytest.mark.parametrize(
    ("shape", "network"), [((4, 8, 2), "100gbe"), ((4, 8, 2), "nvlink2,100gbe"), ((1, 8, 2), "100gbe")]
)
def test_a_level_that_is_not_described_is_no_faster_than_the_one_below(shape: tuple[int, ...], network: str) -> None:
    topology = Topology(shape)
    predicted = forecast(topology, topology, parse_links(network, None), TrainingStep(8))
    assert predicted.cost.seconds >= 4 * 14e-6  # lg 16 hosts, at the least


def test_small_arrays_take_doubling_and_large_ones_a_ring() -> None:
    model = CostModel(axes_of(Topology((1, 8))), Topology((1, 8)), Fabric((Link(), Link(1e9, 1e-5), Link(), Link())))
    small, large = (model.cost(AllreduceAlgorithm("flat"), size) for size in (1000, 10**8))
    assert (small.steps, large.steps) == (3, 14)
    assert small.seconds == pytest.approx(3 * (1e-5 + 1e-6))
    assert large.seconds == pytest.approx(14e-5 + 2 * 7 / 8 * 0.1)


def test_mode_p_is_never_slower_than_another() -> None:
    model = CostModel(axes_of(Topology((4, 4, 4))), Topology((4, 4, 4)), parse_links("nvlink2,100gbe,4:1", 4))
    for size in (10**4, 10**6, 10**8):
        best = model.best("p", size).seconds
        assert all(best <= model.best(mode, size).seconds for mode in "rbnm")


def test_hosts_listed_across_racks_load_the_uplinks_more() -> None:
    # 4x4x4: each of Y's rings then goes from rack to rack, so an uplink carries 2 * 3/4 S for each of 4 hosts.
    assert order_penalties(Topology((4, 4, 4)), Topology((4, 4, 4))) == OrderPenalties(
        OrderPenalty("uplink", 4.0), OrderPenalty("uplink", 16.0)
    )
    assert order_penalties(Topology((4, 4)), Topology((4, 4))) == OrderPenalties(None, OrderPenalty("nic", 4.0))
    assert order_penalties(Topology((4,)), Topology((4,))) == OrderPenalties(None, None)


def ddlrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ddlrun", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_plan_takes_the_topology_that_launch_takes(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"n{number} slots=4 rack=r{number % 3}\n" for number in range(1, 13)))
    planned = json.loads(ddlrun("network", "plan", f"@{hosts}", "--links", "100gbe,2:1", "--json").stdout)
    launched = json.loads(
        ddlrun("show", "topology", "--machine", "ac922-4gpu", "--hostfile", str(hosts), "--json").stdout
    )
    assert planned["topology"] == launched["topology"] == "4x4x3"
    assert {row["topology"] for row in planned["decompositions"]} == {
        "4x12x1", "4x6x2", "4x4x3", "4x3x4", "4x2x6", "4x1x12",
    }  # fmt: skip


def test_plan_reads_a_network_and_reports_uneven_data(tmp_path: Path) -> None:
    network = tmp_path / "net.yaml"
    network.write_text(render_fabric(parse_links("nvlink2,2xib-edr", 2)))
    done = ddlrun(
        "network",
        "plan",
        "--host-count",
        "4",
        "--ranks-per-host",
        "4",
        "--links",
        str(network),
        "--compute",
        "1s",
        "--images",
        "228",
    )
    assert done.stderr == ""
    assert "16 ranks, wired as 4x2x2" in done.stdout
    assert "228 images on 16 ranks: 15 steps, so at most 95.0 % efficiency" in done.stdout
    assert len(done.stdout.splitlines()) <= 24


@pytest.mark.parametrize("arguments", ["--topology 2x2x1", "--host-count 2 --ranks-per-host 2 --racks 1"])
def test_plan_accepts_a_ratio_for_one_rack(arguments: str) -> None:
    done = ddlrun("network", "plan", *arguments.split(), "--links", "100gbe,4:1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 ranks per host x 2 hosts per rack x 1 rack" in done.stdout


def test_the_examples_in_the_help_of_plan_are_complete() -> None:
    text = " ".join((plan.help or "").split())
    *examples, rest = re.split(r", or |\.$", text.partition("describe it: ")[2])
    assert (len(examples), rest) == (2, "")
    for example in examples:
        done = ddlrun("network", "plan", *example.split())
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "problem"), [
    ("--topology 4x4x4", "--links is missing: name a YAML file"),
    ("--topology 4x4x4 --links 100gbe,50gbe", "unknown or misplaced preset '50gbe'"),
    ("--topology 4x4x4 --links nvlink2", "no link between hosts"),
    ("--host-count 4 --ranks-per-host 4 --links 100gbe,2:1", "2:1 needs the hosts per rack; give --topology XxYxZ or"),
    ("--topology 4x4 --links none.yaml", "none.yaml: No such file"),
    ("--topology 4x4 --host-count 5 --links 100gbe", "has 4 hosts, but --host-count is 5"),
    ("--host-count 4 --links 100gbe", "--ranks-per-host N"),
    ("--host-count 4 --ranks-per-host 2 --racks 3 --links 100gbe", "cannot be divided evenly: --racks 3"),
    ("n1 --host-count 4 --links 100gbe", "hosts are named too"),
    ("--topology 4 --links 100gbe --gradient 5", "'5' is not a size"),
    ("--topology 4 --links 100gbe --compute 5", "'5' is not a time"),
    ("--topology 4 --links 100gbe --overlap 0.5", "give --compute TIME"),
    ("--topology 4 --links 100gbe --batch 5", "give --images N"),
    ("--topology 4 --links 100gbe --gradient 5MB --model vgg16", "leave one of them out"),
])  # fmt: skip
def test_plan_reports_an_error_in_one_line(arguments: str, problem: str) -> None:
    done = ddlrun("network", "plan", *arguments.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert problem in done.stderr


def test_a_slow_nic_is_read_and_predicted() -> None:
    fabric = parse_fabric("nic: {bandwidth: 40 Mbit/s}\nnics: {h3: 20 Mbit/s}\n", "net.yaml")
    assert fabric.nics == (("h3", 2.5e6),)
    assert parse_fabric(render_fabric(fabric), "again").nics == fabric.nics
    nics = nic_rates(fabric, ["h1", "h2", "h3", "h4"], 4)
    assert nics == (5e6, 5e6, 2.5e6, 5e6)
    assert sorted(nic_rates(fabric, (), 4)) == sorted(nics)
    cost = forecast(
        Topology((2, 4)), Topology((2, 4)), fabric, TrainingStep(10**7), links=links_of(nics, (4,), fabric)
    ).cost
    # The host with the slow NIC sends its part once and receives the result once.
    assert cost.seconds == pytest.approx(2 * 10**7 / 5e6, rel=0.02)
    assert cost.busiest == "nic"
    assert describe_slow_nics(dict(fabric.nics), 5e6) == ["h3's NIC carries 50 % of the others'"]


def test_a_slow_nic_in_one_of_two_racks_is_predicted() -> None:
    fabric = parse_fabric("nic: {bandwidth: 40 Mbit/s}\nuplink: {bandwidth: 10 Mbit/s}\n", "net.yaml")
    cost = unequal_cost(links_of((5e6, 5e6, 2.5e6, 5e6), (2, 2), fabric), fabric, 10**7)
    assert cost.busiest == "uplink"
    assert cost.seconds == pytest.approx(10**7 / 1.25e6, rel=0.02)


def test_racks_of_3_and_2_hosts_are_predicted(tmp_path: Path) -> None:
    """Each rack sends its sum once, and receives the result once, over its uplink."""
    (tmp_path / "hosts").write_text("".join(f"h{n} slots=1 rack={'a' if n < 4 else 'b'}\n" for n in range(1, 6)))
    (tmp_path / "net.yaml").write_text("nic: {bandwidth: 10 Mbit/s}\nuplink: {bandwidth: 5 Mbit/s}\n")
    words = ("--links", str(tmp_path / "net.yaml"), "--gradient", "5MB", "--json")
    planned = json.loads(ddlrun("network", "plan", f"@{tmp_path / 'hosts'}", *words).stdout)
    assert planned["topology"] == "1x5x1"
    assert [shape["allreduce"] for shape in planned["decompositions"]] == [pytest.approx(8, rel=0.03)] * 2


def test_hosts_of_1_2_and_3_ranks_have_equal_blocks() -> None:
    """The bound is 2 (H - 1)/H of the array per NIC; one ring over all ranks would take 1.25 times as long."""
    fabric = parse_fabric("nic: {bandwidth: 10 Mbit/s}", "net.yaml")
    work = TrainingStep(4 * 2**20)
    links = links_of((1.25e6,) * 3, (3,), fabric)
    [only] = forecasts(UnequalTopology((1, 2, 3)), Topology((3, 3, 1)), fabric, work, links=links)
    assert only.cost.seconds == pytest.approx(4 / 3 * 4 * 2**20 / 1.25e6, rel=0.03)


@pytest.mark.parametrize("nics", ["h3", "{h3: fast}", "[h3]"])
def test_malformed_nics_are_errors(nics: str) -> None:
    with pytest.raises(InputError, match=r"net\.yaml: nics"):
        parse_fabric(f"nic: {{bandwidth: 40 Mbit/s}}\nnics: {nics}\n", "net.yaml")
