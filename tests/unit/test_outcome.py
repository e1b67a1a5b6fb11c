"""The report of a failed run: the root cause in words, with a hint if there is one."""

import os
from collections.abc import Mapping, Sequence

import pytest

from ddlrun.agent import protocol
from ddlrun.managers.end import EndCode, EndFinding, ManagerEnd, ManagerOutput
from ddlrun.managers.openmpi.end import read_end
from ddlrun.managers.openmpi.hints import MPI_HINTS
from ddlrun.managers.own import own_manager
from ddlrun.plan.outcome import Outcome, RankEnd
from ddlrun.report.hints import HINTS, find_hint
from ddlrun.report.outcome import colour_report, render_end, render_others
from ddlrun.supervise.cause import EndCause, EndReason, Evidence, explain
from ddlrun.supervise.ranks import root_of

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


def mpirun_end(
    exit_code: int,
    text: str,
    *,
    ended_by_ddlrun: bool = False,
    name: str = "mpirun",
    host_names: Sequence[str] = (),
) -> ManagerEnd:
    output = ManagerOutput(exit_code, text, host_names=host_names)
    return ManagerEnd(exit_code, read_end(output), ended_by_ddlrun, name)


def explained(first: EndReason | None, manager: ManagerEnd, ends: Mapping[int, RankEnd] = {}) -> EndReason:
    """Return the cause of an end of the process manager while keepers are connected, or after a first reason."""
    return explain(Evidence(first, manager, ends, running=first is None))


def cause(reason: EndReason) -> tuple[int, str | None]:
    """Return the exit code and the text."""
    return reason.exit_code, reason.text


def findings(text: str, exit_code: int = 1) -> list[tuple[EndCode, str, int, int]]:
    """Return code, host, rank and number of what Open MPI's mpirun has reported, but for OTHER_FAILURE."""
    found = read_end(ManagerOutput(exit_code, text))
    values = ((finding.code, finding.host, finding.rank, finding.number) for finding in found)
    return [value for value in values if value[0] is not EndCode.OTHER_FAILURE]


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
    # Python waits for the processes of a DataLoader after the traceback.
    waiting = end(1, 143, f"[rank1]: {TRACEBACK}ValueError: no\n", ordered=True, signal=15)
    assert root_of([lost, waiting]) == waiting
    assert root_of([lost, end(2, 143, "warning\n", ordered=True), end(3, 143, lost.tail, ordered=True)]) == lost
    caught = end(0, 1, f"{waiting.tail}{lost.tail}")
    assert root_of([caught, waiting]) == caught, "all ranks have caught that"
    assert root_of([waiting]) is None
    # The watchdog of NCCL on the others waited in vain; the texts begin with the same line.
    aborts = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 Rank {}] {}\n"
    timed_out = end(0, 134, aborts.format(0, "Watchdog caught collective operation timeout: WorkNCCL"), signal=6)
    broken = end(1, 143, aborts.format(1, "CUDA error: unspecified launch failure"), ordered=True, signal=15)
    assert root_of([timed_out, broken]) == broken
    unmet = end(0, 1, f"{TRACEBACK}torch.distributed.DistStoreError: Timed out after 4 seconds waiting for clients.\n")
    assert root_of([unmet, waiting]) == waiting


def test_ends_are_rendered() -> None:
    assert render_end(end(0, 139, signal=11)) == "killed by SIGSEGV (Segmentation fault)"
    assert render_end(end(0, 127)) == "exit code 127 (the program does not exist)"
    assert render_end(end(0, 1, f"{TRACEBACK}ValueError\n")) == "exit code 1 (an uncaught Python exception)"


