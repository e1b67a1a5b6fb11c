"""Generator of docs/reference/hangs.md from the results of runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.hangs.catalogue import FAMILIES
from tests.hangs.judge import Judgement

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hangs.md"
TOOLS = ("fr_trace", "vote")
HEAD = """# Hangs and verdicts

`python -m tests.hangs` starts jobs with `--stall-timeout {stall:g}`, on one machine without GPUs. A seed chooses the
rank at fault, the number of ranks, the step and the size of messages. {kinds} kinds of hangs are in
`tests/hangs/kinds/`; this page is made from `tests/hangs/results.json`, which runs alone write.

- A verdict is *right* if it names the rank at fault and its line, and no other rank; *in part* if it names the rank
  without the line, or with others. Where no rank differs from the others, it is right to name none.
- `fr_trace` is PyTorch's, with the members of groups, which PyTorch does not record for gloo: without them, it fails,
  and so does the page of `torch.distributed.debug` ({debug} of {recorded} jobs). It names ranks, not lines.
- Vote is a majority vote over stacks by py-spy: it names the ranks whose line is not that of more than half.
- A cell of theirs is *rank named alone / others alone*, of the jobs that hang with PyTorch for `fr_trace`.

| | runs | right | in part | none | wrong | fr_trace | vote |
|---|---|---|---|---|---|---|---|
"""
Row = Mapping[str, Any]


def render_page(results: Mapping[str, Row], stall: float) -> str:
    """Return the page."""
    hangs = {name: row for name, row in results.items() if row.get("ddlrun") is not None}
    by_family = {family: [row for name, row in hangs.items() if name.startswith(f"{family}.")] for family in FAMILIES}
    recorded = [row for row in hangs.values() if "debug" in row]
    head = HEAD.format(
        stall=stall,
        kinds=len({name.rpartition(".")[0] for name in hangs}),
        debug=sum(not row["debug"]["named"] for row in recorded),
        recorded=len(recorded),
    )
    lines = [_render_line(FAMILIES[family].text, rows) for family, rows in by_family.items() if rows]
    every = list(hangs.values())
    return head + "".join([*lines, _render_line("all", every)]) + _render_foot(every) + _render_healthy(results)


def _render_line(name: str, rows: Sequence[Row]) -> str:
    counts = Counter(row["ddlrun"] for row in rows)
    own = [str(counts[judgement.value]) for judgement in Judgement]
    cells = [name, str(len(rows)), *own, *(_render_tool(tool, rows) for tool in TOOLS)]
    return f"| {' | '.join(cells)} |\n"


def _render_tool(tool: str, rows: Iterable[Row]) -> str:
    found = [(row[tool], row["guilty"]) for row in rows if tool in row]
    right = sum(result["named"] == guilty or result["judgement"] == Judgement.RIGHT.value for result, guilty in found)
    wrong = sum(result["judgement"] == Judgement.WRONG.value for result, _ in found)
    return f"{right} / {wrong} of {len(found)}" if found else "-"


def _render_foot(rows: Sequence[Row]) -> str:
    """Return the precision, the recall, and the times."""
    right = sum(row["ddlrun"] == Judgement.RIGHT.value for row in rows)
    named = sum(row["ddlrun"] != Judgement.NOBODY.value for row in rows)
    times = [row["seconds"] for row in rows]
    commits = " and ".join(sorted({row["commit"] for row in rows}))
    return (
        f"\nPrecision, the part of verdicts that are right where they name a rank, is {100 * right / named:.0f} %;\n"
        f"recall, the part of hangs with a right verdict, is {100 * right / len(rows):.0f} %. A verdict came "
        f"{median(times):.1f} s after the timeout (median), at the latest {max(times):.0f} s.\n"
        f"The product was that of commit {commits}.\n"
    )


def _render_healthy(results: Mapping[str, Row]) -> str:
    rows = [row for row in results.values() if "ended" in row]
    ended = sum(row["ended"] for row in rows)
    return f"\nOf {len(rows)} healthy jobs, {ended} were ended within three times the timeout.\n" if rows else ""
