"""Words of messages."""

import re
import signal
from collections.abc import Iterable, Mapping

COLOUR = r"\x1b\[[0-9;:]*m"
# Of a mistyped word with the name that is suggested; 1: equal.
LEAST_SIMILARITY = 0.65


def counted(count: int, noun: str) -> str:
    """Render a count with its noun.

    >>> counted(1, "rank"), counted(0, "GPU")
    ('1 rank', '0 GPUs')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def signal_name(number: int) -> str:
    """Return the name of a signal; most real-time signals have none.

    >>> signal_name(15), signal_name(40)
    ('SIGTERM', 'signal 40')
    """
    names = {int(named): named.name for named in signal.Signals}
    return names.get(number, f"signal {number}")


def printable(text: str) -> str:
    r"""Return a text from elsewhere as a terminal can show it: without colours, other control characters escaped.

    Ends of lines and tabs stay.

    >>> printable("\x1b[31mred\x1b[0m \x1b]0;title\x07 a\tb")
    'red \\x1b]0;title\\x07 a\tb'
    """
    if text.replace("\n", " ").replace("\t", " ").isprintable():
        return text
    return "".join(map(_escape, re.sub(COLOUR, "", text)))


def printable_line(text: str) -> str:
    r"""Return a text from elsewhere as `printable` does, with ends of lines and tabs escaped, too.

    >>> printable_line("a\nddlrun: error: b")
    'a\\nddlrun: error: b'
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    plain = character.isprintable() or character in "\n\t"
    return character if plain else character.encode("unicode_escape").decode()


def did_you_mean(word: str, names: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Return a question with the name that a mistyped word stands for, in brackets; empty where none is near.

    `synonyms` are words of other programs, each with the name that means the same here.

    >>> did_you_mean("lunch", ["launch", "lint"]), did_you_mean("x", ["launch"])
    (' (did you mean launch?)', '')
    """
    import difflib  # noqa: PLC0415 - 5 ms, for mistyped words alone

    known = (synonyms or {}).get(word.lower())
    close = [known] if known else difflib.get_close_matches(word.lower(), list(names), 1, LEAST_SIMILARITY)
    return f" (did you mean {close[0]}?)" if close else ""
