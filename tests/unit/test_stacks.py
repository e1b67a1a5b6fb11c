"""The stacks of a Python process without py-spy: its start-up hook writes them on a signal."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddlrun.hangs.snapshot import (
    ANY,
    Counters,
    ProcessGroup,
    RankSnapshot,
    RecentOperation,
    RecordedOperation,
    StartedGroup,
)
from ddlrun.hangs.snapshot_parsing import parse_counters, parse_snapshot
from ddlrun.hangs.work import have_changed
from ddlrun.keeper.proc_files import read_stat
from ddlrun.keeper.program import HOOK
from ddlrun.keeper.stacks.process_facts import list_links, read_call, read_counters, read_times, uses_gpu
from ddlrun.keeper.stacks.python_stacks import (
    PROBE_SIGNAL,
    STACKS_SIGNAL,
    UNKNOWN,
    find_py_spy,
    parse_dump,
    probe,
    read_stacks,
)
from ddlrun.keeper.stacks.recorder import parse_recorder, read_recorder
from ddlrun.keeper.stacks.snapshot import take_snapshot
from tests.support import needs
from tests.support.waiting import wait_until

HOLD = """
import sys, threading
def hold():
    print("up", flush=True)
    {wait}
threading.Thread(target=threading.Event().wait, daemon=True).start()
hold()
"""
BLOCK = "sys.stdin.read()"


@pytest.fixture(autouse=True)
def no_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no folder have py-spy: that of the interpreter is one without it."""
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@contextmanager
def held(folder: Path, code: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Provide a process that has printed a line, and waits."""
    argv = [str(folder / "python"), "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **environ}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.kill()


def threads_in_line_5(pid: int) -> list[dict[str, Any]]:
    """Return the threads of a process once its first one waits; it may still be about to after its output."""
    threads, problem = read_stacks(pid, 10)
    assert problem == ""
    return threads if threads[0]["frames"][-2] == ("hold", "<string>", 5) else []


@pytest.mark.parametrize("wait", [BLOCK, "while True: pass", "__import__('time').sleep(600)"])
def test_the_hook_writes_the_stacks_of_all_threads(tmp_path: Path, wait: str) -> None:
    with held(tmp_path, HOLD.format(wait=wait), PYTHONPATH=HOOK) as process:
        assert find_py_spy(process.pid) is None
        for _ in range(2):
            threads = wait_until(partial(threads_in_line_5, process.pid))
            assert threads[0]["frames"][-1] == ("<module>", "<string>", 7)
            assert "wait" in [frame[0] for frame in threads[1]["frames"]]
        assert process.poll() is None


def test_a_process_replies_to_a_probe_once_it_runs_python(tmp_path: Path) -> None:
    with held(tmp_path, HOLD.format(wait="while True: pass"), PYTHONPATH=HOOK) as process:
        assert probe(process.pid) == (0, [])
        wait_until(lambda: probe(process.pid)[0] > 0)


@pytest.mark.parametrize(
    ("loop", "changes"),
    [
        ("while not threading.current_thread().daemon: pass", False),
        ("number = 0\n    while True: number += 1", True),
        ("for number in iter(int, 1): text = str(object())", True),
        ("sum(number for number in __import__('itertools').count())", True),
        ("number = 0\n    while True: number += 1; threading.eval = None", True),
        ("while not threading.current_thread().daemon: vars(threading)", False),
        ("while not threading.current_thread().daemon: locals()", True),  # its variables are not looked at
    ],
)
def test_the_variables_of_a_loop_change_unless_it_waits(tmp_path: Path, loop: str, changes: bool) -> None:  # noqa: FBT001
    with held(tmp_path, HOLD.format(wait=loop), PYTHONPATH=HOOK) as process:
        wait_until(lambda: probe(process.pid)[0] > 8)
        _, replies = probe(process.pid)
    assert len(replies) == 8
    assert any(itertools.starmap(have_changed, itertools.pairwise(replies))) is changes


SHARES = """
import os, sys
def probe():
    os.kill(os.getpid(), {signal})
def ask():
    values = sys._getframe(1).f_locals
    probe()
    return values["word"]
def share():
    word = 1
    {share}
share()
"""


@pytest.mark.parametrize(
    "share",
    [
        "values = locals(); probe(); values['word']",
        "for name in locals(): probe()",
        "values = vars(); probe(); values['word']",
        "eval('probe() or word')",
        "ask()",
        "self = type('Proxy', (), {'__slots__': (), '__getattr__': lambda *_: sys.exit(9)})(); probe()",
    ],
)
def test_a_probe_leaves_variables_that_a_program_asks_for(share: str) -> None:
    line = [sys.executable, "-c", SHARES.format(signal=PROBE_SIGNAL, share=share)]
    done = subprocess.run(line, env={"PYTHONPATH": HOOK}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


SPIN = f"threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start(); {BLOCK}"


def test_the_time_in_which_threads_compute_is_counted(tmp_path: Path) -> None:
    with held(tmp_path, HOLD.format(wait=SPIN)) as process:
        wait_until(lambda: any(ran > 0.5 for tid, (ran, _) in read_times(process.pid).items() if tid != process.pid))
        assert not uses_gpu(process.pid)


def test_a_process_that_waits_does_not_compute(tmp_path: Path) -> None:
    with held(tmp_path, HOLD.format(wait=BLOCK)) as process:
        wait_until(lambda: "pipe_read" in Path(f"/proc/{process.pid}/wchan").read_text())
        before = read_times(process.pid)
        assert before == read_times(process.pid)
        assert before[process.pid][0] > 0


def test_what_a_process_and_its_ended_children_write_is_counted(tmp_path: Path) -> None:
    counters = [read_own()]
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    counters.append(read_own())
    subprocess.run(["dd", f"if={tmp_path}/file", f"of={tmp_path}/copy", "bs=16"], check=True, stderr=subprocess.DEVNULL)
    counters.append(read_own())
    steps = list(itertools.pairwise(counters))
    assert all(later.written - earlier.written >= 1 << 20 for earlier, later in steps)
    assert all(later.stored - earlier.stored >= 1 << 20 for earlier, later in steps)
    assert [later.first - earlier.first >= 1 << 20 for earlier, later in steps] == [True, False]
    assert counters[1].ended < counters[2].ended


def test_what_a_process_receives_over_tcp_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        link, _ = server.accept()
        with link:
            link.sendall(bytes(1 << 16))
            wait_until(lambda: read_own().received >= 1 << 16 <= read_own().sent)
            assert client.recv(1)


def read_own() -> Counters:
    """Return the counters of this process."""
    stat = read_stat(os.getpid())
    assert stat is not None
    record = read_counters(os.getpid(), stat, list_links([os.getpid()])[os.getpid()])
    return parse_counters(json.loads(json.dumps(record)))


SNAPSHOT = """
import os, resource
from ddlrun.keeper.stacks.snapshot_process import SnapshotProcess
from ddlrun.wire.loop import Loop
if os.geteuid() == 0:
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
SnapshotProcess(os.getpid(), 10, lambda text: print(text.decode())).join(Loop())
"""


def test_a_snapshot_that_cannot_start_is_empty() -> None:
    done = subprocess.run([sys.executable, "-c", SNAPSHOT], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert parse_snapshot(done.stdout) == RankSnapshot((), ())


def test_a_child_that_a_rank_forks_has_the_hook(tmp_path: Path) -> None:
    fork = "import os, sys\nif os.fork(): os.wait(); sys.exit()\n"
    code = f"{fork}def child():\n    print('up', flush=True)\n    {BLOCK}\nchild()"
    with held(tmp_path, code, PYTHONPATH=HOOK) as process:
        (child,) = wait_until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        threads, _ = read_stacks(int(child), 10)
        assert threads[0]["frames"][0][:2] == ("child", "<string>")
        os.kill(int(child), signal.SIGKILL)


# A library in C connects to a socket whose queue is full, with a time limit: the kernel does not restart such a call.
CONNECT = """
import ctypes, socket, struct, sys
server = socket.create_server(("127.0.0.1", 0), backlog=0)
clients = [socket.socket() for _ in range(4)]
for client in clients[:-1]:
    client.setblocking(False)
    client.connect_ex(server.getsockname())
clients[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 600, 0))
host, port = server.getsockname()
address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)
print("up", flush=True)
ctypes.CDLL(None).connect(clients[-1].fileno(), address, len(address))
"""


def test_a_connect_is_not_interrupted(tmp_path: Path) -> None:
    with held(tmp_path, CONNECT, PYTHONPATH=HOOK) as process:
        wait_until(lambda: read_call(process.pid)["call"] == "connect")
        threads, problem = read_stacks(process.pid, 10)
        assert (threads, problem) == ([], UNKNOWN)
        assert probe(process.pid) == (0, [])
        assert read_call(process.pid)["target"].startswith("127.0.0.1:")


# PyTorch connects to the same, and fails after a signal. The master is a socket of the test's.
JOIN = """
import os, torch.distributed as dist
print("up", flush=True)
dist.init_process_group("gloo", rank=1, world_size=2)
"""


@pytest.mark.extra
def test_the_stacks_of_a_rank_that_joins_its_group(tmp_path: Path) -> None:
    needs.package("torch")
    with socket.create_server(("127.0.0.1", 0), backlog=0) as master:
        clients = [socket.socket() for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(master.getsockname())
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master.getsockname()[1]), "DDLRUN_TOPOLOGY": "2"}
        with held(tmp_path, JOIN, PYTHONPATH=f"{HOOK}:{':'.join(sys.path)}", **place) as process:
            wait_until(lambda: read_call(process.pid)["call"] == "poll")
            (shown, *_) = parse_snapshot(take_snapshot(process.pid, 10)).processes
            assert "init_process_group" in [frame.function for frame in shown.threads[0].frames]
            assert read_call(process.pid)["call"] == "poll"
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    "before", ["", f"import signal; signal.signal({STACKS_SIGNAL}, lambda *_: sys.exit('signalled'))"]
)
def test_a_process_without_the_hook_gets_no_signal(tmp_path: Path, before: str) -> None:
    code = f"import sys\n{before}\nprint('up', flush=True); {BLOCK}; sys.exit(7)"
    with held(tmp_path, code) as process:
        assert read_stacks(process.pid, 10) == ([], UNKNOWN)
        process.communicate("")
    assert process.returncode == 7


def test_the_file_of_the_hook_is_not_inherited(tmp_path: Path) -> None:
    code = "import os, sys\nprint('up', flush=True); sys.stdin.read(); os.execvp('ls', ['ls', '/proc/self/fd'])"
    with held(tmp_path, code, PYTHONPATH=HOOK) as process:
        output, _ = process.communicate("")
    assert "200" not in output.split()


@pytest.mark.parametrize("output", [b"", b"{}", b"[1]", b'[{"frames": 3}]', b"null"])
def test_an_output_of_py_spy_that_cannot_be_read(output: bytes) -> None:
    assert parse_dump(output) == []


@pytest.mark.parametrize(
    ("file", "value", "function"),
    [
        ("/lib/horovod/torch/mpi_ops.py", '"loss"', "allreduce of loss"),
        ("/lib/horovod/torch/mpi_ops.py", "None", "allreduce"),
        ("/home/u/train.py", '"loss"', "allreduce"),
    ],
)
def test_operations_of_horovod_have_names(file: str, value: str, function: str) -> None:
    values = [{"name": "tensor", "repr": "<Tensor>"}, {"name": "name", "repr": value}]
    frame = {"name": "allreduce", "filename": file, "line": 254, "locals": values}
    threads = [{"os_thread_id": 7, "thread_name": None, "active": False, "frames": [frame]}]
    assert parse_dump(json.dumps(threads).encode())[0]["frames"] == [(function, file, 254)]


# Rank 1 is a fork of rank 0, so that torch is imported once. It waits for the end of the test's pipe.
ALL_REDUCE = """
import os, sys, torch, torch.distributed as dist
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=2)
dist.all_reduce(torch.ones(4))
if rank == 1:
    sys.stdin.read()
    os._exit(0)
