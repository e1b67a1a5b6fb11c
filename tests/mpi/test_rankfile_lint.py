"""The findings of lint agree with real mpiruns of both majors."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.machine import Machine
from ddlrun.mapping.lint_findings import LintCode, LintFinding
from ddlrun.mapping.rankfile import parse, render
from ddlrun.mapping.rankfile_entries import parse_places
from ddlrun.mapping.rankfile_lint import fix, lint
from ddlrun.mapping.slot_dialects import read_text
from ddlrun.mapping.slot_notation import render_slots
from ddlrun.mapping.slot_reading import pus_of
from ddlrun.ranges import parse_ranges
from ddlrun.topology import RankOrder
from tests.support.machine_kinds import machine_of, xml_of
from tests.support.oracle import OracleError, map_ranks
from tests.support.rank_files import BAD_RANK_FILES, BadRankFile
from tests.support.shapes import MACHINES, hwloc_topology, machine, placement
from tests.support.slot_oracle import map_slots

MINSKY = "rank 0=a slot=0:0-4\n"


def outcome(major: int, mpirun: str, text: str, name: str) -> str:
    """Return what a real mpirun does with a rank file: "as meant", "otherwise", "unbound" or "refused"."""
    try:
        got = map_ranks(major, text, hwloc_topology(name), mpirun=mpirun)
    except OracleError as error:
        return "unbound" if "Data for" in error.output and not error.returncode else "refused"
    return "as meant" if got == meant_places(text, name) else "otherwise"


def meant_places(text: str, name: str) -> dict[int, tuple[str, dict[int, tuple[int, ...]]]]:
    """Return each rank's host and cores by package, as the author meant them."""
    meant = {}
    try:
        placed = parse_places(text, lambda _: machine(name))
    except IndexError:  # cores that do not exist
        placed = {}
    for rank, (host, cores) in placed.items():
        inside: dict[int, tuple[int, ...]] = {}
        for core in cores:
            inside[core.package] = (*inside.get(core.package, ()), core.index_in_package)
        meant[rank] = (host, inside)
    return meant


# The outcomes that each code stands for, under 4.1 and under 5.0.
OUTCOMES = {
    LintCode.CR_LF: ({"refused", "unbound"}, {"refused", "unbound"}),
    LintCode.NO_LAST_NEWLINE: ({"refused", "unbound"}, {"refused", "unbound"}),
    LintCode.NOT_A_LINE: ({"refused", "unbound"}, {"refused", "unbound"}),
    LintCode.NO_SLOT: ({"refused", "unbound"}, {"unbound"}),
    LintCode.NO_RANK: ({"as meant"}, {"as meant"}),
    LintCode.NO_RANK_FIRST: ({"refused"}, {"as meant"}),
    LintCode.NO_HOST: ({"refused", "as meant"}, {"refused", "as meant"}),  # the oracle launches one rank
    LintCode.SEVERAL_RANKS: ({"otherwise", "refused"}, {"otherwise"}),
    LintCode.SEVERAL_HOSTS: ({"refused"}, {"otherwise", "refused"}),
    LintCode.SLOT_TWICE: ({"refused", "as meant"}, {"refused", "as meant"}),
    LintCode.SLOT_AGAIN: ({"as meant"}, {"as meant"}),
    LintCode.USER: ({"as meant"}, {"as meant"}),
    LintCode.EMPTY_SLOT: ({"refused", "unbound"}, {"refused", "unbound"}),
    LintCode.TRAILING_WORDS: ({"as meant"}, {"as meant"}),
    # Debian's build of 4.1 checks for overflows and aborts; the wheel's does not.
    LintCode.TOO_LONG: ({"refused", "as meant"}, {"as meant"}),
    LintCode.TOO_LONG_FOR_BOTH: ({"refused", "otherwise"}, {"otherwise"}),
    LintCode.EVERY_CORE: ({"otherwise"}, {"otherwise"}),
    LintCode.EVERY_PACKAGE: ({"otherwise"}, {"otherwise"}),
    LintCode.BACKWARDS: ({"unbound"}, {"unbound"}),
    LintCode.NO_CORES: ({"otherwise", "refused", "unbound"}, {"otherwise", "refused", "unbound"}),
    LintCode.PHYSICAL: ({"otherwise"}, {"otherwise"}),
    LintCode.COMMA: ({"otherwise", "refused", "unbound"}, {"as meant"}),
    LintCode.COMMA_AFTER_RANGE: ({"otherwise", "refused", "unbound"}, {"otherwise"}),
    LintCode.COMMA_BEFORE_PACKAGE: ({"as meant"}, {"otherwise"}),
    LintCode.RELATIVE_HOST: ({"refused"}, {"refused"}),
    LintCode.HOST_NAME: ({"otherwise", "refused"}, {"otherwise", "refused"}),
    LintCode.DOTTED_HOST: ({"as meant"}, {"as meant"}),  # the oracle keeps dotted names
    LintCode.HOST_NAME_FOR_4: ({"refused", "as meant"}, {"as meant"}),  # 4.1 crashes at the launch, after the map
    LintCode.UNKNOWN_PACKAGE: ({"refused"}, {"refused"}),
    LintCode.UNKNOWN_CORE: ({"refused"}, {"refused"}),
    LintCode.OUTSIDE_PACKAGE: ({"refused"}, {"otherwise", "refused"}),
    LintCode.UNEQUAL_PACKAGES: ({"as meant"}, {"otherwise", "refused"}),
    LintCode.SEVERAL_PACKAGES: ({"as meant"}, {"as meant"}),
    LintCode.NO_RANKS: ({"refused"}, {"refused"}),
    LintCode.DUPLICATE_RANK: ({"refused"}, {"refused"}),
    LintCode.RANK_0_LATE: ({"refused"}, {"refused"}),
    LintCode.MISSING_RANKS: ({"refused"}, {"refused"}),
    LintCode.SHARED_CORE: ({"as meant"}, {"refused"}),
    LintCode.UNEQUAL_HOSTS: ({"as meant"}, {"as meant"}),
}


