"""The table of hangs: its runs, how verdicts are judged, and that the page shows the results."""

from dataclasses import dataclass

import pytest

from tests.hangs.catalogue import FAMILIES, Run, list_functions, list_runs
from tests.hangs.judge import Judgement, judge
from tests.hangs.page import PAGE, render_page
from tests.hangs.results import read_results
from tests.hangs.runs import STALL_SECONDS, run_hang
from tests.support import needs

# A few runs, of which none is in the other tests of hangs.
FEW = (
    "p2p.pipeline_order.0",
    "collectives.left_out.0",
    "ddl-groups.half_left_out.0",
    "locks.two_locks.0",
    "files.silent_http.0",
)
WITHOUT_LINE = ("finalized",)
RUNS = {run.name: run for run in list_runs()}


@pytest.mark.extra
@pytest.mark.parametrize("name", FEW)
def test_a_hang_is_named(name: str) -> None:
    needs.package("torch")
    row = run_hang(RUNS[name])
    assert row["ddlrun"] == Judgement.RIGHT.value, row


def test_each_kind_has_a_text_and_a_line() -> None:
    for family in FAMILIES.values():
        for kind, function in list_functions(family.module).items():
            assert function.text, kind
            assert function.lines or kind in WITHOUT_LINE, kind


@dataclass(frozen=True)
class Case:
    named: list[int]
    text: str
    judgement: Judgement


def line_of(run: Run) -> str:
    return f"rank {run.victim} waits in barrier ({run.places[0]})"


def test_verdicts_are_judged() -> None:
    run = RUNS["collectives.left_out.0"]
    other = (run.victim + 1) % run.ranks
    for case in (
        Case([run.victim], line_of(run), Judgement.RIGHT),
        Case([run.victim], "", Judgement.PART),
        Case([run.victim], line_of(run).replace(")", "9)"), Judgement.PART),
        Case(sorted([run.victim, other]), line_of(run), Judgement.PART),
        Case([other], line_of(run), Judgement.WRONG),
        Case([], line_of(run), Judgement.NOBODY),
    ):
        assert judge(run, case.named, case.text) is case.judgement, case


def test_where_ranks_are_alike_nobody_need_be_named() -> None:
    run = RUNS["p2p.ring_of_receives.0"]
    assert judge(run, [], line_of(run)) is Judgement.RIGHT
    assert judge(run, [], "") is Judgement.NOBODY


def test_of_a_tie_the_other_side_is_not_named() -> None:
    run = RUNS["p2p.not_sent.0"]
    receives, goes_on = (f"rank 0 waits in recv ({place})" for place in run.places)
    text = f"{receives}; {goes_on}"
    assert judge(run, [], text) is judge(run, [run.victim], goes_on) is Judgement.RIGHT
    assert judge(run, [], receives) is Judgement.NOBODY
    assert judge(run, [(run.victim + 1) % run.ranks], text) is Judgement.WRONG


def test_the_page_shows_the_results() -> None:
    assert PAGE.read_text() == render_page(read_results(), STALL_SECONDS)
