"""The command line of a rank: its program, behind the wrappers that the user has for the rank."""

from __future__ import annotations

import os

WRAPPERS = "DDLRUN_WRAPPERS"
"""The variable with the wrappers: a JSON list of objects with the keys of `wrap`."""


def wrap(program: list[str], rank: int, local_rank: int) -> list[str]:
    """Return the command line of a rank: the program behind its wrappers, the first one outermost."""
    text = os.environ.pop(WRAPPERS, "")
    if not text:
        return program
    import json  # noqa: PLC0415 - for wrapped ranks alone

    fields = {
        "{rank}": str(rank),
        "{local_rank}": str(local_rank),
        "{host}": os.uname().nodename,
        "{run}": os.environ.get("DDLRUN_RUN_DIR", "."),
    }
    for wrapper in reversed(json.loads(text)):
        if wrapper["ranks"] is None or any(first <= rank <= last for first, last in wrapper["ranks"]):
            words = wrapper["words"] if wrapper["literal"] else [_fill(word, fields) for word in wrapper["words"]]
            program = [*words, *program[wrapper["replaced"] :]]
    return program


def _fill(word: str, fields: dict[str, str]) -> str:
    """Return a word with the values of its fields; create the run folder where it is named, as on another host."""
    if "{run}" in word:
        os.makedirs(fields["{run}"], mode=0o700, exist_ok=True)
    for field, value in fields.items():
        word = word.replace(field, value)
    return word
