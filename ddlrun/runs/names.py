"""Names of runs: new ones, and those that a user means."""

import os
import time
from collections.abc import Iterable

from ddlrun.errors import InputError

# Syllables such as "ka" or "lo": 24 million words of four of them.
CONSONANTS = "bdfjklmnrstvwy"
VOWELS = "aeiou"
SYLLABLES = 4
# A name in a regular expression: ids of earlier versions match, too. It has no character that a shell interprets.
NAME = r"[0-9]{8}-[0-9a-z][0-9a-z-]{2,59}"
# The word for the run that was started last.
LAST = "last"
MOST_CANDIDATES = 8


def new_name() -> str:
    """Return a name for a run: the date and a random word that can be pronounced, such as 20261123-tokaru."""
    random = iter(os.urandom(2 * SYLLABLES))
    syllables = (CONSONANTS[first % len(CONSONANTS)] + VOWELS[next(random) % len(VOWELS)] for first in random)
    return f"{time.strftime('%Y%m%d')}-{''.join(syllables)}"


def restart_name(name: str, attempt: int) -> str:
    """Return the name of a restart, given the name of the attempt before it.

    >>> restart_name("20261123-tokarumi", 1), restart_name("20261123-tokarumi-1", 2)
    ('20261123-tokarumi-1', '20261123-tokarumi-2')
    """
    first = name if attempt == 1 else name.rpartition("-")[0]
    return f"{first}-{attempt}"


def match_names(text: str, names: Iterable[str]) -> list[str]:
    """Return the names that a text means: the one that equals it, or those that begin with it.

    The text may also be a name without the date, or its beginning.

    >>> match_names("tok", ["20261123-tokarumi", "20261123-tolevuka"])
    ['20261123-tokarumi']
    """
    candidates = list(names)
    exact = [name for name in candidates if text in (name, strip_date(name))]
    return exact or [name for name in candidates if name.startswith(text) or strip_date(name).startswith(text)]


def choose_name(text: str, names: Iterable[str]) -> str | None:
    """Return the only name that a text means; None where there is none. Raises InputError where there are several."""
    matches = sorted(match_names(text, names))
    if len(matches) > 1:
        shown = ", ".join(matches[:MOST_CANDIDATES])
        more = f" and {len(matches) - MOST_CANDIDATES} more" if len(matches) > MOST_CANDIDATES else ""
        raise InputError(f"run {text!r} is ambiguous: {shown}{more}; write more of the name")
    return matches[0] if matches else None


def strip_date(name: str) -> str:
    """Return a name without its date."""
    return name.partition("-")[2]
