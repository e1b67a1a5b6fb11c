"""Examinations: positions of ranks from their stacks, verdicts, and the snapshots of keepers."""

import json
from typing import Any

import pytest

from ddlrun.hangs.description import describe
from ddlrun.hangs.examination import Examination, evaluate, record_examination, render_states
from ddlrun.hangs.position import Activity, locate_rank
from ddlrun.hangs.snapshot import ExaminedRank, JobSnapshot, ProcessGroup, RankSnapshot, name_ranks
from ddlrun.hangs.snapshot_parsing import parse_snapshot
from ddlrun.hangs.verdict import NOBODY, HangFinding, HangVerdict, judge

MPI = "/env/lib/python3.11/site-packages/mpi4py/MPI.openmpi.so"
TORCH = "/env/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
Frames = list[tuple[str, str, int, str]]
ITEM: Frames = [("step", "/home/u/train.py", 5, "loss.item()")]
BARRIER: Frames = [("PMPI_Barrier", "/lib/libmpi.so.40", 0, ""), ("Barrier", MPI, 0, "")]
FUTURE: Frames = [
    ("Future.wait", f"{TORCH}/futures/__init__.py", 80, ""),
    ("FutureWork.wait", "/env/lib/python3.11/site-packages/ddlrun/ddl/torch/backend/works.py", 89, ""),
]
OPTIMIZER: Frames = [("step", "/env/lib/python3.11/site-packages/ddlrun/ddl/torch/optimizer.py", 89, "")]
JAX = "/env/lib/python3.11/site-packages/jax/experimental/multihost_utils.py"
JAX_VALUE = ("_value", "/env/lib/python3.11/site-packages/jax/_src/array.py", 700, "")
MAIN = ("<module>", "/home/u/train.py", 41, "comm.Barrier()")
ALL_REDUCE: Frames = [
    ("all_reduce", C10D, 3000, "work.wait()"),
    ("wrapper", f"{TORCH}/distributed/c10d_logger.py", 83, "return func(*args, **kwargs)"),
    ("<module>", "/home/u/train.py", 41, "dist.all_reduce(x)"),
]


def process(frames: Frames, state: str = "S", **more: Any) -> dict[str, Any]:
    """Return the record of a process."""
    named = [dict(zip(("function", "file", "line", "source"), frame, strict=True)) for frame in frames]
    thread = {"id": 7, "name": "", "active": state == "R", "frames": named}
    return {
        "pid": 7, "name": "python", "state": state, "waits_in": "", "call": "", "target": "", "command": ["python"],
        "threads": [thread], "problem": "", "switches": 0, "replies": 0,
        "time": 0.0, "gpu": False, **more,
    }  # fmt: skip


