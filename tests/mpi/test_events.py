"""Commands of --on-event: started at the start and at the end of real runs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddlrun.remote.event_command import EventCommand
from tests.conftest import OWN, launch_line
from tests.support.json_schemas import validate
from tests.support.launches import run
from tests.support.processes import wait_for

APPEND = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


def events_of(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        validate(event, "event")
    return sorted(events, key=lambda event: float(event["time"]))


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed")])
def test_the_start_and_the_end_of_a_run_are_events(tmp_path: Path, code: int, state: str) -> None:
    command = f'{sys.executable} -c "{APPEND}" {tmp_path}/events'
    line = launch_line(OWN, tmp_path, "-np", "2", "--overload", "--on-event", command)
    done = run(line, "sh", "-c", f"exit {code}")
    assert done.returncode == code, done.stderr
    start, end = events_of(tmp_path / "events")
    assert (start["event"], start["state"], start["ranks"], start["exit_code"]) == ("start", "running", 2, None)
    assert (end["event"], end["state"], end["exit_code"], end["run"]) == ("end", state, code, start["run"])
    assert end["run_dir"] == f"{tmp_path}/run"


def test_a_command_that_cannot_be_started_is_a_note(tmp_path: Path) -> None:
    line = launch_line(OWN, tmp_path, "-np", "1", "--on-event", "/no/such command", "true")
    done = run(line)
    assert done.returncode == 0
    assert done.stderr.count("ddlrun: note: --on-event: cannot start '/no/such': No such file or directory") == 2


def test_a_command_that_cannot_be_parsed_is_an_error(tmp_path: Path) -> None:
    done = run(launch_line(OWN, tmp_path, "-np", "1", "--on-event", "a 'b", "true"))
    assert (done.returncode, done.stderr) == (
        2,
        'ddlrun: error: --on-event "a \'b": No closing quotation; quote it as for a shell\n',
    )


def test_a_command_that_does_not_end_is_killed() -> None:
    command = EventCommand(["sleep", "1000"])
    assert command.start("{}") is None
    assert command.finish(0.01) == "'sleep' did not end within 0.01 s, and was killed"
    assert command.finish(0.01) is None


def test_a_command_that_reads_nothing_does_not_hold_up_the_run(tmp_path: Path) -> None:
    command = EventCommand(["touch", str(tmp_path / "started")])
    assert command.start("x" * (1 << 20)) is None
    wait_for((tmp_path / "started").exists)
    assert command.finish(300) is None
