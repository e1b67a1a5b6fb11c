"""Verdicts on jobs that hang, compared with the ranks and lines at fault."""

import re
from enum import Enum

from tests.hangs.catalogue import Run


class Judgement(Enum):
    """How good a verdict is."""

    RIGHT = "right"
    """It names the ranks and a line at fault."""
    PART = "part"
    """It does not name the line, or names other ranks, too."""
    NOBODY = "nobody"
    WRONG = "wrong"
    """It names other ranks alone."""


def judge(run: Run, named: list[int], text: str) -> Judgement:
    """Judge a verdict."""
    places = run.places
    has_line = not places or any(re.search(rf"\b{re.escape(place)}\b", text) for place in places)
    ranks = frozenset(named)
    if not ranks and not (run.may_be_nobody and has_line):
        return Judgement.NOBODY
    if not ranks or (has_line and (ranks == run.guilty or (run.may_be_nobody and ranks < run.guilty))):
        return Judgement.RIGHT
    return Judgement.PART if ranks & run.guilty else Judgement.WRONG
