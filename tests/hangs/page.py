"""Generator of docs/reference/hangs.md from the results of runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.hangs.catalogue import FAMILIES, list_runs
from tests.hangs.judge import Judgement

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hangs.md"
TOOLS = ("fr_trace", "vote")
HEAD = """# Hangs and verdicts

`python -m tests.hangs` runs jobs that hang on purpose, with `--stall-timeout {stall:g}`, on one machine without GPUs.
Seeds choose the rank at fault, the number of ranks (2 to 8), the step and the size of messages. Shown are {runs} of
{all_runs} runs, of {kinds} kinds.

- A *right* verdict names the rank at fault and its line, and no other rank; or no rank where none differs. One that is
  right *in part* names others, too, or not the line.
- `fr_trace`, PyTorch's own analysis, names ranks, not lines. PyTorch 2.13 does not record the members of gloo's
  groups: each job adds them. Without them, `fr_trace` and the page of `torch.distributed.debug` fail ({failed} of
  {recorded} jobs).
- *Vote* compares stacks of py-spy, and names the ranks that are not where more than half are.
- Cells of these two: jobs with only the rank at fault named/only others/all.

|kinds|runs|right|in part|none|wrong|fr_trace|vote|
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
        all_runs=len(list(list_runs())),
        runs=len(hangs),
        kinds=len({name.rpartition(".")[0] for name in hangs}),
        failed=sum(not row["debug"]["named"] for row in recorded),
        recorded=len(recorded),
    )
    lines = [_render_line(FAMILIES[family].text, rows) for family, rows in by_family.items() if rows]
    every = list(hangs.values())
    return head + "".join([*lines, _render_line("all", every)]) + _render_foot(every) + _render_healthy(results)


def _render_line(name: str, rows: Sequence[Row]) -> str:
    counts = Counter(row["ddlrun"] for row in rows)
    own = [str(counts[judgement.value]) for judgement in Judgement]
    cells = [name, str(len(rows)), *own, *(_render_tool(tool, rows) for tool in TOOLS)]
    return f"|{'|'.join(cells)}|\n"


def _render_tool(tool: str, rows: Iterable[Row]) -> str:
    found = [(row[tool], row["guilty"]) for row in rows if tool in row]
    right = sum(result["named"] == guilty or result["judgement"] == Judgement.RIGHT.value for result, guilty in found)
    wrong = sum(result["judgement"] == Judgement.WRONG.value for result, _ in found)
    return f"{right}/{wrong}/{len(found)}" if found else "-"


def _render_foot(rows: Sequence[Row]) -> str:
    """Return the precision, the recall, and the times."""
    right = sum(row["ddlrun"] == Judgement.RIGHT.value for row in rows)
    named = sum(row["ddlrun"] != Judgement.NOBODY.value for row in rows)
    times = [row["seconds"] for row in rows]
    commits = " and ".join(sorted({row["commit"] for row in rows}))
    return (
        f"\nPrecision (right verdicts among those that name a rank): {100 * right / named:.0f} %.\n"
        f"Recall (right verdicts among all hangs): {100 * right / len(rows):.0f} %.\n"
        f"Time from the timeout to the verdict: median {median(times):.1f} s, longest {max(times):.0f} s,\n"
        f"on two busy cores. Commit of ddlrun: {commits}.\n"
    )


def _render_healthy(results: Mapping[str, Row]) -> str:
    rows = [row for row in results.values() if "ended" in row]
    ended = sum(row["ended"] for row in rows)
    return f"\nOf {len(rows)} healthy jobs, {ended} were ended within three times the timeout.\n" if rows else ""
