"""What lint says of a rank file is what real mpiruns of both majors do with it."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.mapping.rankfile import parse, render
from ddlrun.mapping.rankfile_lint import LintFinding, fix, lint, places
from ddlrun.topology import RankOrder
from tests.support.oracle import OracleError, map_ranks
from tests.support.shapes import MACHINES, hwloc_topology, machine, placement

MINSKY = "rank 0=a slot=0:0-4\n"
LONG = ";".join(f"0:{core}" for core in range(0, 10, 2)) + ";" + ";".join(f"1:{core}" for core in range(0, 10, 2))


class Read:
    """What a major really did: "as meant", "otherwise", "unbound", "refused"."""

    def __init__(self, major: int, mpirun: str, text: str, name: str, folder: Path) -> None:
        meant = {}
        try:
            placed = places(text, lambda _: machine(name))
        except IndexError:  # cores that are not there
            placed = {}
        for rank, (host, cores) in placed.items():
            inside: dict[int, tuple[int, ...]] = {}
            for core in cores:
                inside[core.package] = (*inside.get(core.package, ()), core.index_in_package)
            meant[rank] = (host, inside)
        try:
            got = map_ranks(major, text, hwloc_topology(name, folder), mpirun=mpirun)
            self.did = "as meant" if got == meant else "otherwise"
        except OracleError as error:
            self.did = "unbound" if "Data for" in error.output and not error.returncode else "refused"


# What a claim's words mean: the first that is found in it.
CLAIMS = [
    ("or fails", {"otherwise", "refused", "unbound"}),
    ("or drops it", {"otherwise"}),
    ("or means another", {"otherwise", "refused"}),
    ("unbound", {"unbound"}),
    ("binds the rank to none", {"unbound"}),
    ("reads it", {"as meant"}),
    ("does not read it", {"as meant"}),
    ("lets them share", {"as meant"}),
    ("does so", {"as meant"}),
    ("runs them so", {"as meant"}),
    ("silently", {"otherwise"}),
    ("gives", {"otherwise"}),
    ("drops what is beyond", {"otherwise"}),
    ("drops", {"otherwise"}),
    ("stops", {"refused", "unbound"}),
    ("fails", {"refused"}),
    ("refuses", {"refused"}),
    ("crashes", {"refused", "as meant"}),  # at the launch, after the map
    ("ends with 1", {"refused"}),
    ("needs -H", {"refused"}),
    ("Error", {"refused"}),
    ("missing", {"refused"}),
    ("No nodes", {"refused"}),
    ("overflow", {"refused"}),
]

# Text, machine, (line, part of what is found).
BAD = [
    ("rank 1=a slot=0:1\nrank 0=a slot=0:0\n", "minsky", (2, "rank 0 comes after rank 1")),
    ("rank 0=a slot=0:0\nrank 0=a slot=0:1\n", "minsky", (2, "rank 0 stands in line 1 already")),
    ("rank 0=a slot=0:0\nrank 2=a slot=0:1\n", "minsky", (None, "rank 1 has no line, rank 2 has")),
    ("rank 1=a slot=0:0\n", "minsky", (None, "rank 0 has no line")),
    ("rank 0=a slot=1:0,2\n", "minsky", (1, "a comma between cores of a package")),
    ("rank 0=a slot=0:0-1,3\n", "minsky", (1, "a comma between cores of a package")),
    ("rank 0=a slot=0:0-1,1:2-3\n", "minsky", (1, "a comma between cores of a package")),
    ("rank 0=a slot=0:0,1:0\n", "minsky", (1, "a comma between cores of a package")),
    ("rank 0=a slot=0:8-12\n", "minsky", (1, "package 0 has cores 0-9")),
    ("rank 0=a slot=1:8-12\n", "minsky", (1, "package 1 has cores 0-9")),
    ("rank 0=a slot=2:0\n", "minsky", (1, "there is no package 2")),
    ("rank 0=a slot=25\n", "minsky", (1, "there is no core 25")),
    ("rank 0=a slot=1:0-3\n", "8+10", (1, "packages of different sizes")),
    ("rank 0=a slot=0:4-2\n", "minsky", (1, "a range runs backwards")),
    ("rank 0=a slot=*\n", "minsky", (1, "slot=*")),
    ("rank 0=a slot=*:*\n", "minsky", (1, "slot=*:*")),
    ("rank 0=a slot=p1\n", "minsky", (1, "'p1' names no cores")),
    ("rank 0=a slot=0x1\n", "minsky", (1, "'0x1' names no cores")),
    ("rank 0=a slot=0-1:0-3\n", "minsky", (1, "'0-1:0-3' names no cores")),
    ("rank 0=a\n", "minsky", (1, "says no cores")),
    ("rank 0=a slot=0:0\r\n", "minsky", (1, "the line ends in CR LF")),
    ("rank 0=a slot=0:0\n# end", "minsky", (2, "a comment ends the file without a newline")),
    ("rank 0=a slot=0:0 # end", "minsky", (1, "a comment ends the file without a newline")),
    ("rank=0 a slot=0:0\n", "minsky", (1, "is no line of a rank file")),
    ("Rank 0=a slot=0:0\n", "minsky", (1, "is no line of a rank file")),
    ("rank 0=a slot=0:0\0\n", "minsky", (1, "is no line of a rank file")),
    ('rank 0="a" slot=0:0\n', "minsky", (1, "Open MPI cannot parse it")),
    ("rank 0=007 slot=0:0\n", "minsky", (1, "reads it as a number")),
    ("rank 0=9n.example.com slot=0:0\n", "minsky", (1, "begins with a digit and has a dot")),
    ("rank 0=a_b slot=0:0\n", "minsky", (1, "cannot launch on a name with _")),
    ("rank 0=+n0 slot=0:0\n", "minsky", (1, "is relative")),
    (f"rank 0={'a' * 55} slot=0:0\n", "minsky", (1, "host and slot text are 58 characters")),
    (f"rank 0=a slot={LONG};1:9;1:7;1:5;1:3;1:1;0:9;0:7\n", "minsky", (1, "host and slot text are 68 characters")),
    ("rank 0=a slot=0:0-1\nrank 1=a slot=0:1-2\n", "minsky", (2, "rank 1 has core 1 of a, as rank 0 has")),
    ("rank 0=a slot=0:0\nrank 1=a slot=0\n", "minsky", (2, "rank 1 has core 0 of a, as rank 0 has")),
    ("# nothing\n", "minsky", (None, "the file places no rank")),
    ("", "minsky", (None, "the file places no rank")),
    # Warnings.
    ("rank 0=a slot=0:0 - 1\n", "minsky", (1, "'- 1' after the slot text")),
    ("rank 0=a slot=5-14\n", "minsky", (1, "over several packages")),
    ("rank 0=a slot=0:0\nrank 1=a slot=0:1\nrank 2=b slot=0:0\n", "minsky", (None, "a has 2 ranks, b has 1")),
]  # fmt: skip


def found(text: str, name: str) -> tuple[LintFinding, ...]:
    return lint(text, lambda _: machine(name))


@pytest.mark.parametrize(("text", "name", "expected"), BAD)
def test_each_major_does_what_lint_says(
    text: str, name: str, expected: tuple[int | None, str], major: int, mpirun: str, tmp_path: Path
) -> None:
    findings = found(text, name)
    one = next(finding for finding in findings if expected[1] in finding.what)
    assert one.line == expected[0]
    assert one.remedy
    if len({finding.error for finding in findings}) == len(findings):  # several findings would hide each other
        claim = one.open_mpi_4 if major == 4 else one.open_mpi_5
        possible = next(outcomes for words, outcomes in CLAIMS if words in claim)
        assert Read(major, mpirun, text, name, tmp_path).did in possible, claim


GOOD = [
    "rank 0=a slot=0:0-4\nrank 1=a slot=1:0-9\n",
    "  rank  0 = a   slot = 0:*\n\n// text\n# text\nrank\t1=a\tslots=1:3 # more\n",
    "rank 0=a slot=0-3,8\nrank 1=a slot=4;5\nrank 2=a slot=s1",
    "rank 0=a slot=0:0;0:2\nrank 1=a slot=S1:1\nrank 2=a slot=1:c0\n",
    "rank 00=a slot=0:01\nrank 2=a slot=0:2\nrank 1=a slot=0:3;\n",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_lint_calls_good_is_read_as_it_is_meant(text: str, major: int, mpirun: str, tmp_path: Path) -> None:
    assert [one for one in found(text, "minsky") if one.error] == []
    assert Read(major, mpirun, text, "minsky", tmp_path).did == "as meant"


@given(st.sampled_from(sorted(MACHINES)), st.integers(1, 8), st.integers(1, 4), st.sampled_from(RankOrder))
def test_what_ddlrun_writes_is_good(name: str, x: int, y: int, order: RankOrder) -> None:
    described = machine(name)
    placed = placement(f"{min(x, len(described.cores))}x{y}", [f"h{i}" for i in range(y)], described, order)
    text = "".join(render(placed, "test"))
    findings = lint(text, lambda _: described, placed.topology.size, placed.hosts.names)
    assert [one for one in findings if "over several packages" not in one.what] == []
    told = {rank.rank: (rank.host.name, rank.seat.cores) for rank in placed.by_host()}
    assert places(text, lambda _: described) == told


def spoiled(text: str, how: random.Random) -> str:
    """Write a good file badly, so that a person still knows what is meant."""
    lines = text.splitlines()
    rows = [line for line in lines if line.startswith("rank")]
    how.shuffle(rows)
    rows = [
        row.replace("=", how.choice(["=", " = "])).replace(" slot", how.choice([" slot", "\t\tslots", "  slot"]))
        + how.choice(["", " ", " junk", "  # a word", "\r"])
        for row in rows
    ]
    rows = [row.replace(";", ",") if how.random() < 0.5 else row for row in rows]
    return "\n".join([*(line for line in lines if not line.startswith("rank")), *rows, how.choice(["", "# end"])])


@given(st.sampled_from(sorted(MACHINES)), st.integers(1, 6), st.integers(1, 3), st.randoms(use_true_random=False))
def test_what_is_mended_is_what_was_meant(name: str, x: int, y: int, how: random.Random) -> None:
    described = machine(name)
    placed = placement(f"{min(x, len(described.cores))}x{y}", [f"h{i}" for i in range(y)], described)
    text = "".join(render(placed, "test"))
    fixed, left = fix(spoiled(text, how), lambda _: described)
    assert [one for one in left if one.error] == []
    kept = "\n".join(line.partition(" #")[0] if line.startswith("rank") else line for line in fixed.splitlines())
    assert sorted(parse(kept)) == sorted(parse(text))
    assert fixed.startswith("#test\n")
    assert fix(fixed, lambda _: described)[0] == fixed


@given(st.text(), st.integers(1, 4))
def test_any_text_has_findings_and_no_other_end(text: str, ranks: int) -> None:
    for name in ("minsky", "8+10"):
        lint(text, lambda _, name=name: machine(name), ranks, ["a"])  # type: ignore[misc]
        fixed, _ = fix(f"rank 0=a slot={text}", lambda _, name=name: machine(name))  # type: ignore[misc]
        assert fixed.endswith("\n")


def test_a_machine_without_packages_and_cores_that_may_not_be_used() -> None:
    flat = machine("1x2")._replace(packaged=False)
    assert "it has no packages" in lint("rank 0=a slot=0:0\n", lambda _: flat)[0].what
    assert lint("rank 0=a slot=0-1\n", lambda _: flat) == ()
    half = machine("1x2")
    half = half._replace(cores=(half.cores[0], half.cores[1]._replace(usable=False)))
    warning = lint("rank 0=a slot=0:0-1\n", lambda _: half)[0]
    assert not warning.error
    assert "not all of these cores are usable" in warning.what


def test_the_number_of_ranks_and_the_hosts() -> None:
    fewer, more = (lint(MINSKY, ranks=ranks) for ranks in (2, 1))
    assert fewer[0].what == "1 ranks stand there, 2 are to be launched"
    assert more == ()
    two = "rank 0=a slot=0:0\nrank 1=a slot=0:1\n"
    assert lint(two, ranks=1)[0].open_mpi_4 == "silently runs the first ranks"
    assert lint(MINSKY, hosts=["b"])[0].what == "host 'a' is none of the job's"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ompi-issue-6277.rf", []),
        ("powerai-rank_gen-4x2x1.rf", []),
        ("powerai-rank_gen-4x2x3.rf", []),
        ("probe-63chars.rf", ["host and slot text are 69 characters"]),
        ("probe-comma.rf", ["a comma between cores"]),
        ("probe-crlf.rf", ["CR LF", "CR LF"]),
        ("probe-gap.rf", ["rank 1 has no line"]),
        ("probe-noslot.rf", ["says no cores", "the file places no rank"]),
        ("probe-ok.rf", []),
        ("probe-r0last.rf", ["rank 0 comes after rank 1"]),
        ("probe-tailcomment.rf", ["a comment ends the file"]),
        ("tenstorrent-4host.rf", []),
    ],
)
def test_captured_rank_files(capture: Callable[[str], Path], name: str, parts: list[str]) -> None:
    findings = [one for one in lint((capture("mpi-rankfile") / name).read_bytes().decode()) if one.error]
    assert len(findings) == len(parts)
    assert all(part in one.what for part, one in zip(parts, findings, strict=True))


def ddlrun(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ddlrun", "lint", *words]
    done = subprocess.run(argv, input=stdin, capture_output=True, check=False)
    return subprocess.CompletedProcess(argv, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_bytes(b"rank 1=a slot=1:0,1\r\nrank 0=a slot=0:0-12\n")
    done = ddlrun(str(path), "--machine", "s822lc")
    assert (done.returncode, done.stderr) == (2, "")
    assert f"{path}:2:15: error: slot=0:0-12 on a (2 packages x 10 cores" in done.stdout
    assert "    5.0: silently takes cores of package 1\n    fix: " in done.stdout
    as_json = json.loads(ddlrun(str(path), "--json").stdout)
    assert {one["line"] for one in as_json} == {1, 2}
    fixed = ddlrun(str(path), "--fix")
    assert (fixed.returncode, fixed.stdout, fixed.stderr) == (0, "rank 0=a slot=0:0-12\nrank 1=a slot=1:0;1:1\n", "")
    assert ddlrun(str(path), "--fix", "-o", str(path)).returncode == 0
    assert path.read_text() == fixed.stdout
    assert ddlrun("-", stdin=path.read_bytes()).returncode == 0
    assert ddlrun("-", "--open-mpi", "5", stdin=b"rank 0=a_b slot=0:0\n").stdout == ""
    assert ddlrun("-", stdin=b"rank 0=\xff slot=0:0\n").returncode == 2
    assert "ddlrun: error: rank file nowhere: No such file" in ddlrun("nowhere").stderr
    assert "-o: needs --fix" in ddlrun("-", "-o", "x").stderr


def test_machines_are_kept_by_host() -> None:
    described = {"a": machine("minsky"), "b": machine("1x2")}
    text = "rank 0=a slot=1:5\nrank 1=b slot=1:5\n"
    assert [one.line for one in lint(text, described.get)] == [2]
    assert lint(text, lambda _: None) == ()
