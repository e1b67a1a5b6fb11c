"""The deadlines in docs/explanation/faults.md are those of the code."""

from pathlib import Path

import pytest

from ddlrun.rank.entry import CONNECT_SECONDS, CONNECTIONS_PER_SECOND
from ddlrun.rank.escalation import KILL_INTERVAL, STRAY_SECONDS
from ddlrun.rank.keeper import UNKILLABLE_SECONDS
from ddlrun.supervise.termination import HURRY_SECONDS, IDLE_SECONDS, LOST_SECONDS, MPIRUN_SECONDS, SLACK_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "faults.md"
DEADLINES = {
    "idle": f"TERM to mpirun after {IDLE_SECONDS:g} s, KILL {SLACK_SECONDS:g} s later",
    "ending": (
        f"ddlrun kills mpirun {SLACK_SECONDS:g} s later, or {HURRY_SECONDS:g} s after a second signal; "
        f"{LOST_SECONDS:g} s after that it waits for no keeper any more"
    ),
    "leaving": (
        f"TERM to mpirun after {MPIRUN_SECONDS / 3:g} s, KILL after {MPIRUN_SECONDS:g} s; "
        f"if a host was lost, after {LOST_SECONDS / 3:g} s and {LOST_SECONDS:g} s"
    ),
    "connecting": f"{CONNECT_SECONDS:g} s per address of ddlrun, and 1 s more per {CONNECTIONS_PER_SECOND} ranks",
    "terminating, exiting": f"repeated each {KILL_INTERVAL:g} s",
    "draining": f"TERM after {STRAY_SECONDS:g} s, KILL after {2 * STRAY_SECONDS:g} s",
}


@pytest.mark.parametrize("state", DEADLINES)
def test_the_page_has_the_deadline_of_a_state(state: str) -> None:
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {state} |"))
    assert DEADLINES[state] in row


def test_the_page_has_the_bound_of_a_run() -> None:
    beyond_grace = SLACK_SECONDS + LOST_SECONDS + MPIRUN_SECONDS
    assert f"**`--grace`** + {beyond_grace:g} s after the failure at the latest" in PAGE.read_text()
    assert f"processes that live {UNKILLABLE_SECONDS:g} s later" in PAGE.read_text()
