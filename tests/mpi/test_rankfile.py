"""Rank files: their text, and how a real mpirun of each major reads it."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlrun.errors import InputError, PlacementError
from ddlrun.machine.preset import parse_machine
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.rankfile import RankFileLine, parse, render
from ddlrun.mapping.slot_notation import render_slots
from ddlrun.mapping.slot_reading import pus_of
from ddlrun.topology import RankOrder, parse_job_topology
from tests.goldens.__main__ import FOLDER, GOLDENS, text
from tests.support.machine_kinds import machine_of, xml_of
from tests.support.oracle import map_ranks
from tests.support.shapes import MACHINES, cores_by_package, hwloc_topology, machine, placement
from tests.support.slot_oracle import map_slots

SAFE = st.one_of(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True),
    st.from_regex(r"[A-Za-z]([a-z0-9-]{0,6}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?){1,3}", fullmatch=True),
    st.from_regex(r"(rank|slot|slots|host|username|n|e)[0-9]{0,2}", fullmatch=True),
    st.integers(0, 2**40).map(str),
    st.ip_addresses().map(str),
    st.from_regex(r"0[0-9]{1,3}", fullmatch=True),
)


def rendered(placed: Placement) -> str:
    return "".join(render(placed, "test"))


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str) -> None:
    assert text(name) == (FOLDER / name).read_text(), "if this change is meant: make goldens, and look at it"


@pytest.mark.parametrize(("y", "z"), [(2, 1), (2, 3)])
def test_equals_the_output_of_rank_gen(y: int, z: int) -> None:
    hosts = [f"n{number}" for number in range(y * z)]
    ours = rendered(placement(f"4x{y}x{z}", hosts, machine("minsky")))
    assert ours.splitlines()[1:] == list(rank_gen(y, z, sockets=2, cores=10))


def rank_gen(y: int, z: int, *, sockets: int, cores: int) -> Iterator[str]:
    """Yield the lines of IBM's rank_gen.py for 4 ranks per host: its comments and arithmetic, written again."""
    hosts = [f"n{number}" for number in range(y * z)]
    dimensions = {"dimX": 4, "dimY": y, "dimZ": z, "sockets": sockets, "cores": cores}
    yield from (f"#dims = 4x{y}x{z}", f"#host = {','.join(hosts)}", *(f"#{k} = {v}" for k, v in dimensions.items()))
    each = sockets * cores // 4
    for number, host in enumerate(hosts):
        for local_rank in range(4):
            socket, first = divmod(local_rank * each, cores)
            rank = local_rank * y * z + number % y * z + number // y
            yield f"rank {rank}={host} slot={socket}:{first}-{first + each - 1}"


@pytest.mark.extra
@pytest.mark.parametrize(
    ("name", "topology", "hosts"),
    [
        ("powerai-rank_gen-4x2x1.rf", "4x2x1", ["sys-89074", "sys-89075"]),
        ("powerai-rank_gen-4x2x3.rf", "4x2x3", [f"sys-{n}" for n in range(89074, 89080)]),
    ],
)
def test_equals_captured_output_of_rank_gen(
    capture: Callable[[str], Path], name: str, topology: str, hosts: list[str]
) -> None:
    theirs = capture("mpi-rankfile") / name
    ours = rendered(placement(topology, hosts, machine("minsky")))
    assert ours.splitlines(keepends=True)[1:] == theirs.read_bytes().decode().splitlines(keepends=True)[1:]


@given(st.sampled_from(sorted(MACHINES)), st.integers(1, 8), st.integers(1, 5), st.integers(1, 3), st.data())
def test_text_and_value_are_inverses(name: str, x: int, y: int, z: int, data: st.DataObject) -> None:
    described = machine(name)
    x = min(x, len(described.cores))
    order = data.draw(st.sampled_from(RankOrder))
    placed = placement(f"{x}x{y}x{z}", [f"h{i}" for i in range(y * z)], described, order)
    lines = parse(rendered(placed))
    assert lines == tuple(
        RankFileLine(rank.rank, rank.host.name, render_slots(rank.binding.cores, described) or "none")
        for rank in placed.by_host()
    )
    assert lines[0].rank == 0
    assert sorted(line.rank for line in lines) == list(range(x * y * z))


