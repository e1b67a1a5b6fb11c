"""Work between snapshots: what counts, and what does not."""

from collections.abc import Sequence
from typing import Any

import pytest

from ddlrun.hangs.examination import evaluate
from tests.unit.test_doctor import (
    BARRIER,
    LOCK,
    LOOP,
    LOOPING,
    MAIN,
    WAITING,
    Frames,
    job,
    own,
    process,
    snapshot,
    used,
)

MIB = 1 << 20
SAVE = [own(9, "torch.save(model, path)")]
RUN = [("wait", "/lib/python3.11/subprocess.py", 9, ""), own(9, "subprocess.run(command)")]
NAMED = {"pid": 8, "threads": [], "command": []}
FLOW = {"call": "poll"}
PIPE = {"call": "read", "target": "pipe:[7]"}


def rank(time: float, frames: Frames = SAVE, *others: dict[str, Any], **more: Any) -> Any:
    return snapshot(process(frames, time=time, **{**used(), **more}), *others)


def work_of(*looks: Any, gpu: float | None = None, other: Sequence[Any] | None = None) -> str | None:
    """Return the work of rank 1, for which rank 0 waits."""
    others = other or [WAITING] * len(looks)
    snapshots = [job(waiting, look) for waiting, look in zip(others, looks, strict=True)]
    return evaluate(snapshots, {} if gpu is None else {1: gpu}).work.get(1)


def child(time: float, seconds: float, **more: Any) -> dict[str, Any]:
    return process(
        [], **{**NAMED, "name": "cc1", "state": "R", "time": time, **used(threads={"8": [seconds, 0]}, **more)}
    )


@pytest.mark.parametrize(
    ("looks", "work"),
    [
        ([rank(0, RUN, child(0, 1)), rank(4, RUN, child(4, 4))], "its process 8, cc1, computes"),
        ([rank(0, RUN), rank(4, RUN, child(4, 3))], "its process 8, cc1, computes"),
        ([rank(0, RUN, child(0, 1)), rank(4, RUN, child(4, 1.5))], None),  # an exporter of metrics
        ([rank(0, RUN, child(0, 1, mpi=True)), rank(4, RUN, child(4, 4, mpi=True))], None),  # ranks of its own may wait
        ([rank(0, RUN, child(0, 1)), rank(4, RUN, **used(ended=3.0))], "its child processes compute"),
        ([rank(0, LOCK, **used(threads={"9": [0, 0]})), rank(4, LOCK, **used(threads={"9": [3, 0]}))],
         "its threads compute"),
        # On a busy machine, a thread may wait for a CPU for most of the time, and one that mostly sleeps as well.
        ([rank(0, **used(threads={"7": [0, 0]})), rank(4, **used(threads={"7": [0.2, 3.7]}))], "computes"),
        ([rank(0, **used(threads={"7": [0, 0]})), rank(4, **used(threads={"7": [0.1, 2]}))], None),
        ([rank(0, **used()), rank(4, **used(3.9))], "computes"),
        ([rank(0, **used()), rank(4, **used(0.9))], None),
    ],
)  # fmt: skip
def test_a_rank_whose_processes_or_threads_compute_works(looks: list[Any], work: str | None) -> None:
    assert work_of(*looks) == work


def test_threads_that_ranks_that_wait_have_as_well_do_not_work() -> None:
    """MPI's threads for progress keep a CPU busy."""
    spinning = [(0, used(threads={"9": [0, 0]})), (4, used(threads={"9": [3.9, 0]}))]
    looks = [rank(time, LOCK, **counters) for time, counters in spinning]
    waiting = [rank(time, [*BARRIER, MAIN], **counters) for time, counters in spinning]
    assert work_of(*looks, other=waiting) is None
    assert work_of(*looks) == "its threads compute"


