"""Lines of a rank file as both majors of Open MPI split them into tokens: their lexers are the same.

A newline, a comment or a block comment ends a line. What is not a token, such as CR, is a syntax error.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

# The alternatives are in an order in which the first match is the longest, which a lexer takes.
_USER = r"(?:[A-Za-z0-9][A-Za-z0-9_-]*@)?"
_TOKEN = rf"""(?x)[\f\t\v\ ]*(?:
    (?P<comment>(?:\#|//)[^\n]*(?:\n|\Z)) | (?P<newline>\n | /\*(?s:.*?)(?:\*/|\Z) | \Z)
    | (?P<quoted>"[^"]*") | (?P<equal>=) | (?P<relative>\+n[0-9]+)
    | (?P<dotted>{_USER}(?:[A-Za-z][A-Za-z0-9_-]*\.[A-Za-z0-9_.-]* | (?:[0-9]{{1,3}}\.){{3}}[0-9]{{1,3}}))
    | (?P<word>[A-Za-z0-9_,;:*@-]+) | (?P<error>.)
)"""
_KEYWORDS = {
    "rank": "rank", "slot": "slot", "slots": "slot",
    "username": "username", "user-name": "username", "user_name": "username",
}  # fmt: skip


class Token(NamedTuple):
    """A token: its kind, its text, and where it begins in the file."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + len(self.text)


class TokenLine(NamedTuple):
    """A line with tokens: its number, where it begins in the file, its tokens, and the comment that ends it."""

    number: int
    start: int
    tokens: tuple[Token, ...]
    comment: Token | None


def split_lines(text: str) -> Iterator[TokenLine]:
    """Yield the lines of a rank file, those with a comment alone, too."""
    number, start, tokens = 1, 0, list[Token]()
    for match in re.finditer(_TOKEN, text):
        kind, word = str(match.lastgroup), match[match.lastindex or 0]
        if kind == "word":
            kind = "int" if word.isdecimal() else _KEYWORDS.get(word, kind)
        token = Token(kind, word, match.end() - len(word))
        if kind not in ("newline", "comment"):
            tokens.append(token)
        elif tokens or kind == "comment":
            yield TokenLine(number, start, tuple(tokens), token if kind == "comment" else None)
            tokens = []
        if "\n" in word:
            number += word.count("\n")
            start = token.start + word.rindex("\n") + 1
