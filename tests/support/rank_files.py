"""Rank files with one problem each, and the code that the check reports."""

from typing import NamedTuple

from ddlrun.mapping.lint_findings import LintCode

_EVEN_CORES = ";".join(f"{package}:{core}" for package in range(2) for core in range(0, 10, 2))


class BadRankFile(NamedTuple):
    """A rank file's text, the machine of its hosts, and the code and line of its problem."""

    text: str
    machine: str
    code: LintCode
    line: int | None


BAD_RANK_FILES = (
    BadRankFile("rank 1=a slot=0:1\nrank 0=a slot=0:0\n", "minsky", LintCode.RANK_0_LATE, 2),
    BadRankFile("rank 0=a slot=0:0\nrank 0=a slot=0:1\n", "minsky", LintCode.DUPLICATE_RANK, 2),
    BadRankFile("rank 0=a slot=0:0\nrank 2=a slot=0:1\n", "minsky", LintCode.MISSING_RANKS, None),
    BadRankFile("rank 1=a slot=0:0\n", "minsky", LintCode.MISSING_RANKS, None),
    BadRankFile("rank 0=a slot=1:0,2\n", "minsky", LintCode.COMMA, 1),
    BadRankFile("rank 0=a slot=0:0-1,3\n", "minsky", LintCode.COMMA_AFTER_RANGE, 1),
    BadRankFile("rank 0=a slot=0:0-1,1:2-3\n", "minsky", LintCode.COMMA_BEFORE_PACKAGE, 1),
    BadRankFile("rank 0=a slot=0:0,1:0\n", "minsky", LintCode.COMMA_BEFORE_PACKAGE, 1),
    BadRankFile("rank 0=a slot=0:8-12\n", "minsky", LintCode.OUTSIDE_PACKAGE, 1),
    BadRankFile("rank 0=a slot=1:8-12\n", "minsky", LintCode.OUTSIDE_PACKAGE, 1),
    BadRankFile("rank 0=a slot=2:0\n", "minsky", LintCode.UNKNOWN_PACKAGE, 1),
    BadRankFile("rank 0=a slot=25\n", "minsky", LintCode.UNKNOWN_CORE, 1),
    BadRankFile("rank 0=a slot=1:0-3\n", "8+10", LintCode.UNEQUAL_PACKAGES, 1),
    BadRankFile("rank 0=a slot=0:4-2\n", "minsky", LintCode.BACKWARDS, 1),
    BadRankFile("rank 0=a slot=*\n", "minsky", LintCode.EVERY_CORE, 1),
    BadRankFile("rank 0=a slot=*:*\n", "minsky", LintCode.EVERY_PACKAGE, 1),
    BadRankFile("rank 0=a slot=p1\n", "minsky", LintCode.PHYSICAL, 1),
    BadRankFile("rank 0=a slot=0x1\n", "minsky", LintCode.NO_CORES, 1),
    BadRankFile("rank 0=a slot=0-1:0-3\n", "minsky", LintCode.NO_CORES, 1),
    BadRankFile("rank 0=a\n", "minsky", LintCode.NO_SLOT, 1),
    BadRankFile("rank 0=a slot=0:0\r\n", "minsky", LintCode.CR_LF, 1),
    BadRankFile("rank 0=a slot=0:0\n# end", "minsky", LintCode.NO_LAST_NEWLINE, 2),
    BadRankFile("rank 0=a slot=0:0 # end", "minsky", LintCode.NO_LAST_NEWLINE, 1),
    BadRankFile("rank=0 a slot=0:0\n", "minsky", LintCode.NOT_A_LINE, 1),
    BadRankFile("Rank 0=a slot=0:0\n", "minsky", LintCode.NOT_A_LINE, 1),
    BadRankFile("rank 0=a slot=0:0\0\n", "minsky", LintCode.NOT_A_LINE, 1),
    BadRankFile('rank 0="a" slot=0:0\n', "minsky", LintCode.HOST_NAME, 1),
    BadRankFile("rank 0=007 slot=0:0\n", "minsky", LintCode.HOST_NAME, 1),
    BadRankFile("rank 0=9n.example.com slot=0:0\n", "minsky", LintCode.HOST_NAME, 1),
    BadRankFile("rank 0=a_b slot=0:0\n", "minsky", LintCode.HOST_NAME_FOR_4, 1),
    BadRankFile("rank 0=+n0 slot=0:0\n", "minsky", LintCode.RELATIVE_HOST, 1),
    BadRankFile(f"rank 0={'a' * 55} slot=0:0\n", "minsky", LintCode.TOO_LONG, 1),
    BadRankFile(f"rank 0=a slot={_EVEN_CORES};1:9;1:7;1:5;1:3;1:1;0:9;0:7\n", "minsky", LintCode.TOO_LONG_FOR_BOTH, 1),
    BadRankFile("rank 0=a slot=0:0-1\nrank 1=a slot=0:1-2\n", "minsky", LintCode.SHARED_CORE, 2),
    BadRankFile("rank 0=a slot=0:0\nrank 1=a slot=0\n", "minsky", LintCode.SHARED_CORE, 2),
    BadRankFile("# nothing\n", "minsky", LintCode.NO_RANKS, None),
    BadRankFile("", "minsky", LintCode.NO_RANKS, None),
    BadRankFile("rank 0=a slot=0:0 - 1\n", "minsky", LintCode.TRAILING_WORDS, 1),
    BadRankFile("rank 0=a words slot=0:0\n", "minsky", LintCode.TRAILING_WORDS, 1),
    BadRankFile("rank 0=a slot=0:0 =\nrank 1=a slot=0:1\n", "minsky", LintCode.TRAILING_WORDS, 1),
    BadRankFile('rank 0=a slot=0:0 "x"\n', "minsky", LintCode.NOT_A_LINE, 1),
    BadRankFile("rank 0=a slot=0:0 username=b\n", "minsky", LintCode.NOT_A_LINE, 1),
    BadRankFile("rank 0=a slot=0:0 slot\n", "minsky", LintCode.NOT_A_LINE, 1),
    BadRankFile("rank 0=a slot=s0.1\n", "minsky", LintCode.NOT_A_LINE, 1),
    BadRankFile("rank 0=a /* b */ slot=0:0\n", "minsky", LintCode.NOT_A_LINE, 1),
    BadRankFile("/* a\n b */ rank 0=a slot=0:0 /\n", "minsky", LintCode.NOT_A_LINE, 2),
    BadRankFile("rank 0=a slot=\n", "minsky", LintCode.EMPTY_SLOT, 1),
    BadRankFile("rank 0=a slot=0:0\nrank 1\n", "minsky", LintCode.NO_HOST, 2),
    BadRankFile("words 5\nrank 0=a slot=0:0\n", "minsky", LintCode.NO_RANK, 1),
    BadRankFile("words port\nrank 0=a slot=0:0\n", "minsky", LintCode.NO_RANK_FIRST, 1),
    BadRankFile("rank 0=max_slots slot=0:0\n", "minsky", LintCode.HOST_NAME, 1),
    BadRankFile("rank 0=+n0a slot=0:0\n", "minsky", LintCode.HOST_NAME, 1),
    BadRankFile("words rank 0=a slot=0:0\n", "minsky", LintCode.NO_RANK_FIRST, 1),
    BadRankFile("rank 0=a slot=0:0 rank 1=a slot=0:1\n", "minsky", LintCode.SEVERAL_RANKS, 1),
    BadRankFile("rank 0=a slot=0:0 max_slots=2\n", "minsky", LintCode.SEVERAL_HOSTS, 1),
    BadRankFile("rank 0=a slot=0:0 slot=0:1\n", "minsky", LintCode.SLOT_TWICE, 1),
    BadRankFile("rank 0=a slot=0:0\nrank 1=a slot=0:10 slot=9\n", "minsky", LintCode.SLOT_TWICE, 2),
    BadRankFile("rank 0=a slot=0:0\nrank 1=a slot=0:10 slot=0:9\n", "minsky", LintCode.SLOT_TWICE, 2),
    BadRankFile("rank 0=a slot=0:0\nrank 1=a slot=9 slot=0:9\n", "minsky", LintCode.SLOT_AGAIN, 2),
    BadRankFile("rank 0=ada@a slot=0:0\n", "minsky", LintCode.USER, 1),
    BadRankFile("rank 0=a slot=0:0\nrank 1=a slot=0:1\nrank 1=a slot=0:2\n", "minsky", LintCode.DUPLICATE_RANK, 3),
    BadRankFile("rank 0=a slot=5-14\n", "minsky", LintCode.SEVERAL_PACKAGES, 1),
    BadRankFile("rank 0=a slot=0:0\nrank 1=a slot=0:1\nrank 2=b slot=0:0\n", "minsky", LintCode.UNEQUAL_HOSTS, None),
    BadRankFile("rank 0=a.b slot=0:0\n", "minsky", LintCode.DOTTED_HOST, 1),
)