@pytest.mark.parametrize(
    "line", ["rank 0=a", "rank 0=a slot=", "rank x=a slot=0", "rank 0=a slot=0 #", "\trank 0=a slot=0"]
)
def test_a_malformed_line_is_an_error_with_its_number(line: str) -> None:
    with pytest.raises(InputError, match="F, line 2:"):
        parse(f"rank 0=a slot=0:0\n{line}\n", "F")


@pytest.mark.parametrize("x", [1, 3, 4, 7, *(pytest.param(x, marks=pytest.mark.extra) for x in (2, 5, 6, 8))])
@pytest.mark.parametrize("name", MACHINES)
def test_a_real_mpirun_agrees_with_the_placement(name: str, x: int, major: int, mpirun: str) -> None:
    described = machine(name)
    x = min(x, len(described.cores))
    topology = hwloc_topology(name)
    for order in RankOrder:
        placed = placement(f"{x}x2x2", ["a", "b-1", "c.example.org", "10.0.0.4"], described, order)
        assert map_ranks(major, rendered(placed), topology, mpirun=mpirun) == cores_by_package(placed)


@pytest.mark.parametrize("topology", ["2+1", "1+2+2", "2*2+1", pytest.param("12*2+1", marks=pytest.mark.extra)])
@pytest.mark.parametrize("name", ["1x2", "8+10"])
def test_a_real_mpirun_agrees_on_unequal_hosts(name: str, topology: str, major: int, mpirun: str) -> None:
    hosts = [f"h{number}" for number in range(parse_job_topology(topology).hosts)]
    placed = placement(topology, hosts, machine(name), RankOrder.HOST)
    assert map_ranks(major, rendered(placed), hwloc_topology(name), mpirun=mpirun) == cores_by_package(placed)


def test_a_real_mpirun_reads_128_hosts(major: int, mpirun: str) -> None:
    placed = placement("4x16x8", [f"node{i:03}" for i in range(128)], machine("minsky"))
    assert map_ranks(major, rendered(placed), hwloc_topology("minsky"), mpirun=mpirun) == cores_by_package(placed)


@pytest.mark.parametrize("name", GOLDENS)
def test_a_real_mpirun_reads_the_goldens(name: str, major: int, mpirun: str) -> None:
    topology, hosts, described, order = GOLDENS[name]
    placed = placement(topology, hosts, machine(described), order)
    mapped = map_ranks(major, (FOLDER / name).read_text(), hwloc_topology(described), mpirun=mpirun)
    assert mapped == cores_by_package(placed)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SAFE, min_size=1, max_size=25, unique=True))
def test_a_host_name_is_read_as_it_is_or_refused(major: int, mpirun: str, names: list[str]) -> None:
    taken = []
    for name in names:
        try:
            rendered(placement("1", [name], machine("1x2")))
        except PlacementError as error:
            assert repr(name) in str(error)
        else:
            taken.append(name)
    # A major may know this machine by these names, and then prints its own name.
    taken = [name for name in taken if name not in ("localhost", "127.0.0.1")]
    if taken:
        placed = placement(f"1x{len(taken)}", taken, machine("1x2"))
        assert map_ranks(major, rendered(placed), hwloc_topology("1x2"), mpirun=mpirun) == cores_by_package(placed)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a_b", "Open MPI 4.1 cannot launch on a name with _"),
        ("9n.example.com", "begins with a digit and has a dot"),
        ("007", "reads it as a number"),
        ("12345678901", "reads it as a number"),
        ("slot", "a word of Open MPI's own grammar"),
        ("fe80::1", "IPv6"),
        ("h" * 57, "too long for Open MPI 4.1, which takes 56 characters"),
    ],
)
def test_names_that_no_rank_file_can_hold_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(PlacementError, match=re.escape(repr(name))) as caught:
        rendered(placement("2", [name], machine("1x2")))
    assert reason in str(caught.value)


def test_the_longest_line_that_open_mpi_accepts(major: int, mpirun: str) -> None:
    placed = placement("2", ["h" * 56], machine("1x2"))
    assert map_ranks(major, rendered(placed), hwloc_topology("1x2"), mpirun=mpirun) == cores_by_package(placed)


def test_too_scattered_cores_do_not_fit_in_a_line() -> None:
    whole = machine("2x22")
    holes = whole._replace(cores=tuple(core._replace(usable=core.logical_index % 2 == 0) for core in whole.cores))
    with pytest.raises(PlacementError, match="too scattered"):
        rendered(placement("1", ["a"], holes))
    for_5 = "".join(render(placement("1", ["h" * 60], holes), "test", (5,)))
    assert "test, for Open MPI 5 alone" in for_5
    assert f"slot={','.join(map(str, range(0, 44, 2)))}\n" in for_5
    assert "slot=1:0;1:2;1:4;" in rendered(placement("4", ["a"], holes))


