"""Dumps of jobs that hang: flight recorders and stacks, and the verdicts on them."""

import os
import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddlrun.hangs.dumps import Dump, examine_dumps
from ddlrun.hangs.verdict import HangFinding
from tests.support import needs
from tests.support.launches import run
from tests.support.waiting import wait_until

DOCTOR = [sys.executable, "-m", "ddlrun", "doctor", "--dumps"]
TORCH = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
DEFAULT = ("0", "default_pg")
TP = ("5", "mesh_tp")


def entry(number: int, group: tuple[str, str], call: str, line: int = 0, *, ended: bool = True) -> dict[str, Any]:
    """Return the record of an operation of NCCL; a call such as `recv 1<-0` is from one rank to another."""
    is_p2p = " " in call
    frames = [("all_reduce", TORCH, 3245), ("step", "/home/u/train.py", line)]
    return {
        "record_id": number, "process_group": group, "profiling_name": f"nccl:{call}", "is_p2p": is_p2p,
        "collective_seq_id": 0 if is_p2p else number, "p2p_seq_id": number if is_p2p else 0, "retired": ended,
        "state": "completed" if ended else "started", "time_created_ns": number,
        "input_dtypes": ["Float"], "input_sizes": [[8]],
        "frames": [dict(zip(("name", "filename", "line"), frame, strict=True)) for frame in frames] if line else [],
    }  # fmt: skip


def recorder(*entries: dict[str, Any], members: str = "[2, 3]") -> Dump:
    """Return the dump of a rank."""
    config = (
        {"5": {"name": "5", "desc": "mesh_tp", "ranks": members}} if TP in [e["process_group"] for e in entries] else {}
    )
    return Dump(recorders=({"version": "2.10", "entries": list(entries), "pg_config": config},))


def doing(*calls: str, line: int = 0, members: str = "[2, 3]") -> Dump:
    """Return the dump of a rank: `all_reduce`, or `tp:all_reduce` in its group; the last call has not ended."""
    counts: dict[tuple[str, str], int] = {}
    entries = []
    for index, call in enumerate(calls):
        name = call.removeprefix("tp:")
        group = DEFAULT if name == call else TP
        counts[group] = counts.get(group, 0) + 1
        record = entry(counts[group], group, name, line, ended=index < len(calls) - 1)
        entries.append({**record, "record_id": index, "time_created_ns": index})
    return recorder(*entries, members=members)


def calling(name: str, peer: int, tag: int, *entries: dict[str, Any]) -> Dump:
    """Return the records of a rank in a send or recv of gloo, as the start-up hook has them."""
    call = {
        "name": name, "backend": "gloo", "group": DEFAULT[0], "description": DEFAULT[1], "peer": peer, "tag": tag,
    }  # fmt: skip
    return Dump(recorders=({"entries": list(entries), "calls": [call]},))


def member(groups: dict[str, list[int]], *calls: str) -> Dump:
    """Return the records of a member of groups, as the start-up hook has them; `1:all_reduce` is in the group 1."""
    counts: dict[str, int] = {}
    entries = []
    for index, call in enumerate(calls):
        name, _, operation = call.rpartition(":")
        group = (name, "undefined") if name else DEFAULT
        counts[name] = counts.get(name, 0) + 1
        record = entry(counts[name], group, operation, ended=index < len(calls) - 1)
        entries.append({**record, "time_created_ns": index})
    config = {name: {"desc": "undefined", "ranks": str(ranks)} for name, ranks in groups.items()}
    default = {DEFAULT[0]: {"desc": DEFAULT[1], "ranks": ""}}
    return Dump(recorders=({"entries": entries}, {"calls": [], "pg_config": default | config}))


def exchanging(*messages: str) -> Dump:
    """Return the records of messages such as `recv 0`, as the start-up hook has them; the last one has not ended."""
    pairs = [(name, int(peer)) for name, peer in map(str.split, messages)]
    uses = [(at + 2, DEFAULT[0], pairs[: at + 1].count(pair), *pair) for at, pair in enumerate(pairs)]
    return Dump(recorders=({**calling(*pairs[-1], 0, DONE).recorders[0], "recent": uses},))