print("up", flush=True)
dist.all_reduce(torch.ones(2, 3))
"""


# The records of gloo in the place of those of NCCL.
AS_NCCL = """
import torch._C._distributed_c10d as c10d
c10d._dump_nccl_trace_json, c10d._dump_fr_trace_json = c10d._dump_fr_trace_json, lambda: b'{"version": "2.10"}'
"""


@pytest.mark.extra
@pytest.mark.parametrize("setup", ["", AS_NCCL], ids=["gloo", "nccl"])
def test_the_collective_of_a_rank_comes_from_torch(setup: str, tmp_path: Path) -> None:
    needs.package("torch")
    code = setup + ALL_REDUCE.format(folder=tmp_path)
    with held(tmp_path, code, PYTHONPATH=f"{HOOK}:{':'.join(sys.path)}", DDLRUN_TOPOLOGY="2") as process:
        wait_until(lambda: read_recorder([process.pid], 10)[1]["operations"])
        snapshot = parse_snapshot(take_snapshot(process.pid, 10))
        operation = RecordedOperation(2, "all_reduce", "Float[2, 3]", "gloo", ProcessGroup("0", "default_pg"))
        assert (snapshot.ended, snapshot.operations) == (1, (operation,))
        assert (snapshot.started, snapshot.knows_groups) == ({"0": StartedGroup(2, "default_pg")}, True)
        assert snapshot.recent == (RecentOperation("0", 1, "all_reduce"), RecentOperation("0", 2, "all_reduce"))
        assert not any("flight_recorder" in str(stack) for stack in snapshot.processes[0].threads)
        process.send_signal(signal.SIGSTOP)
        assert parse_snapshot(take_snapshot(process.pid, 10)).operations == ()


RECV = """
import os, sys, torch, torch.distributed as dist
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=2)
group = dist.new_group([0, 1], group_desc="pp")
if rank == 1:
    dist.recv(torch.ones(4), 0, group=group)
    sys.stdin.read()
    os._exit(0)
