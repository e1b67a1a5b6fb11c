"""Commands and addresses of --on-event: they get the events of real runs."""

import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddlrun.remote.event_targets import EventCommand, Webhook
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
    line = launch_line(OWN, tmp_path, "-np", "2", "--on-event", command)
    done = run(line, "sh", "-c", f"exit {code}")
    assert done.returncode == code, done.stderr
    start, end = events_of(tmp_path / "events")
    assert (start["event"], start["state"], start["ranks"], start["exit_code"]) == ("start", "running", 2, None)
    assert (end["event"], end["state"], end["exit_code"], end["run"]) == ("end", state, code, start["run"])
    assert end["run_dir"] == f"{tmp_path}/run"


@pytest.mark.extra
def test_a_stall_is_an_event_with_the_verdict_and_posted_to_an_address(tmp_path: Path) -> None:
    hang = "import os, time\nif os.environ['RANK'] == '1': time.sleep(9999)"
    with PostedEvents() as posted:
        line = launch_line(OWN, tmp_path, "-np", "2", "--grace", "1", "--stall-timeout", "1")
        done = run([*line, "--on-event", posted.url, sys.executable, "-c", hang])
        bodies = list(posted.bodies)
    assert done.returncode == 123, done.stderr
    events = sorted((json.loads(body) for body in bodies), key=lambda event: float(event["time"]))
    for event in events:
        validate(event, "event")
    assert [event["event"] for event in events] == ["start", "stall", "end"]
    assert "rank 1" in events[1]["verdict"]["text"]
    assert events[0]["verdict"] is events[2]["verdict"] is None


class PostedEvents(HTTPServer):
    """A server that keeps what is posted; requests with another path fail."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PostHandler)
        self.bodies: list[bytes] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"

    def __enter__(self) -> "PostedEvents":  # noqa: PYI034 - typing.Self came with 3.11
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class PostHandler(BaseHTTPRequestHandler):
    """The handler of a post."""

    server: PostedEvents

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204 if self.path == "/hook" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


def test_problems_of_an_address_do_not_show_its_secret_part() -> None:
    with PostedEvents() as posted:
        refused = Webhook(posted.url.replace("hook", "secret"))
        refused.start("{}")
        assert refused.finish(300) == "'127.0.0.1' replied with status 404"
    gone = Webhook(posted.url)
    gone.start("{}")
    assert gone.finish(300) == "cannot post to '127.0.0.1': [Errno 111] Connection refused"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        slow.start("{}")
        assert slow.finish(0.01) == "'127.0.0.1' did not reply within 0.01 s"


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
