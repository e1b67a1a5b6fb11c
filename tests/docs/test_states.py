"""The deadlines in docs/explanation/faults.md are those of the code."""

from pathlib import Path

from ddlrun.keeper import daemon, escalation, kept_rank
from ddlrun.supervise import ending

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "faults.md"


def row(state: str) -> str:
    """Return the row of a state."""
    return next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {state} |"))


def test_the_page_has_the_deadlines_of_a_run() -> None:
    slack, daemons = ending.SLACK_SECONDS, ending.DAEMON_SECONDS
    resume, (term, kill) = ending.RESUME_SECONDS, ending.MANAGER_SECONDS
    lost, starting = ending.LOST_SECONDS, ending.STARTING_SECONDS
    assert f"kills mpirun {slack:g} s later, or {ending.HURRY_SECONDS:g} s after a second signal" in row("ending")
    assert f"{slack:g} s after that it stops waiting for keepers" in row("ending")
    mpirun = f"resumes a stopped mpirun after {resume:g} s; TERM to mpirun after {term:g} s, KILL after {kill:g} s"
    assert mpirun in row("idle")
    assert mpirun in row("leaving")
    assert f"if a host was lost, {lost[0]:g} s and {lost[1]:g} s" in row("leaving")
    assert f"if not all ranks had started, {starting[0]:g} s and {starting[1]:g} s" in row("leaving")
    assert f"after a second signal, at once and {ending.HURRY_SECONDS:g} s" in row("leaving")
    assert f"daemons of other hosts have {daemons:g} s" in row("idle")
    bound = 2 * slack + max(kill, daemons)
    assert f"**`--grace`** + {bound:g} s after the failure at the latest" in PAGE.read_text()


def test_the_page_has_the_deadlines_of_a_keeper() -> None:
    per_second = f"1 s more per {kept_rank.CONNECTIONS_PER_SECOND} ranks"
    assert f"{kept_rank.CONNECT_SECONDS:g} s per address of ddlrun, and {per_second}" in row("connecting")
    assert f"repeated each {escalation.KILL_INTERVAL:g} s" in row("terminating, exiting")
    stray = escalation.STRAY_SECONDS
    assert f"TERM after {stray:g} s, KILL after {2 * stray:g} s" in row("draining")
    assert f"processes that live {escalation.UNKILLABLE_SECONDS:g} s later" in row("draining")
    resume, kill = daemon.RESUME_SECONDS, daemon.KILL_SECONDS
    assert f"resumes a stopped daemon {resume:g} s after the end of the job, and kills it {kill:g} s after" in row(
        "gone, alone"
    )