dist.isend(torch.ones(4), group=group, dst=1).wait()
print("up", flush=True)
dist.recv(torch.ones(4), {source}, group=group, tag=5)
"""


@pytest.mark.extra
@pytest.mark.parametrize(("source", "peer"), [("1", 1), ("group_src=1", 1), ("None", None)])
def test_the_recv_of_a_rank_comes_from_its_stack(source: str, peer: int | None, tmp_path: Path) -> None:
    """gloo records no point-to-point operations."""
    needs.package("torch")
    code = RECV.format(folder=tmp_path, source=source)
    with held(tmp_path, code, PYTHONPATH=f"{HOOK}:{':'.join(sys.path)}", DDLRUN_TOPOLOGY="2") as process:
        wait_until(
            lambda: parse_snapshot(take_snapshot(process.pid, 10)).processes[0].threads[0].frames[0].function == "recv"
        )
        group = ProcessGroup("1", "pp", (0, 1))
        operations = (RecordedOperation(0, "recv", "", "gloo", group, peer, 5),) if peer else ()
        recent = RecentOperation("1", 1, "send", 1), RecentOperation("1", 1, "recv", ANY if peer is None else peer)
        wait_until(lambda: parse_snapshot(take_snapshot(process.pid, 10)).operations == operations)
        assert parse_snapshot(take_snapshot(process.pid, 10)).recent == recent


RECORDS_OF_OTHERS = [b"", b"[]", b"{", b"[1]", b'[{"entries": [{}]}]', b'[{"entries": [{"process_group": 1}]}]']


@pytest.mark.parametrize("text", RECORDS_OF_OTHERS)
def test_records_of_another_torch_are_ignored(text: bytes) -> None:
    nothing = {"ended": 0, "started": {}, "knows_groups": False, "recent": [], "operations": []}
    assert parse_recorder(text) == (nothing, [])
