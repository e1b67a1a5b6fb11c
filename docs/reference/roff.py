r"""Text of man pages: escapes of roff, and the inline marks of Markdown.

Pages use the macros of man(7) that groff, mandoc and man-db all know.
"""

import re
from collections.abc import Iterable, Iterator

# `code`, **strong**, [text](link), and options in running text.
MARKS = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<strong>.+?)\*\*|\[(?P<link>[^]]+)\]\([^)]+\)|(?<![\w`-])(?P<option>--?[a-zA-Z][\w-]*)"
)


def escape(text: str) -> str:
    r"""Return plain text for roff: a hyphen stays one that a shell understands, and no line is a request.

    >>> print(escape(".so -x"))
    \&.so \-x
    """
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return re.sub(r"(?m)^(?=[.'])", r"\\&", escaped)


def bold(text: str) -> str:
    """Return text in bold, as the words are that a user types."""
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    """Return text in italics, as placeholders are."""
    return f"\\fI{escape(text)}\\fR"


def markup(text: str) -> str:
    r"""Return a line of Markdown, or of help, for roff.

    >>> print(markup("see [`ddlrun top`](runs.md) and --json"))
    see \fBddlrun top\fR and \fB\-\-json\fR
    """
    pieces, end = [], 0
    for match in MARKS.finditer(text):
        pieces += [escape(text[end : match.start()]), _render(match)]
        end = match.end()
    line = "".join([*pieces, escape(text[end:])])
    return line.removeprefix("\\&") if line.startswith("\\&\\f") else line


def _render(match: re.Match[str]) -> str:
    if match["link"] is not None:
        return markup(match["link"])
    return bold(match["code"] or match["strong"] or match["option"])


def sentences(text: str) -> str:
    """Return a paragraph with one line per sentence, as man pages are written.

    >>> print(sentences("One fact. Another."))
    One fact.
    Another.
    """
    lines = re.split(r"(?<=[a-z0-9)][.:;]) (?=[A-Z])", " ".join(text.split()))
    return "\n".join(markup(line) for line in lines)


def tagged(tag: str, text: str) -> Iterator[str]:
    """Yield the lines of a tagged paragraph; the tag is rendered already."""
    yield from (".TP", tag, sentences(text))


def example(comment: str, command: str) -> Iterator[str]:
    """Yield the lines of an example: its purpose, and the command as it is typed."""
    yield from (".PP", sentences(comment), ".PP", ".RS 4", ".EX", bold(f"$ {command}"), ".EE", ".RE")


def section(title: str, lines: Iterable[str]) -> list[str]:
    """Return a section, or nothing where it has no lines; its heading begins the first paragraph already."""
    body = list(lines)
    first = 1 if body[:1] == [".PP"] else 0
    return [f".SH {title}", *body[first:]] if body else []
