"""The screencast of docs/screencast: the recording, and the animated picture of it."""

import os
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs.screencast.__main__ import CAST, DESCRIPTION, FOLDER, PICTURE, PROMPT, STEPS, TITLE
from docs.screencast.drawing import draw, lines_of
from docs.screencast.recording import Event, Step, parse_cast, record, render_cast, shorten_pauses
from docs.screencast.screen import Screen
from tests.conftest import launch_line

ROOT = Path(__file__).parents[2]


def test_the_picture_is_that_of_the_recording() -> None:
    picture = draw(parse_cast(CAST.read_text()), TITLE, DESCRIPTION)
    assert PICTURE.read_text() == picture, "python -m docs.screencast"
    assert ET.fromstring(picture).get("role") == "img"
    assert "screencast/runs.svg)" in (ROOT / "docs" / "how-to" / "runs.md").read_text()


def test_the_recording_shows_every_command() -> None:
    lines = [*lines_of(parse_cast(CAST.read_text()))]
    typed = [step.keys.strip() for step in STEPS if step.keys]
    shown = [line.removeprefix("$ ").removeprefix("(Pdb) ") for line in lines if re.match(r"\$ |\(Pdb\) ", line)]
    assert shown == typed
    text = "\n".join(lines)
    assert all(part in text for part in ("failed: rank 1", "ZeroDivisionError", "succeeded", "failed (1)"))


def test_a_recording_is_what_its_file_has() -> None:
    events = [Event(0.5, "a\r\n"), Event(9.5, "\x1b[1mb\x1b[0m")]
    assert parse_cast(render_cast(events, "title")) == events
    assert shorten_pauses(events) == [Event(0.5, "a\r\n"), Event(2.5, "\x1b[1mb\x1b[0m")]


def test_a_line_has_a_version_for_each_change() -> None:
    screen = Screen()
    for event in (Event(1, "10 %\r"), Event(2, "20 %\x1b["), Event(3, "0m\rdone\x1b[K\r\nab\b\x1b[31mc\n\td")):
        screen.show(event)
    texts = [[(version.seconds, [span.text for span in version.spans]) for version in line] for line in screen.lines]
    assert texts == [[(1, ["10 %"]), (2, ["20 %"]), (3, ["done"])], [(3, ["a", "c"])], [(3, ["d"])]]
    assert [span.column for span in screen.lines[2][0].spans] == [8]
    assert [span.colour for span in screen.lines[1][0].spans] == ["", "31"]


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_commands_can_be_recorded(mpirun: str, tmp_path: Path) -> None:
    shutil.copy(FOLDER / "train.py", tmp_path)
    launch = " ".join(launch_line(mpirun, tmp_path / "run", "--quiet", "-np", "1", "train.py", "--epochs", "1"))
    steps = (Step("", PROMPT), Step(f"{launch}\n", rf"loss 1.500[\s\S]*{PROMPT}"))
    events = record(steps, {**os.environ, "PS1": "$ ", "TERM": "xterm"}, tmp_path)
    assert "epoch 0: loss 1.500" in [*lines_of(events)]
