"""The report of a failed run: the root cause in words, with a hint if there is one."""

import pytest

from ddlrun.plan.outcome import Outcome, RankEnd
from ddlrun.plan.tracebacks import CHAINS, last_lines
from ddlrun.process_managers.openmpi import improper_end, lost_host
from ddlrun.report.outcome import HINTS, MPI_HINTS, find_hint, render_end, render_others
from ddlrun.supervise.root_cause import ClosedConnection, EndReason, MpirunEnd, explain_by_mpirun, root_of

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'


def end(rank: int, code: int, tail: str = "", *, ordered: bool = False, signal: int | None = None) -> RankEnd:
    return RankEnd(
        rank=rank,
        host=f"h{rank}",
        local_rank=0,
        exit_code=code,
        signal=signal,
        seconds=1.0,
        max_rss_kib=0,
        ordered=ordered,
        reason="",
        tail=tail,
    )


def test_a_rank_that_blames_another_is_not_the_root() -> None:
    lost = end(0, 1, f"{TRACEBACK}RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:1234\n")
    own = end(1, 1, f"{TRACEBACK}ValueError: no\n")
    assert root_of([lost, own]) == own
    assert root_of([lost]) == lost
    assert root_of([end(2, 143, ordered=True), own]) == own
    assert root_of([end(2, 0)]) is None
    assert root_of([end(0, 14), own]) == own
    assert root_of([end(0, 14), end(1, 143, ordered=True)]) == end(0, 14)
    assert root_of([end(0, 14), end(1, 7, ordered=True)]) == end(1, 7, ordered=True)


def test_ends_are_rendered() -> None:
    assert render_end(end(0, 139, signal=11)) == "killed by SIGSEGV (Segmentation fault)"
    assert render_end(end(0, 127)) == "exit code 127 (the program does not exist)"
    assert render_end(end(0, 1, f"{TRACEBACK}ValueError\n")) == "exit code 1 (an uncaught Python exception)"


def test_the_last_traceback_is_shown_whole() -> None:
    noise = "".join(f"line {number}\n" for number in range(100))
    assert last_lines(noise) == [f"line {number}" for number in range(80, 100)]
    assert last_lines(f"{noise}{TRACEBACK}ValueError: x\n") == [*TRACEBACK.splitlines(), "ValueError: x"]
    deep = TRACEBACK + "".join(f"  line {number}\n" for number in range(500)) + "RecursionError\n"
    assert len(last_lines(deep)) == 20
    assert (last_lines(deep)[0], last_lines(deep)[-1]) == (TRACEBACK.splitlines()[0], "RecursionError")
    assert last_lines("") == []
    chain = f"{TRACEBACK}KeyError: 1\n\n{CHAINS[0]}\n\n{TRACEBACK}ValueError: x\n"
    assert last_lines(f"noise\n{TRACEBACK}OSError\nnoise\n{chain}") == chain.splitlines()


@pytest.mark.parametrize(
    ("tail", "hint"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "Python on that host has no module torch"),
        ("./a.out: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such",
         "the library libcudart.so.12 is missing there"),
        ("ImportError: libmpi.so.40: cannot open shared object file: No such file", "library libmpi.so.40 is missing"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "the GPU's memory is full"),
        ("torch.distributed.DistNetworkError: The server socket has failed to bind. EADDRINUSE", "holds the port"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "shared memory is too small"),
        ("RuntimeError: NCCL error in: x.cpp:1, unhandled system error, ncclSystemError: x", "NCCL failed"),
        ("OSError: [Errno 28] No space left on device", "a disk, or shared memory, is full"),
        ("/usr/bin/python3: No module named torchh", "has no module torchh"),
        ("terminate called without an active exception", "PyTorch's gloo: del the model, then destroy_process_group()"),
        ("all is well", None),
    ],
)  # fmt: skip
def test_hints(tail: str, hint: str | None) -> None:
    text = find_hint(tail, HINTS)
    assert text is None if hint is None else hint in str(text)


ABORT = """--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[51403,1],1]
  Errorcode: 5
"""
IMPROPER = """--------------------------------------------------------------------------
prterun has exited due to process rank 1 with PID 318 on node vm exiting
improperly. There are three reasons this could occur:
"""
LOST = """--------------------------------------------------------------------------
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-h1-9@0,0] on node h1
  Remote daemon: [prterun-h1-9@0,1] on node h2
"""