def findings_of(text: str, name: str) -> tuple[LintFinding, ...]:
    return lint(text, lambda _: machine(name))


@pytest.mark.parametrize("bad", BAD_RANK_FILES)
def test_each_major_does_what_lint_reports(bad: BadRankFile, major: int, mpirun: str) -> None:
    findings = findings_of(bad.text, bad.machine)
    finding = next(finding for finding in findings if finding.code is bad.code)
    assert finding.line == bad.line
    if len({finding.error for finding in findings}) == len(findings):  # several findings would hide each other
        possible = OUTCOMES[finding.code][0 if major == 4 else 1]
        assert outcome(major, mpirun, bad.text, bad.machine) in possible, finding.effect(min(major, 5))


GOOD = [
    "rank 0=a slot=0:0-4\nrank 1=a slot=1:0-9\n",
    "  rank  0 = a   slot = 0:*\n\n// text\n# text\nrank\t1=a\tslots=1:3 # more\n",
    "rank 0=a slot=0-3,8\nrank 1=a slot=4;5\nrank 2=a slot=s1",
    "rank 0=a slot=0:0;0:2\nrank 1=a slot=S1:1\nrank 2=a slot=1:c0\n",
    "rank 00=a slot=0:01\nrank 2=a slot=0:2\nrank 1=a slot=0:3;\n",
]


@pytest.mark.parametrize("text", GOOD)
def test_a_file_without_findings_is_read_as_meant(text: str, major: int, mpirun: str) -> None:
    assert [finding for finding in findings_of(text, "minsky") if finding.error] == []
    assert outcome(major, mpirun, text, "minsky") == "as meant"


BLOCK_COMMENTS = "/* one */\n/* two\n   lines */ rank 0=a slot=0:0 /* three */\n/**/rank 1=a slot=0:1 // four\n"


def test_block_comments_are_no_findings(major: int, mpirun: str) -> None:
    assert findings_of(BLOCK_COMMENTS, "minsky") == ()
    assert outcome(major, mpirun, BLOCK_COMMENTS, "minsky") == "as meant"
    spoiled_lines = BLOCK_COMMENTS.replace("slot=0:0", "slots = 0:0 word").replace("// four", "\r")
    assert fix(spoiled_lines)[0] == BLOCK_COMMENTS.replace("// four", "").replace(" \n", "\n")


