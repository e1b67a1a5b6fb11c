"""The expected verdicts on the hangs of hang.py, and on others."""

import re
from pathlib import Path
from typing import Any, NamedTuple

SCRIPT = Path(__file__).with_name("hang.py")
# Hang -> what happens. The order is that in which one job runs them; the last one cannot be released.
HANGS = {
    "missed_collective": "a rank leaves out a collective",
    "different_order": "a rank calls two collectives in another order",
    "size_mismatch": "a rank has more data, and so calls a collective once more",
    "barrier_in_rank_0": "a barrier inside `if rank == 0`",
    "infinite_loop": "a rank loops indefinitely",
    "dead_lock": "a lock whose thread has ended",
    "stopped": "SIGSTOP to a rank",
    "stuck_read": "a rank reads a FIFO that nobody writes",
    "full_pipe": "a rank writes to a full pipe",
    "data_loader": "a worker of a data loader waits for a lock",
    "returned_early": "a rank returns early",
}
GUILTY = 1
# A rank waits in one communicator, the others later in another one; MPI records the members of neither.
UNCLEAR = ("different_order", "size_mismatch", "barrier_in_rank_0")


class SeenVerdict(NamedTuple):
    """The part of a verdict that a test checks."""

    hangs: bool
    guilty: list[int]
    lines: bool
    """Whether the sentence names the line of the guilty rank and that of the others."""


def marked_line(mark: str, hang: str) -> int | None:
    """Return the number of the line with a mark; None if there is none."""
    lines = SCRIPT.read_text().splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}: {hang}")), None)


def expected_lines(hang: str) -> list[str]:
    """Return the places that the sentence has to name."""
    numbers = (marked_line(mark, hang) for mark in ("guilty", "waiting"))
    return [f"hang.py:{number}" for number in numbers if number is not None]


def seen_verdict(record: dict[str, Any], hang: str) -> SeenVerdict:
    """Return what the record of an examination says about a hang."""
    verdict = record["verdict"]
    named = [place for place in expected_lines(hang) if re.search(rf"\b{place}\b", verdict["text"])]
    return SeenVerdict(verdict["hangs"], verdict["guilty"], named == expected_lines(hang))
