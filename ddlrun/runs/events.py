"""Events of a run: the JSON that the command or address of --on-event gets."""

import json
import time
from typing import Literal, TypedDict

from ddlrun.errors import spell_options
from ddlrun.hangs.examination import HangVerdictRecord
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.plan import Plan


class EventRecord(TypedDict):
    """An event of a run."""

    schema: Literal["urn:ddlrun:event:1"]
    event: Literal["start", "stall", "end"]
    """start: ddlrun is about to start the ranks; stall: ranks have printed nothing for the time of --stall-timeout, and
    were examined; end: all ranks have ended."""
    time: float
    """Seconds since 1970."""
    run: str
    """The run's name; a restart is a run of its own."""
    run_dir: str
    """The run folder."""
    hosts: list[str]
    ranks: int
    """The number of ranks."""
    state: Literal["running", "succeeded", "failed", "ended"]
    """ended: by a user, the scheduler or a time limit."""
    exit_code: int | None
    """The exit code of ddlrun; null before the end."""
    seconds: float | None
    """The duration of the run; null before the end."""
    reason: str | None
    """The reason of a failure that is not a rank's own, in words."""
    failed_rank: int | None
    """The rank that failed first; null: none did."""
    lost_hosts: list[str]
    """Hosts that were lost."""
    verdict: HangVerdictRecord | None
    """The verdict on a job that stalls; null for other events."""


def render_start(plan: Plan) -> str:
    """Render the start of a run."""
    return json.dumps(_record(plan)) + "\n"


def render_stall(plan: Plan, verdict: HangVerdictRecord) -> str:
    """Render a stall."""
    record = _record(plan)
    record["event"] = "stall"
    record["verdict"] = verdict
    return json.dumps(record) + "\n"


def render_end(plan: Plan, outcome: Outcome) -> str:
    """Render the end of a run."""
    record = _record(plan)
    record["event"] = "end"
    record["state"] = _final_state(outcome)
    record["exit_code"] = outcome.exit_code
    record["seconds"] = outcome.seconds
    record["reason"] = outcome.reason and spell_options(outcome.reason)
    record["failed_rank"] = outcome.root.rank if outcome.root else None
    record["lost_hosts"] = list(outcome.lost_hosts)
    return json.dumps(record) + "\n"


def _final_state(outcome: Outcome) -> Literal["succeeded", "failed", "ended"]:
    if outcome.exit_code == 0:
        return "succeeded"
    return "ended" if outcome.requested else "failed"


def _record(plan: Plan) -> EventRecord:
    return {
        "schema": "urn:ddlrun:event:1",
        "event": "start",
        "time": time.time(),
        "run": plan.run_id,
        "run_dir": plan.run_dir.path,
        "hosts": list(plan.placement.hosts.names),
        "ranks": plan.placement.topology.size,
        "state": "running",
        "exit_code": None,
        "seconds": None,
        "reason": None,
        "failed_rank": None,
        "lost_hosts": [],
        "verdict": None,
    }
