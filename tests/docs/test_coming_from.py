"""The pages for users of other launchers: each command line in their tables means what stands beside it."""

import re
import shlex
from pathlib import Path

import pytest

from ddlrun.cli.launch import command as launch
from ddlrun.cli.options.translation import FOREIGN

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
LAUNCHERS = ("torchrun", "horovodrun", "accelerate launch", "mpirun")
PAGES = ("from-torchrun", "from-horovodrun", "from-accelerate", "from-mpirun")
NEW = (*PAGES, "pytorch-on-slurm", "../explanation/processes")
ROW = re.compile(rf"(?m)^\| `(?:{'|'.join(LAUNCHERS)}) ([^`]*)` \| `ddlrun launch ([^`]*)` \|$")
ROWS = [row for page in PAGES for row in ROW.findall((FOLDER / f"{page}.md").read_text())]
OWN_OPTIONS = {name for param in launch.params for name in param.opts}
# What a command line says about itself.
OWN = ("translated", "arguments")


def options(words: str) -> dict[str, object]:
    parsed = launch.make_context("ddlrun launch", shlex.split(words))
    return {name: value for name, value in parsed.params.items() if name not in OWN}


@pytest.mark.parametrize(("theirs", "ours"), ROWS)
def test_a_command_of_another_launcher_means_what_the_page_says(theirs: str, ours: str) -> None:
    assert options(theirs) == options(ours)
    assert (FOREIGN - OWN_OPTIONS).isdisjoint(shlex.split(ours))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_command_lines(page: str) -> None:
    assert len(ROW.findall((FOLDER / f"{page}.md").read_text())) > 5


@pytest.mark.parametrize("page", NEW)
def test_a_page_for_the_first_day_is_short(page: str) -> None:
    assert len((FOLDER / f"{page}.md").read_text().split()) <= 600
