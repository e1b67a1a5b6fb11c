"""NCCL's RAS: replies of several versions, a stand-in that speaks the protocol, and the note beside a verdict.

Most replies are those of NCCL's documentation, with the processes that these tests have.
"""

import json
import os
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ddlrun.hangs.examination import evaluate
from ddlrun.hangs.snapshot import ExaminedRank, JobSnapshot
from ddlrun.hangs.snapshot_parsing import parse_snapshot
from ddlrun.keeper.stacks.ras import parse_reply, read_ras

TEXT = """\
NCCL version 2.24.3+cuda12.8 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         2         4         4   RUNNING  INCOMPLETE,MISMATCH

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 73 on node 172.16.64.213 managing GPU 1

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 3 -- GPU 1 managed by process 73 on node 172.16.64.213

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  2 ranks have launched up to operation 6650
  Rank 2 has launched up to operation 6649 -- GPU 0 managed by process 72 on node 172.16.64.213
"""
LATE = [{
    "hash": "cf264af53edbe986", "size": 0, "missing": [[3, 73]],
    "behind": {"AllReduce": {"most": 6650, "ranks": [[2, 6649, 72]]}},
}]  # fmt: skip

# As an H200 printed it for three ranks that shared it, one of which had missed a collective.
MEASURED = """\
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          3            1          3        3

Communicators... (0.000s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         3         3         3   RUNNING  MISMATCH
    1         1         1         2         2         2   RUNNING      OK
    2         1         1         1         1         1   RUNNING      OK

Errors
======

Warnings
========

#0-0 (7a3f6fe197c96123) MISMATCH
  Communicator ranks have different AllReduce operation counts
  2 ranks have launched up to operation 21
  Rank 1 has launched up to operation 20 -- GPU 0 managed by process 3503 on node 127.0.0.1

"""


def rank_of(rank: int, count: int) -> dict[str, Any]:
    """Return a rank in NCCL's JSON."""
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    counts = {"Broadcast": 0, "AllReduce": count}
    place = {"rank": rank, "host": "172.16.64.213", "pid": 70 + rank, "cuda_dev": 0, "nvml_dev": 0}
    return {**place, "status": status, "collective_counts": counts}


def reply_in_json() -> bytes:
    """Return the reply of four ranks, of which one is missing and one is behind."""
    missing = {**rank_of(3, 0), "status": {"unresponsive": True, "considered_dead": False}}
    communicator = {
        "hash": "0xcf264af53edbe986", "secondary_hash": "0x1:0x2", "size": 4, "ranks_count": 3,
        "missing_ranks_count": 1, "ranks": [rank_of(0, 6650), rank_of(1, 6650), rank_of(2, 6649)],
        "missing_ranks": [missing],
    }  # fmt: skip
    return json.dumps({"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [communicator]}).encode()


class RasThread(socketserver.StreamRequestHandler):
    """The thread of a process, as src/ras/client_support.cc has it."""

    has_json = True

    def handle(self) -> None:
        """Reply to a client."""
        reply = TEXT.encode()
        for line in self.rfile:
            words = line.decode().strip().lower()
            if words.startswith("client protocol "):
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif words == "verbose status":
                self.wfile.write(reply)
                return
            elif words.startswith("timeout ") or (words == "set format json" and self.has_json):
                reply = reply if words.startswith("timeout ") else reply_in_json()
                self.wfile.write(b"OK\n")
            else:
                self.wfile.write(f"ERROR: Unknown command {words}\n".encode())


class OldRasThread(RasThread):
    """That of NCCL before 2.28.7."""

    has_json = False


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[int]:
    """Provide a process that has mapped a libnccl, and whose RAS thread is a stand-in."""
    (tmp_path / "libnccl.so.2").write_bytes(bytes(4096))
    code = (
        "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, access=1); print(1, flush=True); input()"
    )
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), request.param) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environ = {**os.environ, "NCCL_RAS_ADDR": f"localhost:{server.server_address[1]}"}
        argv = ["python3", "-c", code, str(tmp_path / "libnccl.so.2")]
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, env=environ, stdin=pipe, stdout=pipe) as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
            process.kill()
        server.shutdown()


@pytest.mark.parametrize(
    ("program", "late"),
    [(RasThread, [{**LATE[0], "hash": "0xcf264af53edbe986", "size": 4}]), (OldRasThread, LATE)],
    indirect=["program"],
    ids=["json", "text"],
)
def test_the_thread_of_a_process_replies(program: int, late: list[dict[str, Any]]) -> None:
    assert read_ras([program], 30.0) == late


def test_the_reply_of_a_real_nccl_is_read() -> None:
    late = {"AllReduce": {"most": 21, "ranks": [[1, 20, 3503]]}}
    assert parse_reply(MEASURED.encode()) == [{"hash": "7a3f6fe197c96123", "size": 0, "missing": [], "behind": late}]


def test_a_process_without_nccl_is_not_asked() -> None:
    assert read_ras([os.getpid()], 30.0) == []


@pytest.mark.parametrize("reply", [b"", b"{}", b'{"communicators": [{"ranks": 1}]}', b"\xff" * 9, b"#0-0 (a) ERROR\n"])
def test_a_reply_of_another_version_says_nothing_of_ranks(reply: bytes) -> None:
    assert [communicator for communicator in parse_reply(reply) if communicator["missing"]] == []


def job(communicators: list[dict[str, Any]], pids: tuple[int, ...] = (70, 71, 72, 73)) -> JobSnapshot:
    """Return the snapshot of ranks that wait, with what NCCL knows."""
    thread = {"id": 7, "name": "", "active": False, "frames": []}
    empty = {"state": "S", "waits_in": "", "call": "", "target": "", "command": [], "threads": [thread], "problem": ""}
    numbers = dict.fromkeys(("switches", "replies", "time", "busy", "transferred", "gpu"), 0)
    records = [
        {"processes": [{"pid": pid, "name": "python", **empty, **numbers}], "connections": [],
         "communicators": communicators if rank == 0 else []}
        for rank, pid in enumerate(pids)
    ]  # fmt: skip
    ranks = (ExaminedRank(rank, "h", parse_snapshot(json.dumps(record))) for rank, record in enumerate(records))
    return JobSnapshot(tuple(ranks))


SIZED = [{**LATE[0], "size": 4}]
NOTE = "; NCCL gets no reply from rank 3; NCCL: rank 2 has started 6649 AllReduce operations, others 6650"


@pytest.mark.parametrize(
    ("first", "last", "note"),
    [
        (job(LATE), job(LATE), NOTE),
        (job(SIZED), job(SIZED), f"{NOTE} in a communicator of 4 ranks"),
        (job([]), job(LATE), ""),
        (job(LATE, (1, 2, 3, 4)), job(LATE, (1, 2, 3, 4)), ""),
        (job(LATE, (73, 73, 72, 72)), job(LATE, (73, 73, 72, 72)), ""),
    ],
    ids=["both times", "with its size", "only later", "of another job", "processes of several hosts"],
)
def test_what_has_not_changed_is_noted_beside_the_verdict(first: JobSnapshot, last: JobSnapshot, note: str) -> None:
    assert evaluate([first, last]).verdict.text == evaluate([job([]), job([])]).verdict.text + note