def exchanged(*messages: str, then: int = 0) -> Dump:
    """Return the records of messages that were begun, and of a rank that waits for them, or in a barrier then."""
    done = {"entries": [DONE, *([entry(then, DEFAULT, "barrier", ended=False)] if then else [])], "calls": []}
    frames = [("batch_isend_irecv", TORCH, 3010), ("<module>", "/home/u/train.py", 7)]
    stack = {"id": 7, "name": "MainThread", "active": False, "frames": frames}
    recent = exchanging(*messages).recorders[0] if messages else {}
    return Dump(({**recent, **done},), () if then else (stack,))


def sized(size: int) -> Dump:
    """Return the dump of a rank in a first all-reduce of a tensor of this size."""
    return recorder({**entry(1, DEFAULT, SUM, ended=False), "input_sizes": [[size]]})


SUM, NONE = "all_reduce", recorder()
DONE = entry(1, DEFAULT, SUM)
FIRST, SECOND = {"1": [0, 1]}, {"2": [2, 3]}
NESTED, CYCLE = {"1": [0, 1], "2": [0, 1, 2]}, (f"1:{SUM}", f"2:{SUM}", SUM)
VERDICTS = [
    (  # the waits lead from group to group
        [doing(SUM, SUM), doing(SUM, SUM), doing(SUM, f"tp:{SUM}"), recorder(entry(1, DEFAULT, SUM))],
        HangFinding.ABSENT, (3,),
        ("ranks 0 and 1 wait in all_reduce, collective 2; rank 2 waits in all_reduce, collective 1 of mesh_tp (ranks 2"
         " and 3); rank 3 could not be located"),
    ),
    (  # two members differ, and the others wait for them
        [doing(SUM, SUM), doing(SUM, SUM), doing(SUM, f"tp:{SUM}"), doing(SUM, "tp:broadcast")],
        HangFinding.DIFFERENT_CALLS, (),
        ("ranks 0 and 1 wait in all_reduce, collective 2; rank 2 waits in all_reduce, collective 1 of mesh_tp (ranks 2"
         " and 3); rank 3 waits in broadcast, collective 1 of mesh_tp (ranks 2 and 3); the rank at fault is unclear"),
    ),
    (
        [doing("send 0->1"), doing("recv 1<-2"), doing("recv 2<-1")], HangFinding.DIFFERENT_CALLS, (),
        ("rank 0 waits in send, send 1 to rank 1; rank 1 waits in recv, recv 1 from rank 2; rank 2 waits in recv, recv"
         " 1 from rank 1; rank 1 waits for rank 2 in recv, rank 2 for rank 1 in recv; the rank at fault is unclear"),
    ),
    (  # both halves have begun, and data do not flow
        [doing("send 0->1"), doing("recv 1<-0"), doing("recv 2<-1")], HangFinding.DIFFERENT_CALLS, (),
        ("rank 0 waits in send, send 1 to rank 1; rank 1 waits in recv, recv 1 from rank 0; rank 2 waits in recv, recv"
         " 1 from rank 1; the rank at fault is unclear"),
    ),
    (
        [calling("send", 1, 3), calling("recv", 0, 4)], HangFinding.DIFFERENT_CALLS, (),
        ("rank 0 waits in send, send to rank 1, tag 3; rank 1 waits in recv, recv from rank 0, tag 4; rank 0 waits for"
         " rank 1 in send, rank 1 for rank 0 in recv; the rank at fault is unclear"),
    ),
    (  # rank 1 expects one message more than rank 0 has sent, or rank 0 has left it out
        [doing(SUM, SUM), calling("recv", 0, 0, DONE), doing(SUM, SUM)],
        HangFinding.DIFFERENT_CALLS, (),
        ("ranks 0 and 2 wait in all_reduce, collective 2; rank 1 waits in recv, recv from rank 0; rank 0 waits for "
         "rank 1 in all_reduce, rank 1 for rank 0 in recv; the rank at fault is unclear"),
    ),
    (
        [doing(SUM), doing(SUM), sized(5)], HangFinding.DIFFERENT_CALLS, (2,),
        "ranks 0-2 wait in all_reduce, collective 1; tensors differ: Float[8] on ranks 0 and 1, Float[5] on rank 2",
    ),
    (  # rank 1 has called all_reduce once more, before a broadcast
        [doing(SUM, "broadcast"), doing(SUM, SUM), doing(SUM, "broadcast", "barrier")],
        HangFinding.DIFFERENT_CALLS, (1,),
        ("rank 0 waits in broadcast, collective 2; rank 1 waits in all_reduce, collective 2; rank 2 waits in barrier, "
         "collective 3"),
    ),
    (  # rank 3 leaves out the collective of its half, a group without a name
        [*[member(FIRST, f"1:{SUM}", SUM)] * 2, member(SECOND, f"2:{SUM}"), member(SECOND, SUM)],
        HangFinding.DIFFERENT_CALLS, (3,),
        ("ranks 0, 1 and 3 wait in all_reduce, collective 1; rank 2 waits in all_reduce, collective 1 of group 2 "
         "(ranks 2 and 3); rank 2 waits for rank 3 in all_reduce of group 2, rank 3 for rank 2 in all_reduce; rank 3 "
         "calls these in a different order"),
    ),
    (  # rank 3 waits for rank 4, which sends to rank 1, or rank 1 has left out the other half
        [*[doing(SUM, SUM)] * 3, doing(SUM, f"tp:{SUM}", members="[3, 4]"), calling("send", 1, 0, DONE)],
        HangFinding.DIFFERENT_CALLS, (),
        ("ranks 0-2 wait in all_reduce, collective 2; rank 3 waits in all_reduce, collective 1 of mesh_tp (ranks 3 and"
         " 4); rank 4 waits in send, send to rank 1; rank 3 waits for rank 4 in all_reduce of mesh_tp, rank 4 for rank"
         " 1 in send, rank 1 for rank 3 in all_reduce; the rank at fault is unclear"),
    ),
    (  # rank 0 has left out a collective with rank 1, or rank 1 calls it once more
        [member(FIRST, SUM), member(FIRST, f"1:{SUM}"), member({}, SUM)], HangFinding.DIFFERENT_CALLS, (),
        ("ranks 0 and 2 wait in all_reduce, collective 1; rank 1 waits in all_reduce, collective 1 of group 1 (ranks 0"
         " and 1); rank 0 waits for rank 1 in all_reduce, rank 1 for rank 0 in all_reduce of group 1; the rank at "
         "fault is unclear"),
    ),
    (  # the records show that this one did not come first before
        [
            member(NESTED, *CYCLE, f"2:{SUM}"), member(NESTED, *CYCLE, f"1:{SUM}"),
            member({"2": [0, 1, 2]}, *CYCLE[1:], f"2:{SUM}"), member({}, SUM, SUM),
        ],
        HangFinding.DIFFERENT_CALLS, (0,),
        ("ranks 0 and 2 wait in all_reduce, collective 2 of group 2 (ranks 0-2); rank 1 waits in all_reduce, "
         "collective 2 of group 1 (ranks 0 and 1); rank 3 waits in all_reduce, collective 2; rank 0 waits for rank 1 "
         "in all_reduce of group 2, rank 1 for rank 0 in all_reduce of group 1; rank 0 has skipped all_reduce of group"
         " 1, which so far came before each all_reduce of group 2"),
    ),
    (  # rank 1 broadcasts where the others gather, of which one took what it sent for the end of its operation
        [
            doing(SUM, "all_gather"), doing(SUM, "broadcast", "broadcast", "barrier"),
            doing(SUM, "all_gather", "all_gather"),
        ],
        HangFinding.DIFFERENT_CALLS, (1,),
        ("rank 0 waits in all_gather, collective 2; rank 1 waits in barrier, collective 4; rank 2 waits in all_gather, "
         "collective 3; collective 2: all_gather in ranks 0 and 2, broadcast in rank 1"),
    ),
    (  # of these two, none is more usual
        [doing(SUM, "all_gather"), doing(SUM, "broadcast", "barrier")], HangFinding.DIFFERENT_CALLS, (),
        ("rank 0 waits in all_gather, collective 2; rank 1 waits in barrier, collective 3; collective 2: all_gather in "
         "rank 0, broadcast in rank 1; the rank at fault is unclear"),
    ),
    (  # a stage of a pipeline
        [
            exchanging("send 1", "recv 1", "send 1", "recv 1"),
            exchanging("recv 0", "send 2", "recv 2", "send 0", "recv 0", "recv 2"),
            exchanging("recv 1", "send 1", "recv 1"),
        ],
        HangFinding.DIFFERENT_CALLS, (1,),
        ("ranks 0 and 2 wait in recv, recv from rank 1; rank 1 waits in recv, recv from rank 2; rank 1 waits for rank "
         "2 in recv, rank 2 for rank 1 in recv; rank 1 has skipped send to rank 2, which so far came before each recv "
         "from rank 2"),
    ),
    (  # rank 1 leaves out a receive of a batch: rank 0 waits for a message that is not recorded as the one it waits for
        [exchanged("send 1", "recv 2"), exchanged("send 2", then=2), exchanged("send 0", "recv 1", then=2)],
        HangFinding.DIFFERENT_CALLS, (1,),
        ("ranks 1 and 2 wait in barrier, collective 2; rank 0 waits in batch_isend_irecv (train.py:7), send to rank 1;"
         " rank 0 waits for rank 1 in send, rank 1 for rank 0 in barrier; rank 1 has started more or fewer sends or "
         "receives than the others"),
    ),
    (  # rank 0 has begun the third collective of one group after the first of another: what came before is not known
        [
            member(FIRST, "broadcast", "broadcast", f"1:{SUM}", SUM),
            member(FIRST, "broadcast", "broadcast", f"1:{SUM}", f"1:{SUM}"),
        ],
        HangFinding.DIFFERENT_CALLS, (),
        ("rank 0 waits in all_reduce, collective 3; rank 1 waits in all_reduce, collective 2 of group 1 (ranks 0 and "
         "1); rank 0 waits for rank 1 in all_reduce, rank 1 for rank 0 in all_reduce of group 1; the rank at fault is "
         "unclear"),
    ),
    (  # rank 0 sends once, rank 1 receives twice; the collective before that is none that came before each message
        [exchanged("send 1", then=2), exchanging("recv 0", "recv 0"), exchanging("recv 1")],
        HangFinding.DIFFERENT_CALLS, (),
        ("rank 0 waits in barrier, collective 2; rank 1 waits in recv, recv from rank 0; rank 2 waits in recv, recv "
         "from rank 1; rank 0 waits for rank 1 in barrier, rank 1 for rank 0 in recv; the rank at fault is unclear"),
    ),
    (  # rank 0 has sent to rank 2, not to rank 1
        [exchanged("send 2", then=2), exchanging("recv 0"), exchanged(then=2), exchanged(then=2)],
        HangFinding.DIFFERENT_CALLS, (0,),
        ("ranks 0, 2 and 3 wait in barrier, collective 2; rank 1 waits in recv, recv from rank 0; rank 0 waits for "
         "rank 1 in barrier, rank 1 for rank 0 in recv; rank 0 has started send to rank 2, which has not started a "
         "matching recv"),
    ),
    (  # rank 0 receives from any
        [exchanged("recv -1"), exchanged(then=2), exchanged(then=2)], HangFinding.DIFFERENT_CALLS, (),
        ("ranks 1 and 2 wait in barrier, collective 2; rank 0 waits in batch_isend_irecv (train.py:7); the rank at "
         "fault is unclear"),
    ),
    (  # rank 0 has sent two messages before it gets replies; rank 1 expects a third
        [exchanging("send 1", "send 1", "recv 1", "recv 1"), exchanging("recv 0", "recv 0", "send 0", "recv 0")],
        HangFinding.DIFFERENT_CALLS, (),
        ("rank 0 waits in recv, recv from rank 1; rank 1 waits in recv, recv from rank 0; rank 0 waits for rank 1 in "
         "recv, rank 1 for rank 0 in recv; the rank at fault is unclear"),
    ),
    (
        [doing(SUM), sized(5)], HangFinding.DIFFERENT_CALLS, (),
        ("ranks 0 and 1 wait in all_reduce, collective 1; tensors differ: Float[8] on rank 0, Float[5] on rank 1; the "
         "rank at fault is unclear"),
    ),
    (  # rank 1 is not asked for: it computes
        [doing(f"tp:{SUM}", members="[0, 2]"), NONE, NONE], HangFinding.ABSENT, (2,),
        "rank 0 waits in all_reduce, collective 1 of mesh_tp (ranks 0 and 2); rank 2 could not be located",
    ),
    (
        [doing(SUM, SUM), doing(SUM, SUM), doing(SUM, SUM)], HangFinding.SAME_CALL, (),
        "all ranks wait in all_reduce, collective 2",
    ),
    (
        [doing(SUM, line=7), doing(SUM, line=7), NONE], HangFinding.ABSENT, (2,),
        "ranks 0 and 1 wait in all_reduce (train.py:7), collective 1; rank 2 could not be located",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("dumps", "finding", "guilty", "text"), VERDICTS)
def test_the_verdict_on_dumps(dumps: list[Dump], finding: HangFinding, guilty: tuple[int, ...], text: str) -> None:
    examination = examine_dumps({rank: [dump] for rank, dump in enumerate(dumps)})
    assert (examination.verdict.finding, examination.verdict.guilty) == (finding, guilty)
    assert examination.verdict.text == text
    assert examination.hangs


def test_a_member_without_a_dump() -> None:
    dumps = {0: [doing(f"tp:{SUM}", members="[0, 1, 3]")], 1: [doing(f"tp:{SUM}", members="[0, 1, 3]")]}
    verdict = examine_dumps(dumps).verdict
    expected = "ranks 0 and 1 wait in all_reduce, collective 1 of mesh_tp (ranks 0, 1 and 3); rank 3 left no dump"
    assert (verdict.finding, verdict.guilty, verdict.text) == (HangFinding.SILENT_HOST, (3,), expected)
    del dumps[1]
    assert examine_dumps(dumps).verdict.guilty == ()


class Hostile:
    """What a pickle runs while it is read."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("hostile",))


def test_a_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [Hostile()]}, protocol=2))
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps({"entries": []}, protocol=2)[:-3])
    done = run([*DOCTOR, str(tmp_path)])
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "nccl_trace_rank_0: the pickle cannot be read: it names posix.mkdir, which no flight recorder writes"
        in done.stderr
    )
    assert "nccl_trace_rank_1: the pickle cannot be read: " in done.stderr
    assert not (tmp_path / "hostile").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no file is a dump"),
        (
            {"notes.txt": b"rank 3 hangs", "data1.json": b'{"a": 1}', "stacks.txt": b"Process 7: python"},
            "no file is a dump",
        ),
        ({"a/rank_0": b'{"entries": []}', "b/rank_0": b'{"entries": []}'}, "a/rank_0 has the same rank"),
        ({"rank_0": b'{"entries": [{}]}'}, "the records are of an unknown version of PyTorch"),
        ({"rank_0": pickle.dumps([1])}, "the pickle is not from a flight recorder"),
    ],
)
def test_a_folder_that_cannot_be_examined(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    done = run([*DOCTOR, str(tmp_path)])
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


STACKS = """
import queue, threading
def take(jobs):
    return jobs.get()
threading.Thread(target=threading.Event().wait, daemon=True, name="helper").start()
print("up", flush=True)
take(queue.Queue())
"""


def test_stacks_by_py_spy(tmp_path: Path) -> None:
    tool = shutil.which("py-spy", path=os.path.dirname(sys.executable)) or needs.program("py-spy", "py-spy")
    (tmp_path / "train.py").write_text(STACKS)
    with subprocess.Popen([sys.executable, str(tmp_path / "train.py")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        for name, options in (("stacks.rank0.txt", []), ("stacks.rank1.json", ["--json"])):
            argv = [tool, "dump", *options, "--pid", str(process.pid)]
            (tmp_path / name).write_bytes(wait_until(partial(read_stacks, argv)))
        process.kill()
    done = run([*DOCTOR, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    waits = "waits for a queue (take, train.py:4)"
    assert done.stdout.startswith(f"hang: rank 0 {waits}; rank 1 {waits}\n")


def read_stacks(argv: list[str]) -> bytes:
    """Return the output of py-spy once the process waits in a queue; empty before that."""
    done = subprocess.run(argv, capture_output=True, check=True)
    return done.stdout if b"Queue.get" in done.stdout else b""
