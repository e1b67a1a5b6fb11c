"""Wrappers of the program on chosen ranks, such as a profiler or a debugger."""

import json
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.keeper.command_line import WRAPPERS
from ddlrun.ranges import find_runs, is_successor

DEBUGGER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "keeper", "debugger.py")
# Options of Python that have no value of their own, before a script or -m.
PYTHON_SWITCH = r"-[bBEIOPqsSu]+"


class Wrapper(NamedTuple):
    """Words that stand before the program on some ranks."""

    ranks: frozenset[int] | None
    """None: all ranks."""
    words: tuple[str, ...]
    replaced: int = 0
    """The number of the program's first words that they replace."""
    literal: bool = False
    """Whether the words are another program, without fields such as {rank}."""


def make_debugger(program: tuple[str, ...], rank: int) -> Wrapper:
    """Return the wrapper that debugs the program on a rank: Python with pdb or ipdb, any other program with gdb.

    Raises InputError for a Python without a script or with options that are not known here.
    """
    if not re.fullmatch(r"python[0-9.]*", os.path.basename(program[0])):
        return Wrapper(frozenset((rank,)), ("gdb", "--args"))
    position = 1
    while position < len(program) and re.fullmatch(PYTHON_SWITCH, program[position]):
        position += 1
    target = program[position : position + 2]
    if not target or (target[0].startswith("-") and (target[0] != "-m" or len(target) == 1)):
        raise InputError(f"`--debug-rank`: no script in {' '.join(program)!r}; write SCRIPT.py or `-m` MODULE")
    return Wrapper(frozenset((rank,)), (*program[:position], DEBUGGER), replaced=position)


def highest_rank(wrappers: Iterable[Wrapper]) -> int:
    """Return the highest rank that wrappers name; -1 if they name none."""
    return max((rank for wrapper in wrappers for rank in wrapper.ranks or ()), default=-1)


def render_wrappers(wrappers: tuple[Wrapper, ...]) -> dict[str, str]:
    """Return the variable that tells the keepers about wrappers."""
    if not wrappers:
        return {}
    records = [
        {
            "ranks": None if wrapper.ranks is None else find_runs(sorted(wrapper.ranks), is_successor),
            "words": wrapper.words,
            "replaced": wrapper.replaced,
            "literal": wrapper.literal,
        }
        for wrapper in wrappers
    ]
    return {WRAPPERS: json.dumps(records)}