# Each kind of token, and words of the grammar in wrong places.
WORDS = (
    "rank", "rank 1", "slot", "slots", "slot=0:2", "=", "=a", "=b", "username", "user_name", "port", "cpu", "max-slots",
    "a", "5", "0:1", "s1", "a@b", "@", ";", "-", "10.0.0.1", "a.b", "+n0", '"q"', "#c", "//c", "/* c */", "/*", "*/",
    "/", ".", "(", "$", "\\", "é", "\f", "\v", "\r", "\0", "\n", "",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_lint_and_mpirun_agree_on_random_words(seed: int, major: int, mpirun: str) -> None:
    how = random.Random(seed)  # noqa: S311 - reproducible
    tokens = ["rank", "0", "=", "a", "slot", "=", "0:1"]
    for _ in range(how.randrange(1, 4)):
        tokens.insert(how.randrange(len(tokens) + 1), how.choice(WORDS))
    text = " ".join(tokens) + "\n"
    findings = findings_of(text, "minsky")
    names = {LintCode.HOST_NAME, LintCode.RELATIVE_HOST, LintCode.NO_HOST}
    if not names & {finding.code for finding in findings}:  # what depends on the hosts and -np
        refused = any(finding.error and finding.concerns(min(major, 5)) for finding in findings)
        assert (outcome(major, mpirun, text, "minsky") != "as meant") == refused, text


@given(st.sampled_from(sorted(MACHINES)), st.integers(1, 8), st.integers(1, 4), st.sampled_from(RankOrder))
def test_files_of_ddlrun_have_no_findings(name: str, x: int, y: int, order: RankOrder) -> None:
    described = machine(name)
    placed = placement(f"{min(x, len(described.cores))}x{y}", [f"h{i}" for i in range(y)], described, order)
    text = "".join(render(placed, "test"))
    findings = lint(text, lambda _: described, placed.topology.size, placed.hosts.names)
    assert {finding.code for finding in findings} <= {LintCode.SEVERAL_PACKAGES}
    placed_cores = {rank.rank: (rank.host.name, rank.binding.cores) for rank in placed.by_host()}
    assert parse_places(text, lambda _: described) == placed_cores


def spoiled(text: str, how: random.Random) -> str:
    """Return a file with mistakes that leave its meaning clear to a person."""
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
def test_a_fixed_file_is_what_was_meant(name: str, x: int, y: int, how: random.Random) -> None:
    described = machine(name)
    placed = placement(f"{min(x, len(described.cores))}x{y}", [f"h{i}" for i in range(y)], described)
    text = "".join(render(placed, "test"))
    fixed, left = fix(spoiled(text, how), lambda _: described)
    assert [finding for finding in left if finding.error] == []
    kept = "\n".join(line.partition(" #")[0] if line.startswith("rank") else line for line in fixed.splitlines())
    assert {*parse(kept)} == {*parse(text)}
    assert fixed.startswith("#test\n")
    assert fix(fixed, lambda _: described)[0] == fixed


@given(st.text(), st.integers(1, 4))
def test_any_text_can_be_checked_and_fixed(text: str, ranks: int) -> None:
    for name in ("minsky", "8+10"):
        lint(text, lambda _, name=name: machine(name), ranks, ["a"])  # type: ignore[misc]
        fixed, _ = fix(f"rank 0=a slot={text}", lambda _, name=name: machine(name))  # type: ignore[misc]
        assert fixed.endswith("\n")


def test_a_machine_without_packages_and_cores_that_may_not_be_used() -> None:
    flat = machine("1x2")._replace(packaged=False)
    assert lint("rank 0=a slot=0:0\n", lambda _: flat)[0].code is LintCode.NO_PACKAGES
    assert lint("rank 0=a slot=0-1\n", lambda _: flat) == ()
    half = machine("1x2")
    half = half._replace(cores=(half.cores[0], half.cores[1]._replace(usable=False)))
    warning = lint("rank 0=a slot=0:0-1\n", lambda _: half)[0]
    assert not warning.error
    assert warning.code is LintCode.UNUSABLE_CORES


def test_the_number_of_ranks_and_the_hosts() -> None:
    fewer, more = (lint(MINSKY, ranks=ranks) for ranks in (2, 1))
    assert fewer[0].message == "1 ranks have lines, 2 are to be launched"
    assert more == ()
    two = "rank 0=a slot=0:0\nrank 1=a slot=0:1\n"
    assert lint(two, ranks=1)[0].open_mpi_4 == "silently runs the first ranks"
    assert lint(MINSKY, hosts=["b"])[0].message == "host 'a' is not among the job's hosts"


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("rank 0=n1 slot=0\nrank 1=n2 slot=1\nrank 2=n1 slot=18\n", []),
        (f"rank 0=nodeA0 slot={';'.join(f'1:{core}' for core in (*range(10), *range(6)))}\n", [LintCode.TOO_LONG]),
        ("rank 0=n1 slot=0:0,1\n", [LintCode.COMMA]),
        ("rank 0=n1 slot=0:0\r\nrank 1=n1 slot=0:1\r\n", [LintCode.CR_LF, LintCode.CR_LF]),
        ("rank 0=n1\n", [LintCode.NO_SLOT, LintCode.NO_RANKS]),
        ("rank 0=n1 slot=0:0\nrank 1=n1 slot=0:1\n# tail", [LintCode.NO_LAST_NEWLINE]),
        ("#one rank per host\nrank 0=n-a05u08 slot=0:0\nrank 1=n-a04u02 slot=0:0\n", []),
    ],
)
def test_rank_files_of_unknown_machines(text: str, codes: list[LintCode]) -> None:
    assert [finding.code for finding in lint(text) if finding.error] == codes