@pytest.mark.parametrize(
    ("kind", "numbers", "work"),
    [
        ("written", (1, 200_000, 400_000), "writes 100 kB/s"),
        ("stored", (1, 200_000, 400_000), "transfers 100 kB/s from or to storage"),
        ("received", (1, 60_000, 120_000), "receives 30 kB/s"),
        ("written", (1, 1, 400_000), None),  # a report, from time to time
        ("written", (1, 1, 1 + 3 * MIB), "writes 786 kB/s"),
        ("read", (1, 400_000, 800_000), None),  # a status file, again and again
        ("read", (1, 2 * MIB, 4 * MIB), "reads 1.05 MB/s"),
        ("written", (1, 2000, 4000), None),  # a line per second
    ],
)
def test_a_rank_that_transfers_data_works(kind: str, numbers: tuple[int, ...], work: str | None) -> None:
    looks = [rank(2.0 * index, SAVE, **FLOW, **used(**{kind: number})) for index, number in enumerate(numbers)]
    assert work_of(*looks) == work
    inside = [rank(2.0 * index, RUN, child(2.0 * index, 0, **{kind: number})) for index, number in enumerate(numbers)]
    assert work_of(*inside) == (work and f"its process 8, cc1, {work}")


def test_a_pipe_that_delivers_little_is_work_of_the_thread_that_reads_it() -> None:
    looks = [rank(time, SAVE, **PIPE, **used(first=first)) for time, first in ((0, 10), (4, 30), (4, 10))]
    assert work_of(looks[0], looks[1]) == "gets data"
    assert work_of(looks[0], looks[2]) is None


def test_a_rank_that_waits_for_storage_works_if_that_transfers_data() -> None:
    looks = [
        rank(time, SAVE, state="D")._replace(storage=storage) for time, storage in ((0, 1), (4, 1 + 4 * MIB), (4, 1))
    ]
    assert work_of(looks[0], looks[1]) == "waits for storage, which transfers 1.05 MB/s"
    assert work_of(looks[0], looks[2]) is None


def test_a_busy_gpu_works_unless_its_collective_waits() -> None:
    looks = [rank(time, LOOP, state="R", gpu=True, **used(time)) for time in (0.0, 4.0)]
    assert [work_of(*looks, gpu=gpu) for gpu in (0.97, 0.02, None)] == [
        "keeps its GPU busy 97% of the time",
        None,
        None,
    ]
    record = (3, "all_reduce", "Float[4]", "nccl")
    communicating = [
        snapshot(process(LOCK, call="futex", time=time, gpu=True, **used()), collective=record) for time in (0.0, 4.0)
    ]
    assert work_of(*communicating, gpu=0.97) is None


@pytest.mark.parametrize(
    ("replies", "last", "pages", "works"),
    [(8, "1:5", 1, False), (8, "1:6", 1, True), (3, "1:5", 1, True), (8, "1:5", 9999, True)],
    ids=["waits", "changes variables", "is mostly in a library", "uses memory"],
)
def test_a_loop_whose_variables_stay_the_same_does_not_work(replies: int, last: str, pages: int, works: bool) -> None:  # noqa: FBT001
    values = [(0, [], 1), (replies // 2, ["1:5"] * 4, 1), (replies, [*["1:5"] * 7, last], pages)]
    looks = [
        rank(2.0 * index, LOOP, state="R", replies=count, variables=lines, **used(2.0 * index, faults=faults))
        for index, (count, lines, faults) in enumerate(values)
    ]
    assert (work_of(*looks) == "computes") is works
    examination = evaluate([job(WAITING, look) for look in looks])
    assert examination.hangs is not works
    text = "rank 0 waits in Barrier (train.py:41); rank 1 runs step (train.py:37: while True:)"
    start = "no hang so far: rank 1 is busy (computes); " if works else "hang: "
    assert examination.sentence == start + text


def test_ranks_that_wait_work_while_data_arrives() -> None:
    looks = [rank(2.0 * index, [*BARRIER, MAIN], **used(received=200_000 * index)) for index in range(3)]
    assert work_of(*looks) == "receives 100 kB/s"
    assert evaluate([job(LOOPING, look) for look in looks]).hangs is False
