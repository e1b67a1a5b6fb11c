"""Several programs in one job: `-np 2 A : -np 3 B`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddlrun.application.options.program import read_program
from ddlrun.errors import InputError
from ddlrun.plan.wrappers import Wrapper

COUNTS = ("-n", "--n", "-np", "--np", "-c")
EXAMPLE = "write `-np` 2 A : `-np` 3 B"


class Section(NamedTuple):
    """A program after a colon, and the number of its ranks."""

    ranks: int
    words: tuple[str, ...]


class Programs(NamedTuple):
    """The program of rank 0 and, if a job has several, those of other ranks."""

    first: tuple[str, ...]
    options: Mapping[str, Any]
    """The options of the job, with the number of all ranks and the other programs."""


def read_programs(script: str, args: Sequence[str], options: Mapping[str, Any]) -> Programs:
    """Return the programs of a job: a script with the words after it, and options before it. Raises InputError."""
    if script == ":":
        raise InputError(f"the program before the colon is missing; {EXAMPLE}")
    own, sections = split_programs(args)
    in_image = bool(options.get("container"))
    first = read_program(script, own, is_module=options["is_module"], in_image=in_image)
    if not sections:
        return Programs(first, options)
    if options["processes"] is None:
        raise InputError(f"the first of several programs has no number of ranks; {EXAMPLE}")
    begin, others = options["processes"], list[Wrapper]()
    for section in sections:
        words = read_program(section.words[0], section.words[1:], is_module=False, in_image=in_image)
        ranks = frozenset(range(begin, begin + section.ranks))
        others.append(Wrapper(ranks, words, replaced=len(first), literal=True))
        begin += section.ranks
    return Programs(first, {**options, "processes": begin, "other_programs": tuple(others)})


def split_programs(args: Sequence[str]) -> tuple[tuple[str, ...], list[Section]]:
    """Split the words after a script into its arguments and further programs.

    A colon begins a program if a number of ranks follows; any other colon is an argument.
    Raises InputError.
    """
    starts = [at for at, word in enumerate(args) if word == ":" and args[at + 1 : at + 2] and args[at + 1] in COUNTS]
    if not starts:
        return tuple(args), []
    ends = [*starts[1:], len(args)]
    return tuple(args[: starts[0]]), [_parse(args[at + 1 : end]) for at, end in zip(starts, ends, strict=True)]


def _parse(words: Sequence[str]) -> Section:
    """Parse `-np N PROGRAM ARGS`. Raises InputError."""
    text = f"': {' '.join(words[:3])}'"
    if len(words) < 2 or not (words[1].isascii() and words[1].isdigit() and int(words[1])):
        raise InputError(f"{text}: {words[0]} takes a number of ranks; {EXAMPLE}")
    if len(words) < 3:
        raise InputError(f"{text}: the program is missing; {EXAMPLE}")
    if words[2].startswith("-"):
        raise InputError(
            f"{text}: {words[2]}: options but `-np` hold for all programs; write them before the first one"
        )
    return Section(int(words[1]), tuple(words[2:]))
