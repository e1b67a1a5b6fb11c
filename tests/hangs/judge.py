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
    """Judge a verdict; one that names nobody has to show both sides."""
    shown = [re.search(rf"\b{re.escape(place)}\b", text) is not None for place in run.places]
    ranks = frozenset(named)
    if not ranks:
        return Judgement.RIGHT if run.may_be_nobody and all(shown) else Judgement.NOBODY
    if ranks == run.guilty and (any(shown) or not shown):
        return Judgement.RIGHT
    return Judgement.PART if ranks & run.guilty else Judgement.WRONG
