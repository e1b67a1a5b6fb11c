"""Generator of share/man/man1: a man page for ddlrun and one per command, from the program and these documents."""

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from ddlrun import __version__
from ddlrun.cli.groups import LazyGroup
from docs.reference.contexts import command_contexts
from docs.reference.man_texts import BORROWED, EXAMPLES, FILES, SEE_ALSO
from docs.reference.roff import bold, escape, example, italic, markup, section, sentences, tagged
from docs.reference.tables import read_table

FOLDER = Path(__file__).parents[2] / "share" / "man" / "man1"
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
ALL_CODES = "The codes that all commands have in common are described in ddlrun(1)."


class Recorder(click.HelpFormatter):
    """A formatter that stores the options of a help text under their headings instead of laying them out."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[tuple[str, str]]] = {}
        self._heading = ""

    def write_heading(self, heading: str) -> None:
        """Begin a heading."""
        self._heading = heading

    def write_dl(self, rows: Iterable[tuple[str, str]], *_: object, **__: object) -> None:
        """Store the rows of a list."""
        self.rows.setdefault(self._heading, []).extend(rows)


def render_man_pages() -> dict[str, str]:
    """Return the man pages by the names of their files."""
    return {f"{_page_name(name)}.1": _render(name, context) for name, context in command_contexts().items()}


def _page_name(name: str) -> str:
    return f"ddlrun {name}".rstrip().replace(" ", "-")


def _render(name: str, context: click.Context) -> str:
    page, command = _page_name(name), context.command
    lines = [
        f'.TH {escape(page.upper())} 1 "{_date()}" "ddlrun {__version__}" "ddlrun manual"',
        *section("NAME", [f"{escape(page)} \\- {markup(_summary(command))}"]),
        *section("SYNOPSIS", _synopsis(name, context)),
        *section("DESCRIPTION", _description(command)),
        *_options(name, context),
        *section("EXAMPLES", (line for item in EXAMPLES[name] for line in example(*item))),
        *section("EXIT STATUS", _exit_status(name)),
        *section("ENVIRONMENT", _environment(name)),
        *section("FILES", _files(name)),
        *section("SEE ALSO", [_see_also(name)]),
    ]
    return '.\\" Generated from the help of ddlrun: make reference\n' + "\n".join(lines) + "\n"


def _date() -> str:
    """Return the date of the version in the changelog; empty before its release."""
    released = re.search(r"(?m)^## \[[\d.]+\] - (\d{4}-\d\d-\d\d)$", CHANGELOG.read_text())
    return released[1] if released else ""


def _summary(command: click.Command) -> str:
    """Return the first sentence of a help text as the NAME of a page, in lower case and without its full stop."""
    first = _paragraphs(command)[0].split(". ")[0].rstrip(".")
    return first[0].lower() + first[1:]


def _paragraphs(command: click.Command) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


def _synopsis(name: str, context: click.Context) -> Iterator[str]:
    pieces = context.command.collect_usage_pieces(context)
    yield " ".join([bold(f"ddlrun {name}".rstrip()), *map(_piece, pieces)])


def _piece(piece: str) -> str:
    """Return a piece of the usage line: placeholders are upper case, words to type lower case."""
    return "".join(italic(word) if word.isupper() else bold(word) if word.isalpha() else escape(word)
                   for word in re.split(r"([A-Za-z]+)", piece) if word)  # fmt: skip


def _description(command: click.Command) -> Iterator[str]:
    for paragraph in _paragraphs(command):
        if paragraph.startswith("\b"):
            for line in paragraph.splitlines()[1:]:
                term, _, text = line.partition("  ")
                yield from tagged(bold(term), text)
        else:
            yield from (".PP", sentences(paragraph))


def _options(name: str, context: click.Context) -> Iterator[str]:
    """Yield the options as the help shows them; commands have a section of their own."""
    recorder = Recorder()
    context.command.format_options(context, recorder)
    headings = tuple(context.command.sections) if isinstance(context.command, LazyGroup) else ()
    commands = [row for heading in headings for row in recorder.rows.pop(heading, [])]
    yield ".SH OPTIONS"
    if name in BORROWED:
        yield sentences(BORROWED[name])
    for heading, rows in recorder.rows.items():
        if len(recorder.rows) > 1:
            yield f'.SS "{escape(heading)}"'
        for names, text in rows:
            yield from tagged(_option_names(names), text)
    pages = ((bold(_page_name(f"{name} {command}".lstrip())), text) for command, text in commands)
    yield from section("COMMANDS", (line for page, text in pages for line in tagged(f"{page}(1)", text)))


def _option_names(names: str) -> str:
    """Return the names of an option in bold, and its value in italics."""
    words = re.findall(r"[^ ]+|\[.*\]", names)
    return " ".join(bold(word) if word.startswith("-") else escape(word) if word == "/" else italic(word)
                    for word in words).replace(",\\fR", "\\fR,")  # fmt: skip


def _exit_status(name: str) -> Iterator[str]:
    page = "reference/exit-codes.md"
    if not name:
        for code, meaning, examples in read_table(page, "All commands"):
            yield from tagged(bold(code), f"{meaning}: {examples}" if examples else meaning or "ended by this signal")
        return
    if name == "launch":
        for code, meaning in read_table(page, "launch"):
            yield from tagged(bold(code), meaning)
    else:
        for command, code, meaning in _codes_of(name, read_table(page, "Other commands")):
            yield from tagged(bold(code), meaning if command == name else f"`{command}`: {meaning}")
    yield from (".PP", sentences(ALL_CODES))


def _codes_of(name: str, rows: Iterable[list[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield command, code and meaning for the rows of a command; an empty cell repeats the command above."""
    commands: list[str] = []
    for cell, code, meaning in rows:
        commands = re.findall(r"`([^`]+)`", cell) or commands
        yield from ((command, code, meaning) for command in commands if f"{command} ".startswith(f"{name} "))


def _environment(name: str) -> Iterator[str]:
    page = "reference/environment-variables.md"
    if name == "":
        for variables, effect, option in read_table(page, "Variables that you may set"):
            yield from tagged(bold(variables), f"{effect} ({option})" if option else effect)
    elif name == "launch":
        yield sentences("The variables that ddlrun reads are listed in ddlrun(1). Every rank finds these:")
        for variables, value in read_table(page, "What ranks find"):
            yield from tagged(bold(variables), value)
    else:
        yield sentences("See ddlrun(1).")


def _files(name: str) -> Iterator[str]:
    for path, text in FILES.get(name, ()):
        yield from tagged(italic(path), text)
    if name == "launch":
        yield sentences("Each run has a folder, `~/.local/state/ddlrun/runs/NAME`, with these files:")
        for names, content in read_table("how-to/runs.md", "The run folder"):
            yield from tagged(italic(names.replace("`", "")), content)


def _see_also(name: str) -> str:
    commands = list(command_contexts()) if not name else ["", *SEE_ALSO[name]]
    pages = [word if "(" in word else f"{_page_name(word)}(1)" for word in commands if word != name]
    pages += SEE_ALSO[""] if not name else ()
    return ",\n".join(f"\\%{bold(name)}({number}" for name, _, number in (page.partition("(") for page in pages))


def write_man_pages() -> None:
    """Write the pages, and remove those of commands that are gone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    pages = render_man_pages()
    for path in FOLDER.glob("*.1"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text)
