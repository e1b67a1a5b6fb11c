"""The options for debugging, wrappers and standard input, read from the options of a launch."""

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from ddlrun.application.read_supervision import parse_ranks
from ddlrun.errors import InputError
from ddlrun.plan.supervision import InputMode, RankInput
from ddlrun.plan.wrappers import Wrapper, make_debugger

# Programs that are interactive if they have no arguments.
INTERACTIVE = r"i?python[0-9.]*|ipdb3?|bash|dash|fish|ksh|sh|zsh|julia|R"


def read_input(options: Mapping[str, Any], program: tuple[str, ...]) -> RankInput | None:
    """Return the rank whose standard input is ddlrun's by an option; None: rank 0's, as it is passed on.

    Raises InputError where two options name different ranks.
    """
    chosen, debugged = options["stdin_rank"], options["debug_rank"]
    if debugged is not None:
        if chosen not in (None, debugged):
            raise InputError(
                f"`--debug-rank` {debugged}: rank {debugged} has the terminal; omit `--stdin-rank` {chosen}"
            )
        return RankInput(debugged, InputMode.DEBUGGER)
    if options["pty"] or (chosen is None and options["processes"] == 1 and _is_interactive(program)):
        return RankInput(chosen or 0, InputMode.TERMINAL)
    return None if chosen is None else RankInput(chosen, InputMode.PIPE)


def _is_interactive(program: tuple[str, ...]) -> bool:
    """Return True for an interpreter without a script that would be started at a terminal."""
    named = len(program) == 1 and re.fullmatch(INTERACTIVE, os.path.basename(program[0]))
    return bool(named) and os.isatty(0) and os.isatty(1)


def read_wrappers(options: Mapping[str, Any], program: tuple[str, ...]) -> tuple[Wrapper, ...]:
    """Return the wrappers of --wrap, that of --debug-rank, and the programs that replace the first on some ranks.

    The last one is innermost. Raises InputError.
    """
    wrappers = [parse_wrapper(text) for text in options["wrap"]]
    others: tuple[Wrapper, ...] = options.get("other_programs", ())
    rank = options["debug_rank"]
    if rank is not None:
        debugged = next((other.words for other in others if rank in (other.ranks or ())), program)
        wrappers.append(make_debugger(debugged, rank))
    return (*wrappers, *others)


def parse_wrapper(text: str) -> Wrapper:
    """Parse RANKS:COMMAND. Raises InputError.

    >>> parse_wrapper("all:perf record -o {run}/perf.{rank}").words
    ('perf', 'record', '-o', '{run}/perf.{rank}')
    """
    ranks, colon, command = text.partition(":")
    example = "write RANKS:COMMAND, such as 0,3-5:'strace -o {run}/strace.{rank}'"
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"`--wrap` {text!r}: {error}; {example}") from error
    if not colon or not words:
        raise InputError(f"`--wrap` {text!r}: {'no command' if colon else 'no ranks'}; {example}")
    return Wrapper(None if ranks == "all" else parse_ranks(ranks, "`--wrap`"), words)
