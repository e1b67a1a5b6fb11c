"""The man pages: up to date, complete, and without warnings of groff and mandoc."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ddlrun.cli.options.argv import options_by_name
from docs.reference.contexts import command_contexts
from docs.reference.man_pages import FOLDER, render_man_pages
from docs.reference.man_texts import EXAMPLES
from tests.support import needs

SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"]
PAGES = sorted(FOLDER.glob("*.1"))


def test_the_pages_are_those_of_the_program() -> None:
    assert {path.name: path.read_text() for path in PAGES} == render_man_pages(), "make reference"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_the_usual_sections_in_their_order(path: Path) -> None:
    headings = re.findall(r"(?m)^\.SH (.+)$", path.read_text())
    assert [heading for heading in headings if heading in SECTIONS] == SECTIONS
    assert set(headings) - {*SECTIONS} <= {"COMMANDS", "FILES"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_no_control_characters_and_only_known_macros(path: Path) -> None:
    text = path.read_text()
    assert [line for line in text.split("\n") if not line.isprintable()] == []
    macros = set(re.findall(r"(?m)^\.(\S+)", text))
    assert macros <= {'\\"', "TH", "SH", "SS", "TP", "PP", "RS", "RE", "EX", "EE"}


def plain(page: str) -> str:
    """Return a page without changes of the font and escapes of hyphens."""
    return re.sub(r"\\f[BIR]", "", page).replace("\\-", "-")


@pytest.mark.parametrize("name", command_contexts(), ids=lambda name: name or "ddlrun")
def test_a_page_names_every_option_of_the_help(name: str) -> None:
    context = command_contexts()[name]
    page = (FOLDER / f"{f'ddlrun {name}'.strip().replace(' ', '-')}.1").read_text()
    in_page = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", plain(page)))
    in_help = set(re.findall(r"(?m)^  (?:-\w+, )*(--?[a-z][\w-]*)", context.get_help()))
    assert in_help
    assert in_help <= in_page


@pytest.mark.parametrize("name", EXAMPLES, ids=lambda name: name or "ddlrun")
def test_the_options_of_an_example_exist(name: str) -> None:
    for example in EXAMPLES[name]:
        program, command, *words = shlex.split(example.command)
        assert program == "ddlrun"
        if command == "network":
            command = f"network {words.pop(0)}"
        context = command_contexts()["launch" if command == "rerun" else command]
        params = context.command.get_params(context)
        options = options_by_name(params)
        ends = [words.index(word) for word in ("train.py", "--") if word in words]
        before = words[: min(ends, default=len(words))]
        assert [word for word in before if word.startswith("-") and word not in options] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_groff_has_no_warning(path: Path) -> None:
    needs.program("groff", apt="groff")
    done = subprocess.run(["groff", "-man", "-ww", "-z", path], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_mandoc_has_no_warning() -> None:
    needs.program("mandoc", apt="mandoc")
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *PAGES], capture_output=True, text=True, check=False
    )
    dated = "missing date"  # before a release there is none
    assert [line for line in done.stdout.splitlines() if dated not in line] == []