# Kind of machine, slot text, code, and the slot text after --fix.
MISREAD = [
    ("packages of 4 and 2 cores", "1:0", LintCode.UNEQUAL_PACKAGES, "4"),
    ("packages of 4 and 2 cores", "1:0-1", LintCode.UNEQUAL_PACKAGES, "4-5"),
    ("packages of 2, 2 and 1 cores", "2:0", LintCode.UNEQUAL_PACKAGES, "4"),
    ("packages of 4 and 2 cores", "0:3-4", LintCode.OUTSIDE_PACKAGE, "0:3-4"),
    ("a package without cores", "3:0-1", LintCode.PACKAGE_GAP, "4-5"),
    ("a first package without cores", "1:0", LintCode.PACKAGE_GAP, "0"),
    ("a package without cores", "2:0-1", LintCode.EMPTY_PACKAGE, "2:0-1"),
    ("a first package without cores", "0:*", LintCode.EMPTY_PACKAGE, "0:*"),
    ("one thread first", "0-3", LintCode.MIXED_SMT, "0:0-3"),
    ("one thread first, equal packages", "3-5", LintCode.MIXED_SMT, "0:3;1:0-1"),
    ("one thread first, unequal packages", "2-3", LintCode.MIXED_SMT, "2-3"),
    ("one thread first, unequal packages", "0-5", LintCode.MIXED_SMT, "0:*;1:*"),
    ("one thread first, no packages", "3", LintCode.MIXED_SMT, "3"),
    ("one thread first", "4", LintCode.UNKNOWN_CORE, "4"),
    ("threads without cores", "0-1", LintCode.CORES_ARE_THREADS, "0-1"),
    ("equal packages", "0:0,1", LintCode.COMMA, "0:0-1"),
    ("equal packages", "0:0-1,2", LintCode.COMMA_AFTER_RANGE, "0:0-2"),
    ("equal packages", "0:0,1:0", LintCode.COMMA_BEFORE_PACKAGE, "0,3"),
    ("equal packages", "s0,s1", LintCode.COMMA_AFTER_RANGE, "0-5"),
    ("equal packages", "0:0,0:1", None, "0:0-1"),
    ("packages of 4 and 2 cores", "s0,1", None, "0-5"),
    ("packages of 2, 2 and 1 cores", "1:0-1", None, "2-3"),
    ("one thread first", "0", None, "0:0"),
    ("one thread first, unequal packages", "1:*", None, "1:*"),
    ("equal packages", "1:*", None, "1:0-2"),
]


@pytest.mark.parametrize(("kind", "slot", "code", "corrected"), MISREAD)
def test_lint_reports_the_cpus_that_a_real_mpirun_takes(
    kind: str, slot: str, code: LintCode | None, corrected: str, major: int, mpirun: str
) -> None:
    described = machine_of(kind)
    findings = [finding for finding in lint(f"rank 0=a slot={slot}\n", lambda _: described) if finding.error]
    assert [finding.code for finding in findings] == ([] if code is None else [code])
    assert fix(f"rank 0=a slot={slot}\n", lambda _: described)[0] == f"rank 0=a slot={corrected}\n"
    mapped = map_slots(major, [slot], xml_of(kind), mpirun=mpirun)
    cpus = mapped[0] if mapped and mapped[0] else None  # Open MPI 5 displays a rank without CPUs
    if not findings or not findings[0].concerns(min(major, 5)):
        (_, cores) = parse_places(f"rank 0=a slot={slot}\n", lambda _: described)[0]
        assert cpus == pus_of(cores)
        return
    effect = findings[0].open_mpi_4 if major == 4 else findings[0].open_mpi_5
    taken = re.search(r"silently takes (cores|CPUs) (\S+)", effect)
    assert cpus == (reported_cpus(described, taken[1], taken[2]) if taken else None)


@pytest.mark.parametrize("slot", ["0:9,0:*", "0:0-9,0:*", "1:2-99,1:*", "0:0,1:*"])
def test_open_mpi_5_forgives_a_missing_core_beside_all_cores_of_a_package(slot: str, major: int, mpirun: str) -> None:
    reading = read_text(slot, machine_of("equal packages"), min(major, 5))
    expected = None if reading is None else [reading]
    assert map_slots(major, [slot], xml_of("equal packages"), mpirun=mpirun) == expected


