"""The command line of a rank: its program, behind the wrappers that the user has for the rank, and long arguments."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

WRAPPERS = "DDLRUN_WRAPPERS"
"""The variable with the wrappers: a JSON list of objects with the keys of `wrap`."""

ARGUMENTS = "DDLRUN_ARGUMENTS_"
"""The beginning of the variables with the arguments that are too long for the process manager: parts of a JSON list,
numbered."""
PART = 100_000


def pack_arguments(words: Iterable[str]) -> dict[str, str]:
    """Return the variables with the arguments of a program. Their bytes are the same in every locale."""
    import json  # noqa: PLC0415 - for such arguments alone

    text = json.dumps([os.fsencode(word).decode("latin-1") for word in words])
    parts = (text[start : start + PART] for start in range(0, len(text), PART))
    return {f"{ARGUMENTS}{number}": part for number, part in enumerate(parts)}


def add_arguments(program: list[str]) -> list[str]:
    """Return the program with the arguments that came in variables, which are removed."""
    parts: list[str] = []
    while (part := os.environ.pop(f"{ARGUMENTS}{len(parts)}", None)) is not None:
        parts.append(part)
    if not parts:
        return program
    import json  # noqa: PLC0415 - for such arguments alone

    return [*program, *(os.fsdecode(word.encode("latin-1")) for word in json.loads("".join(parts)))]


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
