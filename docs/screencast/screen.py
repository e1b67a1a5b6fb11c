"""Lines of a terminal over time: as much of a terminal as ddlrun, a shell and pdb use."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from docs.screencast.recording import COLUMNS, Event

# Texts that are controls: a sequence with parameters, another sequence, a control character, or a printable text.
TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b.|([\x00-\x1f])|([^\x00-\x1f]+)")
TAB = 8


class Span(NamedTuple):
    """Characters of a line in one colour."""

    column: int
    text: str
    colour: str
    """The parameters of the SGR sequence, empty for the default."""


class Version(NamedTuple):
    """The content of a line from a time on."""

    seconds: float
    spans: tuple[Span, ...]


class Screen:
    """A terminal whose lines are all kept; `lines` has the versions of each."""

    def __init__(self) -> None:
        self.lines: list[list[Version]] = []
        self._cells: list[tuple[str, str]] = []
        self._column = 0
        self._colour = ""
        self._partial = ""

    def show(self, event: Event) -> None:
        """Take output of the terminal."""
        text = self._partial + event.text
        cut = re.search(r"\x1b(\[[?0-9;]*)?$", text)
        self._partial = text[cut.start() :] if cut else ""
        for token in TOKEN.finditer(text[: cut.start()] if cut else text):
            parameters, letter, control, printed = token.groups()
            if printed:
                self._print(printed, event.seconds)
            elif control:
                self._control(control, event.seconds)
            elif letter == "m":
                self._colour = "" if parameters in ("", "0") else parameters
            elif letter == "K":
                del self._cells[self._column :]
        self._keep(event.seconds)

    def _print(self, text: str, seconds: float) -> None:
        for character in text:
            if self._column == COLUMNS:
                self._end_line(seconds)
            self._cells += [(" ", "")] * (self._column - len(self._cells))
            self._cells[self._column : self._column + 1] = [(character, self._colour)]
            self._column += 1

    def _control(self, character: str, seconds: float) -> None:
        if character == "\n":
            column = self._column
            self._end_line(seconds)
            self._column = column
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character == "\t":
            self._column += TAB - self._column % TAB

    def _end_line(self, seconds: float) -> None:
        self._keep(seconds)
        self.lines.append([])
        self._cells, self._column = [], 0

    def _keep(self, seconds: float) -> None:
        """Store the line of the cursor if it has changed."""
        if not self.lines:
            self.lines.append([])
        spans = tuple(_spans(self._cells))
        versions = self.lines[-1]
        if not versions or versions[-1].spans != spans:
            versions.append(Version(seconds, spans))


def _spans(cells: Sequence[tuple[str, str]]) -> Iterator[Span]:
    for colour, group in groupby(enumerate(cells), key=lambda item: item[1][1]):
        characters = list(group)
        text = "".join(character for _, (character, _) in characters)
        if text.strip():
            yield Span(characters[0][0], text.rstrip(), colour)