@pytest.mark.parametrize(
    ("tail", "hint"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "python on that host has no module torch"),
        ("./a.out: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such",
         "the library libcudart.so.12 is missing there"),
        ("ImportError: libmpi.so.40: cannot open shared object file: No such file", "library libmpi.so.40 is missing"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "the GPU's memory is full"),
        ("torch.distributed.DistNetworkError: The server socket has failed to bind. EADDRINUSE", "holds the port"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "shared memory is too small"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that", "no usable GPU on that host"),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "no usable GPU on that host"),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "is a build without CUDA"),
        ("AssertionError: Torch not compiled with CUDA enabled", "use the backend gloo on CPUs"),
        ("AcceleratorError: CUDA error: device-side assert triggered", "run again with --env CUDA_LAUNCH_BLOCKING=1"),
        ("NCCL error in: x.cpp:93\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 60",
         "NCCL does not allow two ranks on one GPU"),
        ("RuntimeError: NCCL error in: x.cpp:1, unhandled system error, ncclSystemError: x", "NCCL failed"),
        ("OSError: [Errno 28] No space left on device", "a disk, or shared memory, is full"),
        ('Error: cannot set up namespace using "/usr/bin/newuidmap": exec: "newuidmap": executable file not found',
         "Podman without root needs newuidmap (package uidmap or shadow-utils)"),
        ("/usr/bin/python3: No module named torchh", "has no module torchh"),
        ("ModuleNotFoundError: No module named 'sklearn'", "no sklearn: python -m pip install scikit-learn"),
        ("t.py: error: the following arguments are required: --lr, --local_rank", "read LOCAL_RANK from os.environ"),
        ("RuntimeError: [enforce fail] ifa != nullptr. Unable to find address for: eth9", "GLOO_SOCKET_IFNAME"),
        ("NCCL WARN Bootstrap : no socket interface found", "names no interface of that host"),
        ("No module named 'torch.nn'; 'torch' is not a package", "a file torch.py, perhaps the script itself"),
        ("AttributeError: partially initialized module 'torch' has no attribute 'nn'", "a file torch.py"),
        ("ModuleNotFoundError: No module named 'yamlfit'", "on that host has no module yamlfit: install it there"),
        ("ModuleNotFoundError: No module named 'google.protobuf'", ": python -m pip install protobuf"),
        ("ModuleNotFoundError: No module named 'torch._six'", "torch on that host has no module torch._six: it is of"),
        ("terminate called without an active exception", "(PyTorch): del the model, then destroy_process_group()"),
        ("EOFError: EOF when reading a line", "--stdin-rank N"),
        ("ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi", "for another version of"),
        ("RuntimeError: can't start new thread", "raise ulimit -u"),
        ("RuntimeError: [gloo/x.cc:78] Timed out waiting 6000ms for recv operation to complete", "--stall-timeout"),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1) ran for 600", "--stall-timeout"),
        ("torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /ready", "--stall-timeout"),
        ("RuntimeError: CUDA error: out of memory", "the GPU's memory is full"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublas`", "GPU's memory is full"),
        ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying", "GPU's memory is full"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "is faulty: dmesg"),
        ("CUDA error: no kernel image is available for execution on the device", "is not built for its GPU"),
        ("CUDA error: unspecified launch failure", "CUDA_LAUNCH_BLOCKING=1"),
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
ABORTING = """--------------------------------------------------------------------------
prterun has exited due to process rank 1 with PID 6077 on node h2 calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
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
    assert findings(IMPROPER) == [(EndCode.UNFINISHED_RANK, "vm", 1, 0)]
    assert findings(ABORT) == [(EndCode.ABORT_CALL, "", 1, 5)]
    assert findings(ABORTING) == [(EndCode.ABORTING_RANK, "h2", 1, 0)]
    assert findings(LOST) == [(EndCode.LOST_DAEMON, "h2", -1, 0)]
    assert findings("Connection to h3 closed by remote host.\r\n") == [(EndCode.LOST_HOST, "h3", -1, 0)]
    assert findings("Connection reset by h3 port 22\r\n") == [(EndCode.LOST_HOST, "h3", -1, 0)]
    assert findings("ssh: connect to host h4 port 22: Connection refused\n") == [(EndCode.LOST_HOST, "h4", -1, 0)]
    assert findings("a rank said: Connection to the database closed by remote host\n") == []
    for name in ("[prterun-vm-22958@1,1]", "[[2987,1],1]"):
        exited = f"The first process to do so was:\n\n  Process name: {name}\n  Exit code:    3\n"
        assert findings(exited) == [(EndCode.EXITED_RANK, "", 1, 3)]
    assert findings("A rank is missing its location specification:\n") == [(EndCode.REFUSED_SPAWN, "", -1, 0)]


NO_FOLDER = """A call to mkdir was unable to create the desired directory:

  Directory: /x/ompi.h3.0
  Error:     Read-only file system

Please check to ensure you have adequate permissions to perform
the desired operation.
"""


def test_a_start_that_failed_is_explained() -> None:
    assert cause(explained(None, mpirun_end(213, NO_DAEMON.replace("255", "213")))) == (
        213,
        "mpirun's daemon on h2 ended with 213 before it had reached mpirun; try: ddlrun check h2",
    )
    log = "[h3:9] [[5,0],2] ORTE_ERROR_LOG: Error in file orte/util/session_dir.c at line 107\n"
    for output, host in ((NO_FOLDER + log, "h3"), (NO_FOLDER, os.uname().nodename)):
        place = f"/x/ompi.h3.0 on {host}: Read-only file system"
        text = f"Open MPI cannot make its folder {place}; name another place there: TMPDIR"
        assert cause(explained(None, mpirun_end(213, output))) == (213, text)


STEP_5 = "srun returned non-zero exit status (59648) from launching\nthe per-node daemon.\n"
STEP_4 = "An ORTE daemon has unexpectedly failed after launch and before\ncommunicating back to mpirun.\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [(STEP_5, "srun's step of mpirun's daemons ended"), (STEP_4, "mpirun's daemon ended")],
)
def test_a_step_of_daemons_that_failed_is_named(text: str, what: str) -> None:
    ended = explained(None, mpirun_end(137, text, host_names=("h1", "h2")))
    said = f"{what} before it had reached mpirun; try: ddlrun check"
    assert cause(ended) == (137, said)


def test_daemons_that_could_not_start() -> None:
    assert findings(NO_DAEMON, 0) == [(EndCode.FAILED_START, "h2", -1, 0)]


KILLED = """--------------------------------------------------------------------------
mpirun noticed that process rank 2 with PID 29617 on node h3 exited on signal 9 (Killed).
"""
CLOSED = EndCause.CLOSED_CONNECTION.reason(label="rank 2 on h3", rank=2)
FAILED, TIMED_OUT = EndCause.RANK_FAILED.reason(exit_code=1), EndCause.TIME_LIMIT.reason(seconds=60)
UNCONNECTED = """prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-22958@1,1]
   Exit code:    3
"""
RESET = EndCause.RESET_CONNECTION.reason(label="rank 2 on h3", rank=2, error="Connection reset by peer")


def exited(rank: int, code: int) -> tuple[bytes, bytes]:
    return protocol.EXITED, protocol.ExitedRank(rank=rank, code=code).pack()


def own_end(exit_code: int, *reports: tuple[bytes, bytes]) -> ManagerEnd:
    manager = own_manager("")
    return ManagerEnd(exit_code, manager.read_end(ManagerOutput(exit_code, reports=reports)), name=manager.name)


@pytest.mark.parametrize(
    ("reason", "mpirun", "code", "text"),
    [
        (CLOSED, mpirun_end(0, ""), 137, "rank 2 on h3 was killed by another process"),
        (CLOSED, mpirun_end(1, LOST), 3, "mpirun lost host h2"),
        (
            CLOSED,
            mpirun_end(1, LOST.replace("h2", "127.0.0.1"), host_names=["a", "localhost"]),
            3,
            "mpirun lost host localhost",
        ),
        (CLOSED, mpirun_end(1, LOST + KILLED), 137, "rank 2 on h3 was killed by another process"),
        (CLOSED, mpirun_end(-9, ""), 137, "mpirun was killed by SIGKILL, which ddlrun did not send"),
        (
            CLOSED,
            mpirun_end(1, ""),
            1,
            "mpirun exited with 1, perhaps after SIGTERM, SIGINT or SIGHUP from another process",
        ),
        (CLOSED, mpirun_end(1, "", ended_by_ddlrun=True), 137, "rank 2 on h3 was killed by another process"),
        (CLOSED, mpirun_end(-9, "", ended_by_ddlrun=True), 137, "rank 2 on h3 was killed by another process"),
        (RESET, mpirun_end(1, KILLED), 137, "rank 2 on h3 was killed by another process"),
        (RESET, mpirun_end(1, KILLED.replace("rank 2", "rank 1")), 3, "the connection of rank 2 on h3 broke"),
        (RESET, own_end(137, exited(2, -9)), 137, "rank 2 on h3 was killed by another process"),
        (RESET, own_end(137, exited(1, -9)), 3, "the connection of rank 2 on h3 broke"),
        (CLOSED, mpirun_end(5, ABORT), 5, "rank 1 called MPI_Abort with 5"),
        (CLOSED, mpirun_end(1, ABORT.replace(": 5", ": 256")), 1, "rank 1 called MPI_Abort with 256"),
        (CLOSED, mpirun_end(1, ABORT + KILLED), 137, "rank 2 on h3 was killed by another process"),
        (RESET, mpirun_end(14, ABORTING), 14, "rank 1 on h2 aborted the job"),
        (CLOSED, mpirun_end(14, ABORTING), 137, "rank 2 on h3 was killed by another process"),
        (TIMED_OUT, mpirun_end(1, LOST), 124, "the time limit"),
        (TIMED_OUT, mpirun_end(1, ABORT), 124, "the time limit"),
    ],
)
def test_mpirun_knows_why_a_connection_closed(reason: EndReason, mpirun: ManagerEnd, code: int, text: str) -> None:
    corrected = explained(reason, mpirun)
    assert (corrected.exit_code, str(corrected.text).startswith(text)) == (code, True), corrected
    if not text.startswith("mpirun lost host"):
        assert corrected.lost_host is None
    else:
        assert corrected.lost_host in ("h2", "localhost")


def test_a_rank_whose_keeper_lost_mpirun_does_not_hide_a_lost_host() -> None:
    failed, cut_off = end(0, 1), end(0, 1).replace(reason="mpirun is gone")
    lonely = end(0, 1, "At least one pair of MPI processes are unable to reach each other for\n")
    assert explained(FAILED, mpirun_end(1, LOST), {0: failed}) == FAILED
    assert explained(FAILED, mpirun_end(1, ""), {0: cut_off}) == FAILED
    assert explained(FAILED, mpirun_end(1, LOST), {0: cut_off}).lost_host == "h2"
    assert explained(FAILED, mpirun_end(1, LOST), {0: lonely}).lost_host == "h2"
    killed = "mpirun was killed by SIGKILL, which ddlrun did not send"
    assert explained(FAILED, mpirun_end(-9, ""), {0: cut_off}).text == killed
    assert explained(FAILED, mpirun_end(-9, ""), {0: failed}) == FAILED
    assert explained(FAILED, mpirun_end(-9, "", ended_by_ddlrun=True), {0: cut_off}) == FAILED


def test_a_keeper_on_the_host_of_a_lost_daemon_knows_more() -> None:
    """Its report may arrive after the end of mpirun, and after those of keepers elsewhere."""
    lost = explained(None, mpirun_end(1, LOST))
    assert (lost.cause, lost.lost_host) == (EndCause.LOST_HOST, "h2")
    cut_off = {"h2": end(2, 143).replace(reason="mpirun is gone")}
    known = explain(Evidence(lost, mpirun_end(1, LOST), {}, cut_off=cut_off))
    assert (*cause(known), known.lost_host) == (3, "rank 2 on h2 had to end: mpirun is gone", "h2")
    assert explain(Evidence(lost, mpirun_end(1, LOST), {}, cut_off={"h1": end(1, 143)})) == lost
    elsewhere = EndCause.CUT_OFF.reason(label="rank 0 on h1", why="mpirun is gone")
    assert explain(Evidence(elsewhere, mpirun_end(1, LOST), {}, cut_off=cut_off)) == known
    findings = [EndFinding(EndCode.LOST_HOST, "h2", text="no link"), *mpirun_end(1, LOST).findings]
    assert explain(Evidence(None, ManagerEnd(1, findings), {}, cut_off=cut_off)).text == "no link"


def test_a_rank_that_left_mpi_without_a_word_of_its_keeper_was_cut_off() -> None:
    """A firewall rejects the port of the keepers: the keeper of rank 1 has ended the rank."""
    mpirun, others = mpirun_end(1, IMPROPER), {0: end(0, 143, ordered=True)}
    for reason, ends in ((explained(None, mpirun, others), others), (FAILED, {0: end(0, 14)})):
        lost = explained(reason, mpirun, ends)
        assert (lost.exit_code, str(lost.text).partition(":")[0]) == (3, "the connection of rank 1 on vm broke")
    # It was only late.
    late = explained(explained(None, mpirun), mpirun, {1: end(1, 7)})
    assert (late.exit_code, "rank 1 on vm exited with 7" in str(late.text)) == (1, True)
    seven = EndCause.RANK_FAILED.reason(exit_code=7)
    assert explained(seven, mpirun, {0: end(0, 7)}) == seven


def test_a_signal_to_mpirun_is_known_by_the_ends_of_its_ranks() -> None:
    ordered = {rank: end(rank, 143, ordered=True) for rank in (0, 1)}
    signalled = (1, "mpirun exited with 1, perhaps after SIGTERM, SIGINT or SIGHUP from another process")
    assert cause(explained(None, mpirun_end(1, ""), ordered)) == signalled
    assert cause(explained(None, mpirun_end(1, "WARNING: no such device\n"), ordered | {2: end(2, 0)})) == signalled
    for mpirun, ends in (
        (mpirun_end(1, "[h1:9] ORTE_ERROR_LOG: Not found\n"), ordered),
        (mpirun_end(1, "", ended_by_ddlrun=True), ordered),
        (mpirun_end(1, ""), ordered | {2: end(2, 7)}),
        (mpirun_end(1, ""), {}),
    ):
        assert cause(explained(None, mpirun, ends)) == (1, None)


def test_a_keeper_that_never_connected_is_known_by_its_exit_code() -> None:
    for manager in (mpirun_end(3, UNCONNECTED), own_end(3, exited(1, 3))):
        at = manager._replace(findings=[finding._replace(host="h3") for finding in manager.findings])
        assert cause(explained(None, at)) == (3, "rank 1 on h3 cannot reach ddlrun")
        assert cause(explained(None, at, {1: end(1, 3)})) == (3, None), "a program ended with this code"


def test_ddlruns_own_process_manager_reports_by_messages() -> None:
    reason = "the connection to its agent ended (ssh: exit code 255)"
    lost = explained(None, own_end(3, (protocol.LOST, protocol.LostHost(name="h2", reason=reason).pack())))
    assert (cause(lost), lost.lost_host) == ((3, f"host h2 was lost: {reason}"), "h2")
    (left,) = own_end(1, (protocol.UNFINISHED, b"4")).findings
    assert (left.code, left.rank) == (EndCode.UNFINISHED_RANK, 4)


SLURM = [EndFinding(EndCode.CANCELLED_STEP, text="Slurm has ended the step")]
START = [EndFinding(EndCode.FAILED_START, text="no daemon")]
ENDED = {0: end(0, 0), 1: end(1, 0)}


CASES = [
    (Evidence(None, mpirun_end(0, ""), ENDED), EndCause.SUCCESS, 0),
    (Evidence(None, mpirun_end(0, "", ended_by_ddlrun=True), ENDED), EndCause.SUCCESS, 0),
    (Evidence(None, mpirun_end(-9, ""), ENDED, pause="ddlrun did not run"), EndCause.SUCCESS, 0),
    (Evidence(None, mpirun_end(1, LOST), {}, 2, pause="ddlrun did not run"), EndCause.PAUSE, 3),
    (Evidence(CLOSED, mpirun_end(1, LOST), {}, 2, pause="ddlrun did not run"), EndCause.CLOSED_CONNECTION, 137),
    (Evidence(CLOSED, mpirun_end(137, ABORT + KILLED), {}), EndCause.KILLED_KEEPER, 137),
    (Evidence(CLOSED, mpirun_end(5, ABORT), {}), EndCause.ABORT_CALL, 5),
    (Evidence(CLOSED, ManagerEnd(-9, SLURM), {}), EndCause.CANCELLED_STEP, 137),
    (Evidence(None, mpirun_end(1, LOST + IMPROPER), {}), EndCause.LOST_HOST, 3),
    (Evidence(None, mpirun_end(1, LOST), ENDED, cut_off={"h2": end(1, 143)}), EndCause.LOST_DAEMON, 3),
    (Evidence(None, mpirun_end(3, UNCONNECTED + IMPROPER), {}), EndCause.UNREACHED, 3),
    (Evidence(None, ManagerEnd(7, START + SLURM), {}), EndCause.FAILED_START, 7),
    (Evidence(None, mpirun_end(1, IMPROPER + ABORTING), {}), EndCause.UNHEARD_RANK, 3),
    (Evidence(None, mpirun_end(1, IMPROPER + ABORTING), ENDED), EndCause.UNFINISHED_RANK, 1),
    (Evidence(None, mpirun_end(1, KILLED + ABORTING), ENDED), EndCause.KILLED_RANK, 137),
    (Evidence(None, mpirun_end(14, ABORTING), ENDED), EndCause.ABORTING_RANK, 14),
    (Evidence(None, mpirun_end(0, ""), {0: end(0, 0)}, 1), EndCause.MISSING_ENDS, 1),
    (Evidence(None, mpirun_end(-11, ""), ENDED), EndCause.KILLED_MANAGER, 139),
    (Evidence(None, mpirun_end(1, ""), ENDED), EndCause.SIGNALLED_MANAGER, 1),
    (Evidence(None, mpirun_end(0, ""), {0: end(0, 0)}, 1, running=True), EndCause.EARLY_MANAGER, 1),
    (Evidence(None, mpirun_end(7, ""), ENDED), EndCause.FAILED_MANAGER, 7),
    (Evidence(TIMED_OUT, mpirun_end(1, LOST), {}), EndCause.TIME_LIMIT, 124),
]


@pytest.mark.parametrize(("evidence", "cause", "code"), CASES)
def test_the_first_row_of_the_table_that_the_evidence_meets_is_the_cause(
    evidence: Evidence, cause: EndCause, code: int
) -> None:
    reason = explain(evidence)
    assert (reason.cause, reason.exit_code) == (cause, code)


def test_each_row_of_the_table_of_causes_is_tried_above() -> None:
    assert {case[1] for case in CASES} >= {cause for cause in EndCause if cause.value.find is not None}


@pytest.mark.parametrize("name", ["srun", "the process manager"])
def test_the_process_manager_has_its_own_name(name: str) -> None:
    ordered = {0: end(0, 143, ordered=True), 1: end(1, 143, ordered=True)}
    for mpirun in (
        mpirun_end(1, "", name=name),
        mpirun_end(-9, "", name=name),
    ):
        assert str(explained(None, mpirun, ordered).text).startswith(f"{name} ")


def test_later_failures_are_folded() -> None:
    root, closed = end(1, 1, f"{TRACEBACK}ValueError: no\n"), "[/gloo/pair.cc:553] Connection closed by peer"
    lost = [end(rank, 1, f"{TRACEBACK}RuntimeError: {closed} [{rank}]. Check the logs.\n") for rank in (0, 2, 3, 4)]
    others = [end(5, 139, signal=11), *(end(rank, 1, f"{TRACEBACK}OSError: {rank}\n") for rank in (6, 7))]
    outcome = Outcome(1, None, 1.0, root=root, ends=(root, *lost, *others))
    assert list(render_others(outcome)) == [
        "  lost their connection to rank 1: ranks 0,2-4 (RuntimeError: Connection closed by peer [0])",
        "  also failed: rank 5 on h5 (killed by SIGSEGV (Segmentation fault))",
        "  also failed: ranks 6-7 (OSError: 6, exit code 1)",
    ]
    ordered = end(8, 1, lost[0].tail, ordered=True), end(9, 143, lost[0].tail, ordered=True)
    assert list(render_others(Outcome(1, None, 1.0, root=root, ends=(root, *ordered)))) == [
        "  lost their connection to rank 1: ranks 8-9 (RuntimeError: Connection closed by peer [0])",
    ]
    (line,) = render_others(Outcome(1, None, 1.0, root=lost[0], ends=tuple(lost)))
    assert line.startswith("  also failed: ranks 2-4 "), "none of them is the one that closed the connections"
    long = end(0, 1, f"{TRACEBACK}OSError: {'x' * 300}\n")
    (line,) = render_others(Outcome(1, None, 1.0, root=root, ends=(root, long)))
    assert line == f"  also failed: rank 0 on h0 (OSError: {'x' * 191}..., exit code 1)"
    # Where all have lost a rank that ended well, or one that nothing is known of, none of them is named for it.
    early = Outcome(1, None, 1.0, root=lost[0], ends=(end(1, 0), *lost))
    assert list(render_others(early)) == [
        "  also failed: ranks 2-4 (RuntimeError: Connection closed by peer [2], exit code 1)",
        "  had already ended with exit code 0: rank 1",
    ]
    many = tuple(end(rank, 10 + rank) for rank in range(2, 9))
    assert list(render_others(Outcome(1, None, 1.0, root=root, ends=(root, *many))))[-2:] == [
        "  also failed: rank 5 on h5 (exit code 15)",
        "  also failed: ranks 6-8",
    ]


def test_the_report_of_a_success_has_no_colours() -> None:
    assert colour_report("", many_colours=False) == ""
    assert colour_report("failed\nx\n", many_colours=False) == "\x1b[1;31mfailed\x1b[0m\nx\n"
