"""The deadlines in docs/explanation/faults.md are those of the code."""

from pathlib import Path

from ddlrun.rank import entry, escalation, keeper
from ddlrun.supervise import termination

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "faults.md"


def row(state: str) -> str:
    """Return the row of a state."""
    return next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {state} |"))


def test_the_page_has_the_deadlines_of_a_run() -> None:
    slack, lost = termination.SLACK_SECONDS, termination.LOST_SECONDS
    assert f"TERM to mpirun after {termination.IDLE_SECONDS:g} s, KILL {slack:g} s later" in row("idle")
    assert f"kills mpirun {slack:g} s later, or {termination.HURRY_SECONDS:g} s after a second signal" in row("ending")
    assert f"{lost:g} s after that it waits for no keeper" in row("ending")
    term, kill = termination.MPIRUN_SECONDS / 3, termination.MPIRUN_SECONDS
    assert f"TERM to mpirun after {term:g} s, KILL after {kill:g} s" in row("leaving")
    assert f"if a host was lost, after {lost / 3:g} s and {lost:g} s" in row("leaving")
    assert f"**`--grace`** + {slack + lost + kill:g} s after the failure at the latest" in PAGE.read_text()


def test_the_page_has_the_deadlines_of_a_keeper() -> None:
    per_second = f"1 s more per {entry.CONNECTIONS_PER_SECOND} ranks"
    assert f"{entry.CONNECT_SECONDS:g} s per address of ddlrun, and {per_second}" in row("connecting")
    assert f"repeated each {escalation.KILL_INTERVAL:g} s" in row("terminating, exiting")
    stray = escalation.STRAY_SECONDS
    assert f"TERM after {stray:g} s, KILL after {2 * stray:g} s" in row("draining")
    assert f"processes that live {keeper.UNKILLABLE_SECONDS:g} s later" in row("draining")