FOR_5_ALONE = "#by hand, for Open MPI 5 alone\n"


@pytest.mark.parametrize("kind", ["one thread first, unequal packages", "one thread first, no packages"])
def test_a_file_for_open_mpi_5_alone_is_read_as_5_reads_it(kind: str, major: int, mpirun: str) -> None:
    described = machine_of(kind)
    slots = [render_slots(cores, described, (5,)) for cores in (described.cores[:2], described.cores[2:3])]
    text = FOR_5_ALONE + "".join(f"rank {rank}=a slot={slot}\n" for rank, slot in enumerate(slots))
    findings = [finding for finding in lint(text, lambda _: described) if finding.error]
    assert {finding.code for finding in findings} == {LintCode.FOR_OPEN_MPI_5}
    assert [finding.concerns(5) for finding in findings] == [False] * len(findings)
    places = parse_places(text, lambda _: described)
    assert [places[rank][1] for rank in (0, 1)] == [described.cores[:2], described.cores[2:3]]
    assert fix(text, lambda _: described)[0] == text
    mapped = map_slots(major, [str(slot) for slot in slots], xml_of(kind), mpirun=mpirun)
    assert (mapped == [pus_of(places[rank][1]) for rank in (0, 1)]) == (major > 4)


def test_two_ranks_on_threads_of_one_core_share_it() -> None:
    described = machine_of("one thread first, no packages")
    text = FOR_5_ALONE + "rank 0=a slot=0-2\nrank 1=a slot=1-2\n"
    codes = [finding.code for finding in lint(text, lambda _: described) if finding.concerns(5)]
    assert codes == [LintCode.SHARED_CORE]


def reported_cpus(described: Machine, unit: str, text: str) -> frozenset[int]:
    numbers = parse_ranges(text)
    return pus_of(described.cores[core] for core in numbers) if unit == "cores" else numbers


@pytest.mark.extra
@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("ompi-issue-6277.rf", []),
        ("powerai-rank_gen-4x2x1.rf", []),
        ("powerai-rank_gen-4x2x3.rf", []),
        ("probe-63chars.rf", [LintCode.TOO_LONG]),
        ("probe-comma.rf", [LintCode.COMMA]),
        ("probe-crlf.rf", [LintCode.CR_LF, LintCode.CR_LF]),
        ("probe-gap.rf", [LintCode.MISSING_RANKS]),
        ("probe-noslot.rf", [LintCode.NO_SLOT, LintCode.NO_RANKS]),
        ("probe-ok.rf", []),
        ("probe-r0last.rf", [LintCode.RANK_0_LATE]),
        ("probe-tailcomment.rf", [LintCode.NO_LAST_NEWLINE]),
        ("tenstorrent-4host.rf", []),
    ],
)
def test_captured_rank_files(capture: Callable[[str], Path], name: str, codes: list[LintCode]) -> None:
    findings = lint((capture("mpi-rankfile") / name).read_bytes().decode())
    assert [finding.code for finding in findings if finding.error] == codes


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
    assert "    5.0: silently takes cores 0-12 of the host\n    fix: " in done.stdout
    as_json = json.loads(ddlrun(str(path), "--json").stdout)
    assert {finding["line"] for finding in as_json} == {1, 2}
    fixed = ddlrun(str(path), "--fix")
    assert (fixed.returncode, fixed.stdout, fixed.stderr) == (0, "rank 0=a slot=0:0-12\nrank 1=a slot=1:0;1:1\n", "")
    assert ddlrun(str(path), "--fix", "-o", str(path)).returncode == 0
    assert path.read_text() == fixed.stdout
    assert ddlrun("-", stdin=path.read_bytes()).returncode == 0
    assert ddlrun("-", "--open-mpi", "5", stdin=b"rank 0=a_b slot=0:0\n").stdout == ""
    assert ddlrun("-", stdin=b"rank 0=\xff slot=0:0\n").returncode == 2
    assert "ddlrun: error: rank file nowhere: No such file" in ddlrun("nowhere").stderr
    assert "-o: needs --fix" in ddlrun("-", "-o", "x").stderr


def test_each_host_has_its_own_machine() -> None:
    described = {"a": machine("minsky"), "b": machine("1x2")}
    text = "rank 0=a slot=1:5\nrank 1=b slot=1:5\n"
    assert [finding.line for finding in lint(text, described.get)] == [2]
    assert lint(text, lambda _: None) == ()
