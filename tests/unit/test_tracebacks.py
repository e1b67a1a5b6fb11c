"""Failures in standard error: those of Python, of frameworks and of other programs."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.plan.outcome import RankEnd
from ddlrun.plan.tracebacks import (
    CHAINS,
    ends_in_failure,
    exception_line,
    find_beginning,
    find_failure,
    is_collateral,
    last_lines,
)

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
BAR = "\r 50%|###   | 4/8 [00:04<00:04]"


def prefixed(text: str) -> str:
    """Return a text as PyTorch writes it after init_process_group."""
    return re.sub("^", "[rank12]: ", text, flags=re.MULTILINE)


def failed(tail: str, code: int = 1, *, ended_by: int | None = None, ordered: bool = False) -> RankEnd:
    return RankEnd(
        rank=0, host="h", local_rank=0, exit_code=code, signal=ended_by, seconds=1.0, max_rss_kib=1, ordered=ordered,
        reason="", tail=tail,
    )  # fmt: skip


# What scripts write when they fail, by real interpreters; the last line names the exception.
SCRIPTS = {
    "plain": "def f():\n    raise ValueError('no')\nf()",
    "chained": "try:\n    1 / 0\nexcept OSError.__mro__[1]:\n    raise ValueError('no')",
    "caused": "try:\n    1 / 0\nexcept Exception as error:\n    raise ValueError('no') from error",
    "several lines": "raise ValueError('no\\n  more')",
    "a harmless one after it": "class A:\n    def __del__(self):\n        raise OSError\na = A()\n"
    "raise ValueError('no')",
    "a thread's before it": "import threading as t\ndef f():\n    raise OSError\nx = t.Thread(target=f)\n"
    "x.start()\nx.join()\nraise ValueError('no')",
    "a process pool": "import multiprocessing as m\ndef f(x):\n    raise ValueError('no')\n"
    "if __name__ == '__main__':\n    m.get_context('fork').Pool(1).map(f, [1])",
    "an executor": "from concurrent.futures import ProcessPoolExecutor as P\ndef f():\n    raise ValueError('no')\n"
    "if __name__ == '__main__':\n    P(1).submit(f).result()",
    "rich": "from rich.traceback import install\ninstall(show_locals=True)\nraise ValueError('no')",
    "rich, chained": "from rich.traceback import install\ninstall()\ntry:\n    1 / 0\n"
    "except Exception as error:\n    raise ValueError('no') from error",
    "logged": "import logging, sys\ntry:\n    raise ValueError('no')\nexcept ValueError:\n"
    "    logging.exception('failed')\n    sys.exit(1)",
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_exception_of_a_script_is_found(name: str, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRIPTS[name])
    done = subprocess.run([sys.executable, "s.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    coloured = done.stderr.replace("Traceback", "\x1b[35mTraceback").replace("ValueError", "\x1b[1mValueError\x1b[0m")
    for text in (done.stderr, prefixed(done.stderr), f"{BAR}{done.stderr}", f"{BAR}{prefixed(done.stderr)}", coloured):
        assert exception_line(f"noise\n{text}") == "ValueError: no", text
        assert last_lines(f"noise\n{text}") == last_lines(done.stderr)
        assert find_beginning(f"noise\n{text}".encode()) is not None


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "t.py", line 4, in main
  |     raise me from None
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "t.py", line 2, in a
    | ValueError: no
    +------------------------------------
"""
LOADER = f"""{TRACEBACK}ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "worker.py", line 374, in _worker_loop
ValueError: no

"""
LOGURU = """Traceback (most recent call last):

> File "t.py", line 9, in <module>
    main()
    └ <function main at 0x7f99686d9800>

  File "t.py", line 4, in step
    raise ValueError("no")

ValueError: no
"""
JAX = f"""{TRACEBACK}TypeError: add got incompatible shapes for broadcasting: (3,), (4,).
--------------------
For simplicity, JAX has removed its internal frames from the traceback of the following exception.
"""
SPAWN = f"""{TRACEBACK}torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
{TRACEBACK}ValueError: no
"""
IPYTHON = """ValueError                                Traceback (most recent call last)
Cell In[3], line 2
      1 import t
----> 2 t.step()

File ~/t.py:3, in step()
      2 def step():
----> 3     raise ValueError("no")

ValueError: no
"""
ASCII_BOX = """+--------------------- Traceback (most recent call last) ----------------------+
| /home/me/t.py:5 in <module>                                                  |
+------------------------------------------------------------------------------+
ValueError: no
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GROUP, "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"),
        (LOADER, "ValueError: Caught ValueError in DataLoader worker process 0."),
        (LOGURU, "ValueError: no"),
        (SPAWN, "ValueError: no"),
        (IPYTHON, "ValueError: no"),
        ("Usage: t.py [OPTIONS]\nTry 't.py --help' for help.\n\nError: Missing option '--lr'.\n",
         "Error: Missing option '--lr'."),
        (JAX, "TypeError: add got incompatible shapes for broadcasting: (3,), (4,)."),
        (ASCII_BOX, "ValueError: no"),
        ('  File "t.py", line 2\n    def f(\n         ^\nSyntaxError: \'(\' was never closed\n',
         "SyntaxError: '(' was never closed"),
        ("usage: t.py [-h] --lr LR\nt.py: error: the following arguments are required: --lr\n",
         "t.py: error: the following arguments are required: --lr"),
        ("/usr/bin/python3.13: No module named torchh\n", "/usr/bin/python3.13: No module named torchh"),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n",
         "Fatal Python error: Segmentation fault"),
        ("terminate called after throwing an instance of 'E'\n  what():  no\n", "what():  no"),
        ("terminate called after throwing an instance of 'int'\n",
         "terminate called after throwing an instance of 'int'"),
    ],
)  # fmt: skip
def test_other_failures_are_found(text: str, message: str) -> None:
    for written in (text, prefixed(text)):
        failure = find_failure(f"{BAR}\nnoise\n{written}")
        assert failure is not None
        assert (failure.start, failure.lines, failure.message) == (2, text.rstrip("\n").split("\n"), message)
        assert find_beginning(f"noise\n{written}".encode()) == len("noise\n")


@pytest.mark.parametrize("error", ["ERROR: The function received no value for: lr", "./a.out: invalid option -- 'x'"])
def test_an_error_may_stand_before_the_usage(error: str) -> None:
    for text in (f"{error}\nUsage: t.py LR\n\nFor more:\n  t.py -h\n", f"{error}\nusage: t.py LR\n"):
        assert exception_line(f"noise\n{text}") == error
        assert last_lines(f"noise\n{text}") == text.splitlines()


@pytest.mark.parametrize("time", ["2026-11-27 01:40:36,{:03} - ERROR - ", "Nov 27 01:40:{:02} ", "(T pid=7) "])
def test_a_log_may_stand_before_each_line(time: str) -> None:
    lines = f"{TRACEBACK}ValueError: 7 is no\n".splitlines()
    text = "".join(f"{time.format(at + 8)}{line}\n" for at, line in enumerate(lines))
    failure = find_failure(f"noise\n{text}")
    assert failure is not None
    assert (failure.lines, failure.message) == (lines, "ValueError: 7 is no")


@pytest.mark.parametrize(
    "heading",
    [
        "Process SpawnProcess-3:",
        "Task exception was never retrieved\nfuture: <Task finished name='Task-2' coro=<f() done> exception=OSError()>",
        "Exception ignored in: <function tqdm.__del__ at 0x7f>",
    ],
)
def test_a_later_traceback_of_a_child_or_a_task_is_not_the_cause(heading: str) -> None:
    later = f"{heading}\n{TRACEBACK}BrokenPipeError: [Errno 32] Broken pipe\n"
    for text in (f"{TRACEBACK}ValueError: no\n{later}", prefixed(f"{TRACEBACK}ValueError: no") + f"\n{later}"):
        assert exception_line(text) == "ValueError: no"
        assert not is_collateral(failed(text))
    assert is_collateral(failed(later))


@pytest.mark.parametrize("crash", ["terminate called without an active exception", "Fatal Python error: Aborted"])
def test_a_crash_after_a_traceback_is_not_the_cause(crash: str) -> None:
    failure = find_failure(f"noise\n{prefixed(f'{TRACEBACK}ValueError: no')}\n{crash}\n")
    assert failure is not None
    assert (failure.message, failure.lines[-1]) == ("ValueError: no", crash)


def test_text_without_a_failure() -> None:
    for text in ("", "epoch 1\n50%\r60%\n", '{"at": "Traceback (most recent call last): a"}\n', "see File x, line 3\n"):
        assert find_failure(text) is None
        assert find_beginning(text.encode()) is None
    assert last_lines("epoch 1\n50%\r60%\n") == ["epoch 1", "60%"]


def test_long_failures_are_shortened() -> None:
    noise = "".join(f"line {number}\n" for number in range(100))
    assert last_lines(noise) == [f"line {number}" for number in range(80, 100)]
    deep = TRACEBACK + "".join(f"  line {number}\n" for number in range(500)) + "RecursionError\n"
    assert len(last_lines(deep)) == 20
    assert (last_lines(deep)[0], last_lines(deep)[-1]) == (TRACEBACK.splitlines()[0], "RecursionError")
    chain = f"{TRACEBACK}KeyError: 1\n\n{CHAINS[0]}\n\n{TRACEBACK}ValueError: x\n"
    assert last_lines(f"noise\n{TRACEBACK}OSError\nnoise\n{chain}") == chain.splitlines()
    wide = last_lines(f"{TRACEBACK}ValueError: {'0.1, ' * 1000}\n")[-1]
    assert (wide[:16], wide[-3:], len(wide)) == ("ValueError: 0.1,", "...", 2003)


def test_a_failure_at_the_end_has_few_lines_after_it() -> None:
    noise = "epoch\n" * 99
    assert ends_in_failure(f"{noise}{TRACEBACK}ValueError: no\nbye\n")
    assert not ends_in_failure(f"{TRACEBACK}ValueError: no\n{noise}")
    assert not ends_in_failure(noise)


BLAMES = """
RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711. This is typically caused
RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete
RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 1800000 ms
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited or there was a
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server
torch.distributed.DistBackendError: [1] is setting up NCCL communicator: Broken pipe
ddlrun.ddl.torch.backend.errors.GroupError: default group (2 ranks), rank 0: rank 1 is lost: it has ended
ddlrun.ddl.errors.LostRankError: 4 ranks: Connection timed out
jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: timed out [type.googleapis.com/tensorflow.CoordinationServiceError='']
horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of
tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: Error reported from /job:worker
mpi4py.MPI.Exception: MPI_ERR_PROC_ABORTED: operation failed because a remote peer has aborted
MPIDI_OFI_handle_cq_error(788): Communication error with rank 1: Input/output error
RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error
RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:119] Application timeout caused pair closure
torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d
ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.
JAX distributed service detected fatal errors. This most likely indicates that another task died; see the other task
[h2:9:0:9] ucp_ep.c:1527 Connection reset by remote peer
torch.distributed.DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//cpu//0/0
"""


@pytest.mark.parametrize("error", BLAMES.strip().splitlines())
def test_errors_that_blame_another_rank(error: str) -> None:
    for text in (f"{TRACEBACK}{error}\n", prefixed(f"{TRACEBACK}{error}\n")):
        assert is_collateral(failed(text))
        # The same words before a rank's own failure, or in a warning after it, say nothing about its cause.
        assert not is_collateral(failed(f"{text}{TRACEBACK}ValueError: no\n"))
    store = (
        "[rank0]:[W1126 22:13:18.5 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl: Connection reset by peer\n"
    )
    assert not is_collateral(failed(f"{TRACEBACK}ValueError: no\n{store}"))


def test_old_errors_of_connections_are_not_the_end_of_a_rank() -> None:
    """A logger of metrics had lost its server, and went on."""
    retry = "wandb: Network error (ConnectionError: Connection refused), entering retry loop.\n"
    assert is_collateral(failed(retry))
    assert not is_collateral(failed(retry + "epoch\n" * 20 + "config: no such optimizer\n"))
    for tail in (retry, f"{TRACEBACK}{retry}"):
        assert not is_collateral(failed(tail, 137, ended_by=signal.SIGKILL))
        assert is_collateral(failed(tail, 137, ended_by=signal.SIGKILL, ordered=True))
