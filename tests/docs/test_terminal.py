"""The terminal in README.md: what its commands print."""

import os
import re
from pathlib import Path

import pytest

from docs.terminal.__main__ import BLOCK, COMMANDS, README, run_commands
from tests.support import needs


def shown() -> str:
    (block,) = BLOCK.findall(README.read_text())
    return str(block)


def neutral(text: str) -> str:
    """Leave out what differs between runs: times, ports and names of runs."""
    return re.sub(r"\d+\.\d s|(?<=\]):\d+|\d{8}-[a-z]+", "-", text)


def test_the_terminal_shows_every_command() -> None:
    assert [line[2:] for line in shown().splitlines() if line.startswith("$ ")] == [*COMMANDS]
    assert all(part in shown() for part in ("one rank per GPU", "lost their connection to rank 1", ": hang: "))


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_the_terminal_shows_what_the_commands_print(mpirun: str, tmp_path: Path) -> None:
    needs.package("torch")
    environ = {**os.environ, "PATH": f"{Path(mpirun).parent}:{os.environ['PATH']}"}
    assert neutral(run_commands(tmp_path, environ)) == neutral(shown()), "python -m docs.terminal"