def used(seconds: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return the counters of a process, whose first thread was busy for a time."""
    whole = dict.fromkeys(("read", "written", "stored", "received", "sent", "first", "faults"), 1)
    return {"counters": {"threads": {"7": [seconds, 0.0]}, "ended": 0.0, "mpi": False, **whole, **more}}


def snapshot(
    *processes: dict[str, Any],
    connections: tuple[tuple[str, str], ...] = (),
    collective: tuple[int | str, ...] | None = None,
) -> RankSnapshot:
    """Return the snapshot of a rank."""
    pairs = [{"local": local, "remote": remote} for local, remote in connections]
    record = {"processes": processes, "connections": pairs, **(recorded(*collective) if collective else {})}
    return parse_snapshot(json.dumps(record).encode())


def recorded(number: int | str, name: int | str, data: int | str, backend: int | str = "gloo") -> dict[str, Any]:
    """Return the records of a rank in an operation of the default group."""
    group: dict[str, Any] = {"group": "0", "description": "default_pg", "members": "", "peer": None, "tag": 0}
    operation = {"number": number, "name": name, "data": data, "backend": backend, **group}
    return {"operations": [operation], "started": {"0": {"number": number, "description": "default_pg"}}}


def own(line: int, source: str, function: str = "step") -> tuple[str, str, int, str]:
    return (function, "/home/u/train.py", line, source)


WAITING = snapshot(process([*BARRIER, MAIN], "R"))
LOOPING = snapshot(process([own(37, "while True:")], "R"))

POSITIONS = [
    (WAITING, Activity.COMMUNICATES, "waits in Barrier (train.py:41)"),
    (snapshot(process(ALL_REDUCE, call="futex")), Activity.COMMUNICATES, "waits in all_reduce (train.py:41)"),
    (
        snapshot(process([*FUTURE, *ALL_REDUCE], call="futex")), Activity.COMMUNICATES,
        "waits in all_reduce (train.py:41)",
    ),
    (
        snapshot(process([("process_allgather", JAX, 159, ""), own(17, "mu.process_allgather(x)")], call="futex")),
        Activity.COMMUNICATES, "waits in process_allgather (train.py:17)",
    ),
    (
        snapshot(process([JAX_VALUE, ("broadcast_one_to_all", JAX, 90, ""), own(17, "mu.broadcast(x)")], call="futex")),
        Activity.COMMUNICATES, "waits in broadcast_one_to_all (train.py:17)",
    ),
    (
        snapshot(process([own(9, 'key = store.get("all")')], call="poll")),
        Activity.COMMUNICATES, "waits in get (train.py:9)",
    ),
    (
        snapshot(process([own(9, 'key = cache.get("all")')], call="poll")),
        Activity.WAITS, 'waits in poll (step, train.py:9: key = cache.get("all"))',
    ),
    (
        snapshot(process([own(9, "loss.backward()")], call="futex")),
        Activity.WAITS, "waits in futex (step, train.py:9: loss.backward())",
    ),
    (
        snapshot(process([own(9, "time.sleep(1)")])), Activity.WAITS, "waits (step, train.py:9: time.sleep(1))",
    ),
    (snapshot(process([MAIN], "R")), Activity.COMMUNICATES, "waits in Barrier (train.py:41)"),
    (snapshot(process([MAIN], call="sleep")), Activity.COMMUNICATES, "waits in Barrier (train.py:41)"),
    (
        snapshot(process([own(4, "a, b = line.split()")], "R")),
        Activity.RUNS, "runs step (train.py:4: a, b = line.split())",
    ),
    (LOOPING, Activity.RUNS, "runs step (train.py:37: while True:)"),
    (
        snapshot(process([own(5, "with lock:")], call="futex")),
        Activity.LOCKED, "waits for a lock (step, train.py:5: with lock:)",
    ),
    (
        snapshot(process([own(5, "os.write(fd, data)")], call="write", target="pipe:[4711]")),
        Activity.WRITES, "writes to a pipe (step, train.py:5: os.write(fd, data))",
    ),
    (
        snapshot(process([own(5, "file.read()")], call="read", target="/data/x")),
        Activity.READS, "reads /data/x (step, train.py:5: file.read())",
    ),
    (
        snapshot(process([own(5, "x = f()")], "T")),
        Activity.STOPPED, "is stopped by a signal (step, train.py:5: x = f())",
    ),
    (
        snapshot(process([("main", "/lib/libc.so.6", 0, "")], "R")),
        Activity.FINALIZES, "has finished the program and is exiting",
    ),
    (
        snapshot(process([], threads=[], waits_in="hrtimer_nanosleep")),
        Activity.SLEEPS, "sleeps",
    ),
    (
        snapshot(process([
            ("exec_module", "<frozen importlib._bootstrap_external>", 940, ""), own(3, "import torch", "<module>"),
        ], "R")),
        Activity.IMPORTS, "imports modules (train.py:3: import torch)",
    ),
    (
        # A model computes inside DistributedDataParallel.
        snapshot(process([
            ("forward", f"{TORCH}/nn/modules/linear.py", 134, "return F.linear(input)"),
            ("forward", f"{TORCH}/nn/parallel/distributed.py", 1655, "self._run_ddp_forward()"),
            own(8, "y = model(x)"),
        ], "R")),
        Activity.RUNS, "runs step (train.py:8: y = model(x))",
    ),
    (
        snapshot(
            process([("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1250, ""), own(8, "for batch in loader:")]),
            process([own(3, "with lock:", "__getitem__"), ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54, "")],
                    call="futex"),
        ),
        Activity.LOADS,
        ("waits for its data loader (step, train.py:8: for batch in loader:), whose worker waits for a lock "
         "(__getitem__, train.py:3: with lock:) in process 7"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rank", "activity", "text"), POSITIONS, ids=[text[:30] for _, _, text in POSITIONS])
def test_the_position_of_a_rank(rank: RankSnapshot, activity: Activity, text: str) -> None:
    position = locate_rank(rank)
    assert (position.activity, describe(position)) == (activity, text)


def job(*snapshots: RankSnapshot | int | None, reachable: bool = True) -> JobSnapshot:
    """Return a job with one rank per host; a number is the exit code of a rank that has ended."""
    ranks = [
        ExaminedRank(rank, f"h{rank}", reachable=reachable, exit_code=value)
        if isinstance(value, int)
        else ExaminedRank(rank, f"h{rank}", value, reachable=reachable)
        for rank, value in enumerate(snapshots)
    ]
    return JobSnapshot(tuple(ranks))


def in_all_reduce(number: int | None) -> RankSnapshot:
    """Return the snapshot of a rank in a collective with this number; None: it is not known."""
    collective = None if number is None else (number, "all_reduce", "Float[4]")
    return snapshot(process(ALL_REDUCE, call="futex"), collective=collective)


def reducing(name: str) -> RankSnapshot:
    """Return the snapshot of a rank in Horovod, in an operation with a name; empty: it is not known."""
    function = f"allreduce of {name}" if name else "allreduce"
    return snapshot(process([(function, "/env/lib/python3.11/site-packages/horovod/torch/mpi_ops.py", 254, ""), MAIN]))


def in_mpi(line: int, source: str = "comm.Barrier()") -> RankSnapshot:
    """Return the snapshot of a rank in a call of mpi4py."""
    name = source.partition("(")[0].rpartition(".")[2]
    return snapshot(process([(name, MPI, 0, ""), own(line, source)], "R"))


GATHER = snapshot(process([("gather", MPI, 0, ""), own(44, "comm.gather(x)")], "R"))
RECEIVING = snapshot(process([("Recv", MPI, 0, ""), own(45, "comm.Recv(x, 0)")], "R"))
STARTED: dict[str, Any] = {"started": {"0": {"number": 6, "description": "default_pg"}}}
# Ranks of torch that are in no operation: they wait for a key of the store.
STORE = [own(19, "store.wait(keys)")]
IN_STORE = parse_snapshot(json.dumps({"processes": [process(STORE)], "connections": [], **STARTED}))
IN_JAX = snapshot(process([own(13, "return float(f(x))")], call="futex"))
SLEEPING = snapshot(process([own(15, "sleep(9)")], call="sleep"))
CUT = (("10.0.0.1", "10.0.0.3"),), (("10.0.0.2", "10.0.0.3"),), (("10.0.0.3", "10.0.0.1"), ("10.0.0.3", "10.0.0.2"))
VERDICTS = [
    (
        job(WAITING, WAITING, LOOPING, WAITING), HangFinding.ABSENT, (2,),
        "ranks 0, 1 and 3 wait in Barrier (train.py:41); rank 2 runs step (train.py:37: while True:)",
    ),
    (
        job(WAITING, WAITING, GATHER), HangFinding.DIFFERENT_CALLS, (),  # the others may have left it
        f"ranks 0 and 1 wait in Barrier (train.py:41); rank 2 waits in gather (train.py:44); {NOBODY}",
    ),
    (
        job(in_mpi(46, "comm.gather(x)"), in_mpi(41), in_mpi(41)), HangFinding.DIFFERENT_CALLS, (0,),
        "ranks 1 and 2 wait in Barrier (train.py:41); rank 0 waits in gather (train.py:46)",
    ),
    (
        job(in_mpi(41), in_mpi(41), in_mpi(46, "self.comm.Bcast(x)")), HangFinding.DIFFERENT_CALLS, (2,),
        "ranks 0 and 1 wait in Barrier (train.py:41); rank 2 waits in Bcast (train.py:46)",
    ),
    (  # rank 2 may wait for one of the others in a communicator of its own
        job(in_mpi(41), in_mpi(41), in_mpi(40, "row.Barrier()")), HangFinding.DIFFERENT_CALLS, (),
        f"ranks 0 and 1 wait in Barrier (train.py:41); rank 2 waits in Barrier (train.py:40); {NOBODY}",
    ),
    (
        job(in_mpi(41), in_mpi(41), in_mpi(42, "row.Barrier()")), HangFinding.DIFFERENT_CALLS, (2,),
        "ranks 0 and 1 wait in Barrier (train.py:41); rank 2 waits in Barrier (train.py:42)",
    ),
    (
        job(reducing("loss"), reducing("accuracy"), reducing("loss")), HangFinding.DIFFERENT_CALLS, (1,),
        ("ranks 0 and 2 wait in allreduce of loss (train.py:41); rank 1 waits in allreduce of accuracy "
         "(train.py:41)"),
    ),
    (
        job(reducing("loss"), reducing("loss"), reducing("")), HangFinding.SAME_CALL, (),
        "all ranks wait in allreduce (train.py:41)",
    ),
    (
        job(WAITING, GATHER, WAITING, in_all_reduce(None)), HangFinding.DIFFERENT_CALLS, (),
        ("ranks 0 and 2 wait in Barrier (train.py:41); rank 1 waits in gather (train.py:44); rank 3 waits in "
         "all_reduce (train.py:41); the rank at fault is unclear"),
    ),
    (
        job(WAITING, GATHER), HangFinding.DIFFERENT_CALLS, (),
        "rank 0 waits in Barrier (train.py:41); rank 1 waits in gather (train.py:44); the rank at fault is unclear",
    ),
    (
        job(WAITING, WAITING, RECEIVING), HangFinding.DIFFERENT_CALLS, (),
        "ranks 0 and 1 wait in Barrier (train.py:41); rank 2 waits in Recv (train.py:45); the rank at fault is unclear",
    ),
    (
        job(*map(in_all_reduce, (7, 7, 6))), HangFinding.DIFFERENT_CALLS, (2,),
        ("ranks 0 and 1 wait in all_reduce (train.py:41), collective 7; rank 2 waits in all_reduce (train.py:41), "
         "collective 6"),
    ),
    (
        job(*map(in_all_reduce, (7, 8))), HangFinding.DIFFERENT_CALLS, (0,),
        ("rank 0 waits in all_reduce (train.py:41), collective 7; rank 1 waits in all_reduce (train.py:41), collective"
         " 8"),
    ),
    (
        job(IN_STORE, IN_STORE, in_all_reduce(7)), HangFinding.DIFFERENT_CALLS, (2,),
        "ranks 0 and 1 wait in wait (train.py:19); rank 2 waits in all_reduce (train.py:41), collective 7",
    ),
    (
        job(IN_STORE, in_all_reduce(7), in_all_reduce(7)), HangFinding.DIFFERENT_CALLS, (0,),
        "ranks 1 and 2 wait in all_reduce (train.py:41), collective 7; rank 0 waits in wait (train.py:19)",
    ),
    (
        job(IN_STORE, in_all_reduce(7)), HangFinding.DIFFERENT_CALLS, (),
        ("rank 0 waits in wait (train.py:19); rank 1 waits in all_reduce (train.py:41), collective 7; the rank at "
         "fault is unclear"),
    ),
    (
        job(*map(in_all_reduce, (7, None))), HangFinding.SAME_CALL, (),
        "all ranks wait in all_reduce (train.py:41)",
    ),
    (
        job(WAITING, 0, WAITING), HangFinding.ENDED, (1,),
        "ranks 0 and 2 wait in Barrier (train.py:41); rank 1 has ended",
    ),
    (job(WAITING, 0, 0), HangFinding.ENDED, (0,), "rank 0 waits in Barrier (train.py:41); ranks 1 and 2 have ended"),
    (
        job(WAITING, WAITING), HangFinding.SAME_CALL, (),
        "all ranks wait in Barrier (train.py:41)",
    ),
    (
        job(*(snapshot(process([*BARRIER, MAIN], "R"), connections=pairs) for pairs in CUT)), HangFinding.NETWORK, (2,),
        ("ranks 0-2 wait in Barrier (train.py:41); data to and from h2 (10.0.0.3) is not acknowledged: its network, or"
         " the way to it, is down"),
    ),
    (
        job(WAITING, None, reachable=False), HangFinding.SILENT_HOST, (1,),
        "rank 0 waits in Barrier (train.py:41); rank 1: no reply from h1, which is down, or cut off from the network",
    ),
    (
        job(IN_JAX, SLEEPING), HangFinding.BLOCKED, (),
        "rank 0 waits in futex (step, train.py:13: return float(f(x))); rank 1 sleeps (step, train.py:15: sleep(9))",
    ),
    (job(LOOPING, LOOPING), HangFinding.RUNNING, (), "ranks 0 and 1 run step (train.py:37: while True:)"),
    (job(0, 0), HangFinding.UNKNOWN, (), "no rank could be examined"),
]  # fmt: skip


@pytest.mark.parametrize(("job", "finding", "guilty", "text"), VERDICTS, ids=[row[1].value for row in VERDICTS])
def test_the_verdict(job: JobSnapshot, finding: HangFinding, guilty: tuple[int, ...], text: str) -> None:
    assert judge(job) == HangVerdict(finding, guilty, text)


def test_a_large_group_is_named_in_few_words() -> None:
    assert ProcessGroup("7", "mesh_dp", tuple(range(3, 8192, 8))).text == "mesh_dp (ranks 3,11..8187)"
    assert ProcessGroup("7", "undefined", (0, 2)).text == "group 7 (ranks 0 and 2)"
    assert ProcessGroup("7", "mesh_dp").text == "mesh_dp"
    assert name_ranks(range(3, 8192, 8)) == "1024 ranks (3,11..8187)"


def test_a_job_hangs_if_no_waiting_rank_has_moved() -> None:
    before, later = job(WAITING, LOOPING), job(WAITING, snapshot(process([own(38, "pass")], "R")))
    assert evaluate([before, later]).hangs
    moved = evaluate([before, job(LOOPING, WAITING)])
    assert (moved.hangs, moved.sentence.partition(":")[0]) == (False, "no hang")
    assert not evaluate([before]).hangs
    sevenths, eighths, unknown = (job(*map(in_all_reduce, (number, number))) for number in (7, 8, None))
    assert [evaluate([sevenths, other]).hangs for other in (sevenths, eighths, unknown)] == [True, False, True]
    same = job(WAITING, WAITING)
    hint = ": their arguments, such as sizes, may differ"
    assert evaluate([same, same]).sentence == f"hang: all ranks wait in Barrier (train.py:41){hint}"
    assert not evaluate([job(LOOPING), job(LOOPING)]).hangs


def test_a_job_with_a_rank_that_has_not_replied_in_time() -> None:
    late, whole = job(LOOPING, None), job(LOOPING, LOOPING)
    assert [evaluate(snapshots).moved for snapshots in ([late, whole], [whole, late], [whole, whole])] == [
        True,
        False,
        False,
    ]


FINALIZING = snapshot(process([("main", "/lib/libc.so.6", 0, "")], "R", time=4.0, **used(3.9)))


@pytest.mark.parametrize("end", [0, FINALIZING])
def test_a_job_of_which_a_rank_ends_moves_on(end: int | RankSnapshot) -> None:
    before, after = job(WAITING, LOOPING), job(WAITING, end)
    assert [evaluate(snapshots).hangs for snapshots in ([before, after], [after, after])] == [False, True]


@pytest.mark.parametrize(("numbers", "hangs"), [((7, 8), False), ((7, 7), True), ((0, 8), True), ((7, 0), True)])
def test_a_job_whose_operations_end_moves_on(numbers: tuple[int, int], hangs: bool) -> None:  # noqa: FBT001
    before, after = (job(WAITING, LOOPING._replace(ended=number)) for number in numbers)
    assert evaluate([before, after]).hangs is hangs


FUTEX = {"call": "futex"}


@pytest.mark.parametrize(
    ("first", "second", "hangs"),
    [
        ({}, {}, True),
        ({}, {"replies": 1}, False),
        ({}, {"switches": 99}, True),
        (FUTEX, {**FUTEX, "switches": 4}, True),  # signals of two snapshots have interrupted the wait
        (FUTEX, {**FUTEX, "switches": 5}, False),
        (FUTEX, {"call": "sleep", "switches": 5}, False),  # it went on between its state and its stack
        ({**FUTEX, **used()}, {**FUTEX, "time": 2.0, "switches": 10, **used(0.0005)}, True),  # JAX looks for signals
        ({**FUTEX, **used()}, {**FUTEX, "time": 2.0, "switches": 10, **used(0.01)}, False),
    ],
)
def test_a_rank_that_has_called_the_same_function_again_has_moved(
    first: dict[str, Any],
    second: dict[str, Any],
    hangs: bool,  # noqa: FBT001
) -> None:
    before, after = (snapshot(process([*BARRIER, MAIN], **values)) for values in (first, second))
    assert evaluate([job(before, LOOPING), job(after, LOOPING)]).hangs is hangs


def on_gpu(number: int, name: str = "all_reduce", frames: Frames = ITEM, **more: Any) -> RankSnapshot:
    """Return the snapshot of a rank that keeps a CPU busy, and whose GPU has not ended a collective."""
    running = process(frames, **{"state": "R", "gpu": True, **more})
    return snapshot(running, collective=(number, name, "Float[4]", "nccl"))


def evaluate_on_gpus(*ranks: RankSnapshot | int) -> Examination:
    return evaluate([job(*ranks), job(*ranks)])


ON_GPU = "waits for its GPU (step, train.py:5: loss.item()), collective 7: all_reduce"
# A rank in the same operation in a system call: in `backward`, whose thread waits for the GPU.
IN_BACKWARD = snapshot(
    process([("backward", f"{TORCH}/_tensor.py", 500, ""), own(4, "loss.backward()")], call="futex", gpu=True),
    collective=(7, "all_reduce", "Float[4]", "nccl"),
)


@pytest.mark.parametrize(
    ("ranks", "finding", "guilty", "text"),
    [
        ((on_gpu(7), LOOPING), HangFinding.ABSENT, (1,),
         f"rank 0 {ON_GPU}; rank 1 runs step (train.py:37: while True:)"),
        ((on_gpu(7), on_gpu(7, "broadcast")), HangFinding.DIFFERENT_CALLS, (),
         f"rank 0 {ON_GPU}; rank 1 {ON_GPU.replace('all_reduce', 'broadcast')}; the rank at fault is unclear"),
        ((on_gpu(7), 3), HangFinding.ENDED, (1,), f"rank 0 {ON_GPU}; rank 1 has ended"),
        ((IN_BACKWARD, IN_BACKWARD, on_gpu(7)), HangFinding.SAME_CALL, (),
         f"ranks 0 and 1 wait in backward (train.py:4), collective 7: all_reduce; rank 2 {ON_GPU}"),
    ],
)  # fmt: skip
def test_ranks_that_stay_in_a_call_wait_for_a_collective_on_their_gpu(
    ranks: tuple[RankSnapshot | int, ...], finding: HangFinding, guilty: tuple[int, ...], text: str
) -> None:
    examination = evaluate_on_gpus(*ranks)
    assert examination.verdict == HangVerdict(finding, guilty, text)
    assert examination.hangs


def test_gpus_in_the_same_collective_may_compute_what_comes_before_it() -> None:
    elsewhere = on_gpu(7, frames=[own(6, "loss.item()")])
    examination = evaluate_on_gpus(on_gpu(7), elsewhere)
    text = "ranks 0 and 1 wait for their GPU, collective 7: all_reduce; the GPUs may compute what comes before it"
    assert (examination.sentence, examination.goes_on) == (f"at this moment: {text}", False)


@pytest.mark.parametrize(
    "later",
    [
        on_gpu(7, replies=1),
        on_gpu(8),
        on_gpu(7, frames=[("wait", "/lib/python3.11/subprocess.py", 9, ""), *ITEM], state="S", call="wait4"),
        on_gpu(7, frames=[("fit", "/env/lib/python3.11/site-packages/sklearn/svm.py", 9, ""), *ITEM]),
        on_gpu(7, frames=[("norm", f"{TORCH}/functional.py", 9, ""), *OPTIMIZER, *ITEM]),
        snapshot(process(ITEM, "R", gpu=True), collective=(7, "all_reduce", "Float[4]", "gloo")),
        snapshot(process(ITEM, "R"), collective=(7, "all_reduce", "Float[4]", "nccl")),
    ],
)
def test_a_rank_that_does_something_else_does_not_wait_for_its_gpu(later: RankSnapshot) -> None:
    examination = evaluate([job(on_gpu(7), LOOPING), job(later, LOOPING)])
    assert examination.verdict.finding in {HangFinding.RUNNING, HangFinding.BLOCKED}
    assert evaluate([job(on_gpu(7), LOOPING)]).verdict.finding is HangFinding.RUNNING  # of one look nothing follows


COMPUTING: dict[str, Any] = {"time": 4.0, "replies": 1, **used(3.9)}
LOOP, LOCK = [own(37, "while True:")], [own(5, "with lock:")]
SLEEPING = snapshot(process([own(7, "time.sleep(60)")], call="sleep"))
TESTING = [own(7, "while not request.Test(): time.sleep(.01)")]


@pytest.mark.parametrize(
    ("frames", "more", "goes_on"),
    [
        (LOOP, {}, True),
        (LOOP, used(0.1), False),
        (LOOP, {"gpu": True}, True),
        (LOOP, {"gpu": True, "replies": 0}, False),
        (LOCK, {"state": "S", "call": "futex"}, True),
        (LOCK, {"state": "S", "call": "futex", **used(0.1)}, False),
        ([*BARRIER, MAIN], {"replies": 0}, False),
    ],
)
def test_a_job_whose_ranks_compute_goes_on(frames: Frames, more: dict[str, Any], goes_on: bool) -> None:  # noqa: FBT001
    values = {"state": "R", **COMPUTING, **more}
    before = snapshot(process(frames, **{**values, "time": 0.0, "replies": 0, **used()}))
    examination = evaluate([job(before, before), job(*[snapshot(process(frames, **values))] * 2)])
    assert (examination.moved, examination.goes_on, examination.hangs) == (
        False,
        goes_on,
        not goes_on and frames != LOOP,
    )


def polling(replies: int, state: str = "R", line: int = 8) -> RankSnapshot:
    frames = [("MPI_Iprobe", "/lib/libmpi.so.40", 0, ""), ("Iprobe", MPI, 0, ""), own(line, "while not comm.Iprobe():")]
    return snapshot(process(frames, state, replies=replies))


@pytest.mark.parametrize(
    ("other", "after", "moved"),
    [
        (WAITING, polling(1), False),
        (WAITING, polling(1, line=9), True),
        (SLEEPING, polling(1), False),
        (LOOPING, polling(1), True),  # which may compute what the rank waits for
    ],
)
def test_a_loop_that_asks_other_ranks_moves_while_one_computes(
    other: RankSnapshot,
    after: RankSnapshot,
    moved: bool,  # noqa: FBT001
) -> None:
    examination = evaluate([job(other, other, polling(0)), job(other, other, after)])
    assert examination.moved is moved
    assert examination.verdict.guilty == (() if other is WAITING else (0, 1))


def test_a_rank_that_sleeps_in_a_loop_that_asks_others_waits_for_them() -> None:
    position = locate_rank(snapshot(process(TESTING, call="sleep")))
    assert (position.activity, position.call) == (Activity.COMMUNICATES, "Test")


@pytest.mark.parametrize(
    ("others", "goes_on"),
    [([], True), ([SLEEPING], True), ([0], True), ([WAITING], False), ([SLEEPING, WAITING], False),
     ([FINALIZING], False), ([snapshot(process(LOOP, "T"))], False), ([None], False)],
)  # fmt: skip
def test_a_rank_that_computes_may_loop_while_others_wait(
    others: list[RankSnapshot | int | None],
    goes_on: bool,  # noqa: FBT001
) -> None:
    before, after = job(LOOPING, *others), job(snapshot(process(LOOP, "R", **COMPUTING)), *others)
    assert evaluate([before, after]).goes_on is goes_on


@pytest.mark.parametrize(("before", "after"), [(snapshot(), LOOPING), (LOOPING, snapshot()), (snapshot(), WAITING)])
def test_a_rank_that_could_not_be_examined_is_in_an_unknown_place(before: RankSnapshot, after: RankSnapshot) -> None:
    examination = evaluate([job(WAITING, before), job(WAITING, after)])
    assert examination.moved is not None
    assert not evaluate([job(before), job(after)]).computes


def test_a_thread_that_waits_for_other_ranks_does_not_compute() -> None:
    main, helper = (process(frames, call="futex", **COMPUTING)["threads"][0] for frames in (LOCK, BARRIER))
    helper["id"] = 8
    values = {"call": "futex", **COMPUTING, **used(threads={"7": [0.0, 0.0], "8": [3.9, 0.0]})}
    before = snapshot(process(LOCK, call="futex", **used(threads={"7": [0.0, 0.0], "8": [0.0, 0.0]})))
    after = snapshot({**process(LOCK, **values), "threads": [main, helper]})
    assert evaluate([job(before), job(after)]).hangs


def test_the_stack_of_a_rank_that_imports_has_no_functions_of_the_importer() -> None:
    frames = [own(1, "x = 1", "<module>"), ("exec_module", "<frozen importlib._bootstrap_external>", 940, "")]
    waiting = process([*frames, own(3, "import torch", "<module>")], waits_in="futex_wait_queue")
    states = render_states(job(snapshot(waiting)))
    assert "\nprocess 7 (python): state S (lock)\n" in states
    assert states.endswith("      <module> (train.py:1)\n      <module> (train.py:3)")


def test_the_record_of_a_examination() -> None:
    record = record_examination(evaluate([job(WAITING, in_all_reduce(7), 3, None)]), "request", 1.0)
    assert [rank["exit_code"] for rank in record["ranks"]] == [None, None, 3, None]
    position = record["ranks"][1]["position"]
    assert position is not None
    assert position["collective"] == "collective 7: all_reduce Float[4]"
    assert "state of rank 0 on h0:\nprocess 7 (python): state R\n  Thread 7 (active)\n" in record["states"]


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"null", b'{"processes": [1], "connections": []}', b'{"processes": [{}], "connections": []}',
     b'{"processes": null, "connections": 3}', b"[" * 100_000, b"\xff"],
)  # fmt: skip
def test_a_report_that_cannot_be_read(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any text
        parse_snapshot(text)