def test_scattered_cores_of_one_package_are_counted_over_the_host() -> None:
    whole = parse_machine("{packages: 1, cores_per_package: 20}", "test")
    holes = whole._replace(cores=tuple(core._replace(usable=core.logical_index % 2 == 1) for core in whole.cores))
    assert "slot=1,3,5,7,9,11,13,15,17,19\n" in rendered(placement("1", ["h" * 20], holes))


def test_every_host_that_cannot_be_written_is_named() -> None:
    with pytest.raises(PlacementError) as caught:
        rendered(placement("1x3", ["a_b", "ok", "slot"], machine("1x2")))
    assert len(caught.value.problems) == 2


def gen_rankfile(kind: str, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "machine.xml").write_text(xml_of(kind))
    argv = [sys.executable, "-m", "ddlrun", "gen-rankfile", "2", "a", "--machine", str(tmp_path / "machine.xml")]
    return subprocess.run([*argv, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            "one thread first, no packages",
            "the first core has one hardware thread, others have more, and it has no",
        ),
        ("threads without cores", "hwloc finds no cores there, or at several depths"),
    ],
)
def test_a_machine_without_a_notation_for_both_majors_is_refused(kind: str, reason: str, tmp_path: Path) -> None:
    done = gen_rankfile(kind, tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert reason in done.stderr
    assert "ddlrun gen-rankfile --open-mpi 4" in done.stderr


@pytest.mark.parametrize(
    ("kind", "major", "slots"),
    [
        ("one thread first, no packages", 4, ["0-1", "2-3"]),
        ("one thread first, no packages", 5, ["0-2", "3-6"]),
        ("threads without cores", 4, ["0:0-3", "1:0-3"]),
    ],
)
def test_a_rank_file_for_one_major_says_so(
    kind: str, major: int, slots: list[str], mpirun: str, tmp_path: Path
) -> None:
    text = gen_rankfile(kind, tmp_path, "--open-mpi", str(major)).stdout
    assert text.splitlines()[0].endswith(f", for Open MPI {major} alone")
    assert [line.slot for line in parse(text)] == slots
    mapped = map_slots(major, slots, xml_of(kind), mpirun=mpirun)
    placed = placement("2", ["a"], machine_of(kind))
    assert mapped == [pus_of(binding.cores) for binding in placed.bindings[0]]


def test_a_dry_run_refuses_what_a_launch_would() -> None:
    argv = ["launch", "--dry-run", "-H", "slot", "--machine", "s822lc", "true"]
    done = subprocess.run([sys.executable, "-m", "ddlrun", *argv], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "a word of Open MPI's own grammar" in done.stderr


def test_ranks_on_some_threads_of_their_cores_have_whole_cores_in_the_rank_file(tmp_path: Path) -> None:
    for kind in ("equal packages", "packages of 4 and 2 cores"):
        plain, threads = gen_rankfile(kind, tmp_path), gen_rankfile(kind, tmp_path, "--threads-per-core", "1")
        assert (threads.returncode, threads.stdout) == (0, plain.stdout), threads.stderr
        assert "--threads-per-core: a rank file names whole cores" in threads.stderr


def test_a_launch_writes_for_the_major_that_runs(major: int, mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "machine.xml").write_text(xml_of("one thread first, no packages"))
    argv = [sys.executable, "-m", "ddlrun", "show", "rankfile", "-np", "2", "--machine", str(tmp_path / "machine.xml")]
    done = subprocess.run([*argv, "--mpirun", mpirun], capture_output=True, text=True, check=False)
    assert [line.slot for line in parse(done.stdout)] == (["0-1", "2-3"] if major == 4 else ["0-2", "3-6"]), done.stderr


def test_a_file_that_both_majors_read_alike_is_written_for_one_of_them_too(tmp_path: Path) -> None:
    kind = "one thread first, equal packages"
    both = gen_rankfile(kind, tmp_path).stdout
    assert [line.slot for line in parse(both)] == ["0:0-3", "1:0-3"]
    assert [gen_rankfile(kind, tmp_path, "--open-mpi", major).stdout for major in "45"] == [both, both]
