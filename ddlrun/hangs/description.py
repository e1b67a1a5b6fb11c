"""The position of a rank in words."""

import re

from ddlrun.hangs.frames import OF
from ddlrun.hangs.position import Activity, Position

WORDS = {
    Activity.COMMUNICATES: "waits in {call}",
    Activity.GPU: "waits for its GPU",
    Activity.RUNS: "runs",
    Activity.IMPORTS: "imports modules",
    Activity.LOADS: "waits for its data loader",
    Activity.LOCKED: "waits for {call}",
    Activity.JOINS: "has finished the program, and waits for {worker}",
    Activity.READS: "reads {call}",
    Activity.WRITES: "writes to {call}",
    Activity.OPENS: "opens a file",
    Activity.CONNECTS: "connects to {call}",
    Activity.SLEEPS: "sleeps",
    Activity.WAITS: "waits in {call}",
    Activity.STOPPED: "is stopped by a signal",
    Activity.FINALIZES: "has finished the program and is exiting",
    Activity.UNKNOWN: "could not be located",
}
PLURALS = (("waits", "wait"), ("is", "are"), ("reads", "read"), ("writes", "write"), ("opens", "open"),
           ("sleeps", "sleep"), ("runs", "run"), ("has", "have"), ("imports", "import"), ("its", "their"),
           ("connects", "connect"))  # fmt: skip
FILES = ((r"pipe:\[\d+\]", "a pipe"), (r"socket:\[\d+\]", "a socket"), (r"$^|^$", "a file"))


def describe(position: Position, *, plural: bool = False) -> str:
    """Return a position in words: a predicate such as `waits in barrier (train.py:41)`; `plural` for several ranks."""
    worker = position.worker
    text = WORDS[position.activity].format(call=_describe_call(position), worker=worker and worker.name)
    text = text.removesuffix(" in ").removesuffix(" to ")
    if plural:
        words = dict(PLURALS)
        text = " ".join(words.get(word, word) for word in text.split(" "))
    if position.collective is not None:
        operation = position.collective.text.removesuffix(f": {position.call}")
        return f"{text}{_describe_place(position)}, {operation}"
    if worker is not None and position.activity is Activity.JOINS:
        return f"{text}, which {describe(worker.position)}"
    more = "" if worker is None else f", whose worker {describe(worker.position)} in {worker.name}"
    return text + _describe_place(position) + more


def _describe_call(position: Position) -> str:
    if position.activity not in (Activity.READS, Activity.WRITES):
        return OF.join(filter(None, (position.call, position.label)))
    for pattern, words in FILES:
        if re.fullmatch(pattern, position.call):
            return words
    return position.call


def _describe_place(position: Position) -> str:
    """Return the place, with the source where the kind of position does not show what the line does."""
    frame = position.frame
    if frame is None:
        return f" ({position.call})" if position.activity is Activity.UNKNOWN and position.call else ""
    function = "" if frame.function.startswith("<") else f"{frame.function}, "
    communicates = position.activity is Activity.COMMUNICATES
    source = "" if communicates or not frame.source else f": {frame.source}"
    if position.activity is Activity.RUNS:
        return f" {frame.function} ({frame.place}{source})" if function else f" {frame.place}{source}"
    return f" ({frame.place})" if communicates else f" ({function}{frame.place}{source})"
