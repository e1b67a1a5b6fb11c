"""Every code of the rank file check is reported, and renders."""

from ddlrun.mapping.lint_findings import LintCode, LintFinding
from ddlrun.mapping.rankfile_entries import parse_host_names
from ddlrun.mapping.rankfile_lint import lint
from tests.support.machine_kinds import machine_of
from tests.support.rank_files import BAD_RANK_FILES
from tests.support.shapes import machine

# Kinds of machines, and slot texts that they read otherwise than they are meant.
KINDS = (
    ("a package without cores", "3:0-1"),
    ("a package without cores", "2:0-1"),
    ("one thread first", "0-3"),
    ("threads without cores", "0-1"),
    ("a hidden package", "0:0"),
)


def every_finding() -> list[LintFinding]:
    """Return findings of all codes, each from a rank file that has the problem."""
    findings: list[LintFinding] = []
    for bad in BAD_RANK_FILES:
        machines = dict.fromkeys(parse_host_names(bad.text), machine(bad.machine))
        findings += lint(bad.text, machines.get)
    plain = machine("1x2")
    flat = plain._replace(packaged=False)
    half = plain._replace(cores=(plain.cores[0], plain.cores[1]._replace(usable=False)))
    two = "rank 0=a slot=0:0\nrank 1=a slot=0:1\n"
    for kind, slot in KINDS:
        findings += lint(f"rank 0=a slot={slot}\n", dict.fromkeys("a", machine_of(kind)).get)
    one_thread_first = machine_of("one thread first, no packages")
    findings += lint("#threads, for Open MPI 5 alone\nrank 0=a slot=0-2\n", lambda _: one_thread_first)
    findings += lint("rank 0=a slot=\n")
    findings += lint(two, lambda _: flat)
    findings += lint(two, lambda _: half)
    findings += lint(two, ranks=1)
    findings += lint(two, ranks=3)
    findings += lint(two, hosts=["b"])
    return findings


def test_every_code_is_reported_and_renders() -> None:
    findings = every_finding()
    assert {finding.code for finding in findings} == set(LintCode)
    for finding in findings:
        effects = [finding.effect(major) for major in (None, 4, 5)]
        texts = (finding.message, finding.open_mpi_4, finding.open_mpi_5, finding.remedy, *effects)
        assert all(text and "{" not in text and "\n" not in text for text in texts), finding


def test_a_major_that_reads_a_line_as_meant_is_not_concerned() -> None:
    comma = LintFinding(LintCode.COMMA, 1, 1)
    assert (comma.concerns(4), comma.concerns(5), comma.concerns(None)) == (True, False, True)