NO_CPU = """While parsing the rankfile, prterun encountered a line that specified
a non-existent CPU:

  Slots: 0:0-4
  Available CPUs: package[0][core:L0-1]
"""
NO_DAEMON = """------------------------------------------------------------
A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable, or the executable was unable to find its
required supporting libraries. In some cases, the daemon was
able to execute, but was unable to complete a TCP connection
back to prterun:

  Local host:    h1
  Remote host:   h2
  Daemon exit status: 255
"""


def test_messages_of_mpirun() -> None:
    assert find_hint(ABORT, MPI_HINTS) == "rank 1 called MPI_Abort with 5"
    assert (find_hint(NO_CPU, MPI_HINTS) or "").startswith("the rank file names cores that a host does not have")
    assert improper_end(IMPROPER) == (1, "vm")
    assert improper_end(ABORT) is None
    assert lost_host(LOST) == ("h2", "the connection to its daemon")
    assert lost_host("Connection to h3 closed by remote host.\r\n") == ("h3", "the ssh session of its daemon")
    assert lost_host("ssh: connect to host h4 port 22: Connection refused\n") == ("h4", "the ssh session of its daemon")
    assert lost_host(NO_DAEMON) == ("h2", "the ssh session of its daemon")
    assert lost_host(NO_DAEMON.replace("255", "127")) is None
    assert lost_host("a rank said: Connection to the database closed by remote host\n") is None


KILLED = """--------------------------------------------------------------------------
mpirun noticed that process rank 2 with PID 29617 on node h3 exited on signal 9 (Killed).
"""
CLOSED = EndReason(137, "rank 2 on h3 was killed by another process", closed=ClosedConnection(2, "rank 2 on h3"))
RESET = CLOSED._replace(exit_code=3, reason="the connection of rank 2 on h3 broke")


@pytest.mark.parametrize(
    ("reason", "mpirun", "code", "text"),
    [
        (CLOSED, MpirunEnd(0, ""), 137, "rank 2 on h3 was killed by another process"),
        (CLOSED, MpirunEnd(1, LOST), 3, "mpirun lost host h2"),
        (CLOSED, MpirunEnd(1, LOST.replace("h2", "127.0.0.1"), host_names=["a", "localhost"]), 3, "mpirun lost host"),
        (CLOSED, MpirunEnd(1, LOST + KILLED), 137, "rank 2 on h3 was killed by another process"),
        (CLOSED, MpirunEnd(-9, ""), 137, "mpirun was killed by SIGKILL"),
        (CLOSED, MpirunEnd(-9, "", ended_by_ddlrun=True), 137, "rank 2 on h3 was killed by another process"),
        (RESET, MpirunEnd(1, KILLED), 137, "rank 2 on h3 was killed by another process"),
        (RESET, MpirunEnd(1, KILLED.replace("rank 2", "rank 1")), 3, "the connection of rank 2 on h3 broke"),
        (EndReason(124, "the time limit"), MpirunEnd(1, LOST), 124, "the time limit"),
    ],
)
def test_mpirun_knows_why_a_connection_closed(reason: EndReason, mpirun: MpirunEnd, code: int, text: str) -> None:
    corrected = explain_by_mpirun(reason, mpirun, {})
    assert (corrected.exit_code, str(corrected.reason).startswith(text)) == (code, True), corrected
    lost = next(iter(mpirun.host_names[1:]), "h2")
    assert corrected.lost_host == (lost if text.startswith("mpirun lost") else None)


def test_later_failures_are_folded() -> None:
    root = end(1, 1, f"{TRACEBACK}ValueError: no\n")
    lost = [end(rank, 1, f"{TRACEBACK}RuntimeError: Connection closed by peer [{rank}]\n") for rank in (0, 2, 3, 4)]
    others = [end(5, 139, signal=11), *(end(rank, 1, f"{TRACEBACK}OSError: {rank}\n") for rank in (6, 7))]
    outcome = Outcome(1, None, 1.0, root=root, ends=(root, *lost, *others))
    assert list(render_others(outcome)) == [
        "  lost their connection to rank 1: ranks 0,2-4 (RuntimeError: Connection closed by peer [0], exit code 1)",
        "  also failed: rank 5 on h5 (killed by SIGSEGV (Segmentation fault))",
        "  also failed: ranks 6-7 (OSError: 6, exit code 1)",
    ]
    many = tuple(end(rank, 10 + rank) for rank in range(2, 9))
    assert list(render_others(Outcome(1, None, 1.0, root=root, ends=(root, *many))))[-2:] == [
        "  also failed: rank 5 on h5 (exit code 15)",
        "  also failed: ranks 6-8",
    ]
