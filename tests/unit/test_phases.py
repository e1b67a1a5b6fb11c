"""Verdicts on jobs whose ranks do not do the same, such as stages of a pipeline: no rank that is right is named."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from ddlrun.hangs.dumps import Dump, examine_dumps
from ddlrun.hangs.verdict import HangVerdict
from tests.unit.test_dumps import DEFAULT, TORCH, entry

Message = tuple[str, int]
# An all-reduce if it is empty; several messages are a batch.
Call = tuple[Message, ...]
Program = list[Call]
Units = Sequence[tuple[str, int]]
SUM: Call = ()
OTHER_HALF = {"send": "recv", "recv": "send"}
MOST_MESSAGES = 64


def flush(calls: Call, *, batched: bool) -> Program:
    return [calls] if batched and calls else [(message,) for message in calls]


def pipeline(units: Sequence[Units], stages: int, *, batched: bool) -> list[Program]:
    """Return the programs of ranks; a unit is F or B, and a stage."""
    programs = []
    for own in units:
        program: Program = []
        pending: Call = ()
        for kind, stage in own:
            before, after = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
            pending += (("recv", before % len(units)),) if 0 <= before < stages else ()
            program += flush(pending, batched=batched)
            pending = (("send", after % len(units)),) if 0 <= after < stages else ()
        programs.append(program + flush(pending, batched=batched))
    return programs


def gpipe(ranks: int, parts: int, *, batched: bool) -> list[Program]:
    return pipeline([[("F", rank)] * parts + [("B", rank)] * parts for rank in range(ranks)], ranks, batched=batched)


def one_forward_one_backward(ranks: int, parts: int, *, batched: bool) -> list[Program]:
    """Return a pipeline whose warm-up and cool-down depend on the stage; batches are needed if sends wait."""
    units = []
    for rank in range(ranks):
        first = min(ranks - rank - 1, parts)
        middle = [("F", rank), ("B", rank)] * (parts - first)
        units.append([("F", rank)] * first + middle + [("B", rank)] * first)
    return pipeline(units, ranks, batched=batched)


def interleaved(ranks: int, parts: int, *, batched: bool) -> list[Program]:
    """Return a pipeline with two stages per rank."""
    units = []
    for rank in range(ranks):
        chunks = [index // ranks % 2 for index in range(2 * parts * ranks)]
        forward = [("F", chunk * ranks + rank) for chunk in chunks]
        backward = [("B", (1 - chunk) * ranks + rank) for chunk in chunks]
        first = min(3 * ranks - 2 * rank - 2, len(chunks))
        middle = [unit for pair in zip(forward[first:], backward, strict=False) for unit in pair]
        units.append(forward[:first] + middle + backward[len(chunks) - first :])
    return pipeline(units, 2 * ranks, batched=batched)


def ring(ranks: int, parts: int, *, batched: bool) -> list[Program]:
    """Return an exchange in which even ranks send first, and odd ones receive first."""
    pairs = [(("send", (rank + 1) % ranks), ("recv", (rank - 1) % ranks)) for rank in range(ranks)]
    return [flush(pair[:: 1 - 2 * (rank % 2)] * parts, batched=batched) for rank, pair in enumerate(pairs)]


def forward_only(ranks: int) -> list[Program]:
    return pipeline([[("F", rank)] for rank in range(ranks)], ranks, batched=False)


def gathered(ranks: int) -> list[Program]:
    first: Program = [(("recv", rank),) for rank in range(1, ranks)]
    other: Program = [(("send", 0),)]
    return [first, *[other] * (ranks - 1)]


@dataclass
class Rank:
    """How far a rank has got."""

    program: Program
    stop: int | None = None
    """The call that it does not begin."""
    ended: int = 0
    begun: int = 0
    counts: Counter[Message] = field(default_factory=Counter)
    sums: int = 0

    def begin(self) -> bool:
        if self.begun > self.ended or self.begun in (self.stop, len(self.program)):
            return False
        self.counts.update(self.program[self.begun])
        self.sums += self.program[self.begun] == SUM
        self.begun += 1
        return True


def can_end(number: int, ranks: Sequence[Rank], *, eager: bool) -> bool:
    """Return True if the call of a rank ends; sends that are eager end at once."""
    rank = ranks[number]
    if rank.begun == rank.ended:
        return False
    call = rank.program[rank.ended]
    if call == SUM:
        return all(other.sums >= rank.sums for other in ranks)
    waits = [message for message in call if not (eager and message[0] == "send")]
    return all(ranks[peer].counts[OTHER_HALF[name], number] >= rank.counts[name, peer] for name, peer in waits)


def run(programs: Sequence[Program], *, eager: bool, stop: tuple[int, int] | None = None) -> list[Rank]:
    """Return how far ranks get; one may stop before a call."""
    ranks = [Rank(program, stop[1] if stop and stop[0] == rank else None) for rank, program in enumerate(programs)]
    moved = True
    while moved:
        moved = bool([rank for rank in ranks if rank.begin()])
        for number, rank in enumerate(ranks):
            if can_end(number, ranks, eager=eager):
                rank.ended, moved = rank.ended + 1, True
    return ranks


def dump(rank: Rank) -> Dump:
    """Return the records of a rank as its start-up hook has them, and the stack of a rank in a batch, or in no call."""
    numbers: Counter[Message | Call] = Counter()
    entries, uses = [], []
    for at, call in islice(enumerate(rank.program), rank.begun):
        if call == SUM:
            numbers[SUM] += 1
            record = entry(numbers[SUM], DEFAULT, "all_reduce", ended=at < rank.ended)
            entries.append({**record, "time_created_ns": 100 * at})
        for index, message in enumerate(call):
            numbers[message] += 1
            uses.append((100 * at + index, DEFAULT[0], numbers[message], *message))
    waiting = rank.program[rank.ended] if rank.begun > rank.ended else None
    calls: list[dict[str, Any]] = []
    if waiting and len(waiting) == 1:
        ((name, peer),) = waiting
        calls = [{"name": name, "backend": "gloo", "group": "0", "description": DEFAULT[1], "peer": peer, "tag": 0}]
    inner = [("batch_isend_irecv", TORCH, 3010)] if waiting else []
    frames = [*inner, ("<module>", "/home/u/train.py", 7)]
    stack = {"id": 7, "name": "MainThread", "active": waiting is None, "frames": frames}
    own = {"calls": calls, "pg_config": {"0": {"desc": DEFAULT[1], "ranks": ""}}, "recent": uses[-MOST_MESSAGES:]}
    return Dump(({"entries": entries}, own), () if calls or waiting == SUM else (stack,))


def judge(ranks: Sequence[Rank]) -> HangVerdict:
    return examine_dumps({number: [dump(rank)] for number, rank in enumerate(ranks)}).verdict


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Program], bool]:
    """Return the programs of a job that ends by itself, and whether its sends are eager."""
    schedule = draw(st.sampled_from((gpipe, one_forward_one_backward, interleaved, ring)))
    ranks, parts, every = draw(st.integers(2, 5)), draw(st.integers(1, 3)), draw(st.sampled_from((2, 3, 9)))
    batched, eager, sums = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    evaluation = draw(st.sampled_from((forward_only, gathered)))
    programs: list[Program] = [[] for _ in range(ranks)]
    for step in range(draw(st.integers(1, 5))):
        parts_of_step = [schedule(ranks, parts, batched=batched)]
        parts_of_step += [evaluation(ranks)] if step % every == every - 1 else []
        parts_of_step += [[[SUM]] * ranks] if sums else []
        for added in parts_of_step:
            programs = [program + more for program, more in zip(programs, added, strict=True)]
    programs = [[*program, SUM] for program in programs]
    assume(all(rank.ended == len(rank.program) for rank in run(programs, eager=eager)))
    return programs, eager


@given(jobs(), st.data())
def test_a_rank_that_stops_is_named(job: tuple[list[Program], bool], data: st.DataObject) -> None:
    programs, eager = job
    guilty = data.draw(st.integers(0, len(programs) - 1))
    at = data.draw(st.integers(0, len(programs[guilty]) - 1))
    assert judge(run(programs, eager=eager, stop=(guilty, at))).guilty == (guilty,)


@given(jobs(), st.data())
def test_where_calls_differ_no_other_rank_is_named(job: tuple[list[Program], bool], data: st.DataObject) -> None:
    """One rank leaves out some calls, or makes them twice, or makes one too early."""
    programs, eager = job
    guilty = data.draw(st.integers(0, len(programs) - 1))
    *program, last = programs[guilty]
    assume(program)
    start = data.draw(st.integers(0, len(program) - 1))
    length = data.draw(st.sampled_from((1, 1, 1, 2, 6)))
    before, part, after = program[:start], program[start : start + length], program[start + length :]
    rest = data.draw(st.sampled_from((after, [*part, *part, *after], [*after[:1], *part, *after[1:]])))
    programs[guilty] = [*before, *rest, last]
    ranks = run(programs, eager=eager)
    assume(all(rank.ended < len(rank.program) for rank in ranks))
    verdict = judge(ranks)
    assert verdict.guilty in ((), (guilty,)), verdict.text
