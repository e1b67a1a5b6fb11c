"""ddlrun show env: the variables that each rank finds."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddlrun.environment.frameworks import OWN
from ddlrun.environment.secrets import redact
from ddlrun.plan import Plan
from ddlrun.plan.rank_variables import own_variables, shared_variables

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.report.view_records import EnvironmentRecord, RankVariablesRecord

# The ranks whose variables are shown without --ranks.
MOST_RANKS = 16


def show_variables(plan: Plan, chosen: frozenset[int] | None) -> tuple[str, "EnvironmentRecord"]:
    """Return the variables of ranks as text and as JSON can carry them; `chosen` are those of --ranks."""
    ranks = _rank_records(plan, chosen)
    variables = plan.printed_variables
    record: EnvironmentRecord = {
        "schema": "urn:ddlrun:show-env:1",
        "set": variables,
        "set_by_rank": [word.partition("=")[0] for word in variables.get(OWN, "").split()],
        "passed_on": sorted(set(plan.exports) - set(variables)),
        "removed": list(plan.removed),
        "ranks": ranks,
    }
    inherited = redact({name: os.environ[name] for name in record["passed_on"] if name in os.environ})
    text = _render_block("all ranks:", shared_variables(plan))
    text += "".join(_render_block(f"rank {rank['rank']} on {rank['host']}:", rank["variables"]) for rank in ranks)
    if chosen is None and plan.placement.topology.size > MOST_RANKS:
        text += f"the job has {plan.placement.topology.size} ranks: --ranks LIST shows others\n"
    text += _render_block("passed on to all ranks:", inherited)
    return text + (f"removed: {' '.join(plan.removed)}\n" if plan.removed else ""), record


def _rank_records(plan: Plan, chosen: frozenset[int] | None) -> "list[RankVariablesRecord]":
    """Return the own variables of the chosen ranks, else of the first ones."""
    shown = frozenset(range(MOST_RANKS)) if chosen is None else chosen
    placed = sorted((rank for rank in plan.placement.by_host() if rank.rank in shown), key=lambda rank: rank.rank)
    return [
        {"rank": rank.rank, "host": rank.host.name, "variables": own_variables(plan, os.environ, rank)}
        for rank in placed
    ]


def _render_block(title: str, variables: Mapping[str, str]) -> str:
    """Return a title, and a line for each variable below it."""
    return f"{title}\n" + "".join(f"  {name}={value}\n" for name, value in variables.items())
