"""Whatever dies, the job ends with the right exit code and report, and nothing of it is left on any host."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from ddlrun.managers.own import START as OWN_START
from tests.cluster.cluster import Cluster
from tests.conftest import OWN, OWN_MAJOR, OWN_MANAGERS, OWN_MPIS, launch_line
from tests.hosts.fault_results import check_result
from tests.support.waiting import PATIENCE, wait_until

EXTRA = pytest.mark.extra
ONLY_4, ONLY_5 = pytest.mark.openmpi(4), pytest.mark.openmpi(5)
GRACE = 2
RANKS = 4
SCRIPT = """
import ctypes, os, sys, time
how, output, library = sys.argv[1:]
if library == "gloo":
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank, barrier = dist.get_rank(), dist.barrier
else:
    from mpi4py import MPI
    rank, barrier = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.barrier
print("started", flush=True)
if rank == 2:
    while open(output).read().count("started") < 4:  # Open MPI 4.1 may drop what ranks write while the job ends
        time.sleep(0.02)
    if how == "exception":
        raise ValueError("no such thing")
    if how == "text":
        sys.exit("some text")
    if how == "abort":
        MPI.COMM_WORLD.Abort(9)
    if how == "segv":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), 9)
    if how == "unfinished":
        os._exit(0)
    sys.exit(int(how))
barrier()
barrier()
"""
RANK_IN_MPI = Path(__file__).with_name("rank_in_mpi.py")


class Job:
    """A launch over the four hosts that a test may hurt."""

    def __init__(
        self,
        cluster: Cluster,
        mpirun: str,
        folder: Path,
        *words: str,
        options: tuple[str, ...] = (),
        login: str | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        """Start ddlrun on h1, by ssh from another host if one is given, with words before its command line."""
        self.cluster, self.mpirun = cluster, mpirun
        self.output, self.errors = folder / "output", folder / "errors"
        self.before = cluster.processes()
        self._folders_before = session_folders(cluster)
        argv = [*prefix, *launch_line(mpirun, folder, "-H", "h1,h2,h3,h4")]
        argv += ["-np", str(RANKS), "--grace", str(GRACE), *options, *program_of(mpirun, words)]
        launch = cluster.argv("h1", argv, cwd=folder)
        if login is not None:
            launch = cluster.argv(login, ["ssh", "h1", f"cd {folder} && exec {shlex.join(argv)}"])
        with self.output.open("w") as output, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                ["env", "--default-signal=INT,HUP,QUIT", *launch],
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> "Job":  # noqa: PYI034 - typing.Self came with 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.cluster.processes() - self.before:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def started(self, host: str) -> list[int]:
        """Return the keeper and the program of the rank on a host, once they run."""
        return wait_until(
            lambda: next(
                ([pid, *programs_of(pid)[:1]] for pid in pids(self.cluster, host) if programs_of(pid)),
                [],
            ),
            self.show,
        )

    def ddlrun(self) -> int:
        """Return ddlrun's process, not the guard, its child, whose number is smaller where numbers start again."""
        pid = self.process_on_h1(lambda words: words[1:4] == ["-m", "ddlrun", "launch"])
        return parent(pid) if cmdline(parent(pid)) == cmdline(pid) else pid

    def process_on_h1(self, condition: Callable[[list[str]], bool]) -> int:
        """Return the first process on h1 whose command line fulfils a condition, once there is one."""
        return wait_until(lambda: next((pid for pid in pids(self.cluster, "h1") if condition(cmdline(pid))), 0))

    def port(self) -> str:
        """Return the port to which the keepers connect, from the environment of mpirun; empty before its start."""
        for pid in pids(self.cluster, "h1"):
            with suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
                if match := re.search(r"\0DDLRUN_CHANNEL=[^\0]*@[^\0]*?:(\d+)", environment):
                    return match[1]
        return ""

    def wait_for_output(self, text: str, count: int = 1) -> None:
        """Wait until the ranks have printed some text `count` times; fail if ddlrun ends before."""

        def is_printed() -> bool:
            return self.output.read_text().count(text) >= count

        wait_until(lambda: self.process.poll() is not None or is_printed(), self.show)
        assert is_printed(), self.show()

    def show(self) -> str:
        """Return what ddlrun has printed, and the command lines on all hosts."""
        lines = (" ".join([str(pid), *cmdline(pid)]) for pid in sorted(self.cluster.processes()))
        return "\n".join([self.errors.read_text(), *lines])

    def end(self) -> tuple[int, str, str]:
        """Wait for the end, and until nothing is left; return exit code, output, errors."""
        self.process.wait(PATIENCE)
        wait_until(lambda: not left(self.cluster, self.before), lambda: left(self.cluster, self.before))
        errors = self.errors.read_text()
        assert session_folders(self.cluster) <= self._folders_before, errors
        wait_until(lambda: not shared_memory(self.cluster), lambda: (shared_memory(self.cluster), errors))
        check_result(self.process.returncode, errors)
        return self.process.returncode, self.output.read_text(errors="replace"), errors


def need_mpi(mpirun: str) -> None:
    """Skip the test where ranks have no MPI."""
    if mpirun == OWN:
        pytest.skip("no MPI")


def is_process_manager(words: list[str], mpirun: str) -> bool:
    """Return True for the command line of mpirun, or of ddlrun's own process manager."""
    return words[:1] in ([mpirun], [f"{Path(mpirun).parent}/prterun"]) or words[3:4] == [OWN_START]


def program_of(mpirun: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program of the ranks: with an MPI under ddlrun's own process manager, shell scripts run in MPI ranks.

    It notices other faults than Open MPI, whose ranks are not in MPI while a shell script runs.
    """
    if mpirun in OWN_MPIS and words[0] == "sh":
        return (sys.executable, str(RANK_IN_MPI), *words)
    return words


def pids(cluster: Cluster, host: str) -> list[int]:
    return sorted(cluster.processes(host))


def left(cluster: Cluster, before: set[int]) -> list[list[str]]:
    """Return the command lines of what lives on any host and did not before, sshd's own sessions apart."""
    return [words for words in map(cmdline, cluster.processes() - before) if words and not words[0].startswith("sshd")]


def session_folders(cluster: Cluster) -> set[Path]:
    """Return the folders of mpirun and its daemons in the folders for temporary files of all hosts."""
    return {path for host in cluster.hosts for path in (host.folder / "tmp").iterdir() if not is_empty(path)}


def shared_memory(cluster: Cluster) -> list[Path]:
    """Return the files in the shared memory of all hosts."""
    roots = (Path(f"/proc/{cluster.namespaces.pid(host.name)}/root") for host in cluster.hosts)
    return [path for root in roots for path in (root / "dev/shm").iterdir()]


def is_empty(path: Path) -> bool:
    """Return True for a folder without files, such as that of ddlrun for mpirun, or that of all jobs of a user."""
    return path.is_dir() and not any(file.is_file() for file in path.rglob("*"))


def cmdline(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def is_keeper(pid: int) -> bool:
    """Return True for a keeper, for its guard, and for a program that is not yet executed."""
    return runs(pid, "keeper/start.py") or (runs(pid, "agent/start.py") and runs(parent(pid), "agent/start.py"))


def runs(pid: int, script: str) -> bool:
    """Return True for a process that runs a script of ddlrun's; an agent's forks run its script, too."""
    words = cmdline(pid)[:7]
    return any(word.endswith(f"/ddlrun/{script}") for word in words) and "python" in words[0]


def programs_of(pid: int) -> list[int]:
    """Return the program of a keeper, which is a child of its guard; none for another process."""
    if not is_keeper(pid) or is_keeper(parent(pid)):
        return []
    return [program for guard in children(pid) if is_keeper(guard) for program in children(guard)]


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def parent(pid: int) -> int:
    """Return a process's parent, 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


STAY = ("sh", "-c", "setsid sleep 3600 & echo started; sleep 3600")
HIDDEN = ("sh", "-c", "env -i /usr/bin/setsid /bin/sleep 3600 & echo started; sleep 3600")


@pytest.mark.parametrize(
    ("victim", "code", "said"),
    [
        pytest.param("ddlrun", -9, "", marks=[EXTRA, ONLY_5]),
        pytest.param("mpirun", 137, "(mpirun|the process manager) was killed by SIGKILL, which", marks=EXTRA),
        pytest.param(
            "daemon",
            3,
            r"rank 2 on h3 had to end: (mpirun, or its daemon|ddlrun's agent) on that host,? is gone|"
            "host h3 was lost: the connection to its agent ended|mpirun lost host h3, the connection to its daemon",
            marks=EXTRA,
        ),
        pytest.param("keeper", 137, "rank 2 on h3 was killed by another process", marks=[EXTRA, ONLY_5]),
        ("rank", 137, r"failed: rank 2 on h3 \(local rank 0\): killed by SIGKILL \(Killed\)"),
    ],
)
def test_kill_9(cluster: Cluster, mpirun: str, tmp_path: Path, victim: str, code: int, said: str) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY) as job:
        for host in ("h1", "h2", "h4"):
            job.started(host)
        keeper, rank = job.started("h3")
        ours = job.ddlrun()
        mpi = parent(job.started("h1")[0])
        os.kill(
            {"ddlrun": ours, "mpirun": mpi, "daemon": parent(keeper), "keeper": keeper, "rank": rank}[victim],
            signal.SIGKILL,
        )
        ended, _, err = job.end()
    assert ended == code, err
    assert re.search(said, err), err


def keeper_socket(cluster: Cluster, host: str, keeper: int) -> list[str]:
    """Return the row of ss for a keeper's connection: state, bytes to read, bytes to send, own and other address."""
    rows = cluster.run(host, ["ss", "-Htnp"], check=True).stdout.splitlines()
    return next((row.split() for row in rows if f"pid={keeper}," in row), [])


@pytest.mark.extra
@ONLY_5
def test_a_keeper_that_is_killed_before_it_has_read_everything(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    """The kernel resets its connection, as a firewall does."""
    with ExitStack() as stack:  # noqa: SIM117 - sshd starts again after the end of the job
        with Job(cluster, mpirun, tmp_path, *STAY, options=("--heartbeat", "8")) as job:
            job.wait_for_output("started", RANKS)
            keeper, _ = job.started("h3")
            os.kill(keeper, signal.SIGSTOP)
            wait_until(lambda: int(keeper_socket(cluster, "h3", keeper)[1]) > 0, job.show)
            stack.enter_context(cluster.stopped("h3"))
            os.kill(keeper, signal.SIGKILL)
            code, _, err = job.end()
    assert (code, "rank 2 on h3 was killed by another process" in err) == (137, True), err
    assert "could not be searched" not in err, "the link to h3 is open"


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_a_killed_keeper_with_hidden_processes(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    """Neither the environment nor the session of what its program has started is that of the run."""
    with Job(cluster, mpirun, tmp_path, *HIDDEN) as job:
        job.wait_for_output("started", RANKS)
        keeper, _ = job.started("h3")
        os.kill(parent(keeper), signal.SIGSTOP)
        os.kill(keeper, signal.SIGKILL)
        code, _, err = job.end()
    assert (code, "rank 2 on h3 was killed by another process" in err) == (137, True), err


@pytest.mark.extra
@pytest.mark.openmpi(5)
@pytest.mark.own
def test_a_keeper_and_a_guard_that_are_killed_with_hidden_processes(
    cluster: Cluster, mpirun: str, tmp_path: Path
) -> None:
    with Job(cluster, mpirun, tmp_path, *HIDDEN) as job:
        job.wait_for_output("started", RANKS)
        keeper, _ = job.started("h3")
        victims = (keeper, *children(keeper))
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                os.kill(pid, number)
        code, _, err = job.end()
    assert (code, "rank 2 on h3 was killed by another process" in err) == (137, True), err


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_a_blocked_port_of_the_keepers(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        if mpirun in OWN_MANAGERS.values():  # its keepers connect at once
            stack.enter_context(cluster.blocked("h3", "1024-65534"))
        job = stack.enter_context(Job(cluster, mpirun, tmp_path, *STAY, options=("--checks", "none")))
        if mpirun not in OWN_MANAGERS.values():
            stack.enter_context(cluster.blocked("h3", wait_until(job.port, job.show)))
        code, _, err = job.end()
    assert code == 3, err
    assert re.search(r"rank 2 on h3 cannot reach ddlrun: tried 10\.77\.0\.1:\d+ \(timed out\)", err), err


@pytest.mark.extra
def test_a_daemon_that_cannot_call_home(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    options = ("--checks", "none", "--start-timeout", "5")
    with cluster.blocked("h3", "1024-65534"), Job(cluster, mpirun, tmp_path, *STAY, options=options) as job:
        code, _, err = job.end()
    said = "rank 2 on h3 did not start in 5 s" if mpirun in OWN_MANAGERS.values() else "no daemon on h3 has connected"
    assert (code, said in err) == (3, True), err


LEAVE_MPI = """
import os
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
os._exit(0 if MPI.COMM_WORLD.rank else 7)
"""
MPICH = pytest.mark.parametrize("major", [-1], indirect=True, ids=["mpich"])


@pytest.mark.extra
@MPICH
def test_ranks_that_leave_mpi_with_0_leave_no_shared_memory(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(cluster, mpirun, tmp_path, sys.executable, "-c", LEAVE_MPI) as job:
        code, _, err = job.end()
    assert code in (1, 7), err


@pytest.mark.extra
@MPICH
@pytest.mark.parametrize("victims", ["agent and keeper", "agent, keeper and guard"])
def test_shared_memory_whose_agent_and_keeper_are_killed(
    cluster: Cluster, mpirun: str, tmp_path: Path, victims: str
) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY) as job:
        job.wait_for_output("started", RANKS)
        assert len(shared_memory(cluster)) == RANKS
        keeper, _ = job.started("h3")
        for pid in (parent(keeper), keeper, *(children(keeper) if "guard" in victims else ())):
            os.kill(pid, signal.SIGKILL)
        code, _, err = job.end()
    assert code in (3, 137), err


ONLY_OWN = pytest.mark.parametrize("major", [OWN_MAJOR], indirect=True, ids=["without-mpi"])
STARTING = ("--checks", "none", "--start-timeout", "5")


def agent_of(job: Job) -> int:
    """Return the agent of h3, 0 if there is none yet."""
    found = (pid for pid in pids(job.cluster, "h3") if cmdline(pid)[-2:] == [OWN_START, "--agent"])
    return next((pid for pid in found if not is_keeper(pid)), 0)


def stop_agent(job: Job) -> int:
    """Stop the agent of h3 as soon as it exists; return its process."""
    while not (agent := agent_of(job)):  # without a pause, or it has started its keeper
        assert job.process.poll() is None, job.show()
    os.kill(agent, signal.SIGSTOP)
    return agent


@pytest.mark.extra
@ONLY_OWN
def test_an_agent_that_is_stopped_at_its_start(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY, options=STARTING) as job:
        agent = stop_agent(job)
        job.process.wait()
        wait_until(lambda: parent(agent) == 1, job.show)
        cleaned = cluster.run("h1", [sys.executable, "-m", "ddlrun", "clean", "h3"], check=True)
        code, _, err = job.end()
    assert (code, "host h3: no answer in time (5 s)" in err) == (3, True), err
    assert f"h3: process {agent} of " in cleaned.stdout, cleaned  # and what others have left on this machine


@pytest.mark.extra
@ONLY_OWN
def test_a_stopped_agent_of_a_killed_ddlrun_is_cleaned(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(
        cluster,
        mpirun,
        tmp_path,
        *STAY,
        options=(
            "--checks",
            "none",
        ),
    ) as job:
        agent = stop_agent(job)
        os.kill(job.ddlrun(), signal.SIGKILL)
        wait_until(lambda: parent(agent) == 1, job.show)
        ddlrun = [sys.executable, "-m", "ddlrun"]
        lines = (["runs", "-H", "h3"], ["clean", "h3"])
        listed, cleaned = (cluster.run("h1", [*ddlrun, *words], check=True) for words in lines)
        code, _, err = job.end()
    assert code == -9, err
    assert "ended, but left processes on h3: ddlrun clean h3" in listed.stdout
    assert f"h3: process {agent} of " in cleaned.stdout, cleaned  # and what others have left on this machine


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_reset_connections_of_a_host(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY) as job:
        job.wait_for_output("started", RANKS)
        cluster.administer("h3", ["ss", "-K", "-tn"])
        code, _, err = job.end()
    assert code == 3, err


@pytest.mark.extra
@ONLY_5
def test_a_reset_connection(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY) as job:
        job.wait_for_output("started", RANKS)
        keeper, _ = job.started("h3")
        port = keeper_socket(cluster, "h3", keeper)[4].rpartition(":")[2]
        cluster.administer("h3", ["ss", "-K", "-tn", "dport", "=", f":{port}"])
        code, _, err = job.end()
    assert code == 3, err
    assert "the connection of rank 2 on h3 broke (Connection reset by peer): a firewall" in err


@pytest.mark.extra
def test_a_port_that_a_firewall_rejects_while_mpi_runs(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    """Only the keeper notices; ddlrun hears of it as mpirun, or MPI, misses the rank."""
    words = STAY if mpirun == OWN else (sys.executable, str(RANK_IN_MPI), *STAY)
    with Job(cluster, mpirun, tmp_path, *words, options=("--heartbeat", "8")) as job:
        job.wait_for_output("started", RANKS)
        keeper, _ = job.started("h3")
        port = keeper_socket(cluster, "h3", keeper)[4].rpartition(":")[2]
        with cluster.blocked("h3", port):  # ddlrun does not get the reset
            cluster.administer("h3", ["ss", "-K", "-tn", "dport", "=", f":{port}"])
            code, _, err = job.end()
    assert code == 3, err
    assert re.search("failed after .*: (the connection of rank 2 on h3 broke|no sign of life from h3)", err), err


@pytest.mark.extra
@pytest.mark.openmpi(5)  # Open MPI 4.1's daemon kills the keeper that ends it, before that removes its session folder
def test_a_ddlrun_that_is_stopped(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY, options=("--heartbeat", "4")) as job:
        job.wait_for_output("started", RANKS)
        ranks = [job.started(f"h{number}")[1] for number in range(1, RANKS + 1)]
        os.kill(job.ddlrun(), signal.SIGSTOP)
        wait_until(lambda: not any(map(cmdline, ranks)), job.show)
        os.kill(job.ddlrun(), signal.SIGCONT)
        code, _, err = job.end()
    assert code == 3, err
    assert "had to end: no sign of life from ddlrun for 4 s: ddlrun did not run for" in err


@pytest.mark.extra
@ONLY_5
def test_a_guard_that_is_killed(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(cluster, mpirun, tmp_path, "sh", "-c", "echo started; until [ -e go ]; do sleep 0.1; done") as job:
        job.wait_for_output("started", RANKS)
        ddlrun = job.process.pid
        forks = [pid for pid in children(ddlrun) if cmdline(pid) == cmdline(ddlrun)]
        assert len(forks) == 2  # the guard, and the leader of the ssh clients
        for fork in forks:
            os.kill(fork, signal.SIGKILL)
        (tmp_path / "go").touch()
        code, _, err = job.end()
    assert (code, err.count("Traceback")) == (0, 0), err


@pytest.mark.extra
def test_a_daemon_that_hangs_at_the_end(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY) as job:
        job.wait_for_output("started", RANKS)
        keeper, _ = job.started("h3")
        os.kill(parent(keeper), signal.SIGSTOP)
        os.kill(job.ddlrun(), signal.SIGINT)
        code, _, err = job.end()
    assert code == 130, err


@pytest.mark.extra
@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("h1", "(mpirun|the process manager)"),
        (
            "h3",
            r"((orted|(ompi-)?prted|ddlrun-agent) on h3 \(process \d+\)|ddlrun's agent on h3)",
        ),
    ],
)
def test_a_stopped_process_when_all_ranks_end(
    cluster: Cluster, mpirun: str, tmp_path: Path, host: str, said: str
) -> None:
    go = tmp_path / "go"
    words = ("sh", "-c", f"echo started; until test -e {go}; do sleep 0.1; done")
    with Job(cluster, mpirun, tmp_path, *words) as job:
        job.wait_for_output("started", RANKS)
        keeper, _ = job.started(host)
        os.kill(parent(keeper), signal.SIGSTOP)
        go.touch()
        code, _, err = job.end()
    assert code == 0, err
    # With an MPI, ranks wait in MPI_Finalize for a stopped process of ddlrun's own process manager.
    when = "( when the job was over| while the job ran|)" if mpirun in OWN_MPIS else " when the job was over"
    assert re.search(f"^ddlrun: {said} was stopped{when}, and was resumed$", err, re.MULTILINE), err


@pytest.mark.extra
@ONLY_5
@pytest.mark.own
def test_a_daemon_and_what_watches_it_are_stopped(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(
        cluster, mpirun, tmp_path, "/bin/sh", "-c", "echo started; until test -e $(hostname); do sleep 0.1; done"
    ) as job:
        job.wait_for_output("started", RANKS)
        keeper, _ = job.started("h3")
        words = cmdline(keeper)
        os.kill(parent(keeper), signal.SIGSTOP)
        (tmp_path / "h3").touch()

        def watcher() -> int:  # a fork of the keeper in a session of its own
            return next((pid for pid in cluster.processes("h3") if cmdline(pid) == words and is_leader(pid)), 0)

        os.kill(wait_until(watcher, job.show), signal.SIGSTOP)
        for host in ("h1", "h2", "h4"):
            (tmp_path / host).touch()
        code, _, err = job.end()
    assert code == 0, err


def is_leader(pid: int) -> bool:
    """Return True for the leader of a session whose parent has ended."""
    try:
        return os.getsid(pid) == pid and parent(pid) == 1
    except ProcessLookupError:
        return False


@pytest.mark.extra
@pytest.mark.parametrize("major", [5], indirect=True, ids=["openmpi5"])  # the daemon of 4.1 is one process
def test_a_stopped_parent_of_a_daemon(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    words = ("sh", "-c", f"echo started; until test -e {go}; do sleep 0.1; done")
    with Job(cluster, mpirun, tmp_path, *words) as job:
        job.wait_for_output("started", RANKS)
        outer = parent(parent(job.started("h3")[0]))
        assert Path(cmdline(outer)[0]).name == "prted", cmdline(outer)
        os.kill(outer, signal.SIGSTOP)
        go.touch()
        code, _, err = job.end()
    assert code == 0, err
    assert f"ddlrun: prted on h3 (process {outer}) was stopped when the job was over, and was resumed" in err


@pytest.mark.extra
@pytest.mark.parametrize("host", ["h1", "h3"])
def test_a_killed_ddlrun_and_guard_with_a_stopped_process(
    cluster: Cluster, mpirun: str, tmp_path: Path, host: str
) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY) as job:
        job.wait_for_output("started", RANKS)
        keeper, _ = job.started(host)
        os.kill(parent(keeper), signal.SIGSTOP)
        launcher = parent(parent(job.started("h1")[0]))
        guards = [pid for pid in children(launcher) if cmdline(pid) == cmdline(launcher)]
        for pid in (launcher, *guards):
            os.kill(pid, signal.SIGKILL)
        code, _, err = job.end()
    assert (code, len(guards)) == (-9, 2), err  # of the session, and of the links


@pytest.mark.extra
@pytest.mark.parametrize("victim", [pytest.param("client", marks=ONLY_5), pytest.param("server", marks=ONLY_4)])
def test_an_ssh_session_that_dies_while_ranks_are_silent(
    cluster: Cluster, mpirun: str, tmp_path: Path, victim: str
) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY, login="h2") as job:
        job.wait_for_output("started", RANKS)
        server = parent(parent(parent(job.started("h1")[0])))
        assert cmdline(server)[0].startswith("sshd"), job.show()
        os.kill(job.process.pid if victim == "client" else server, signal.SIGKILL)
        code, _, err = job.end()
    assert code == (-9 if victim == "client" else 255), err


@pytest.mark.extra
def test_an_sshd_that_is_killed(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    """The daemon and the keepers have connections of their own, but mpirun takes the host for lost."""
    with ExitStack() as stack:  # noqa: SIM117 - sshd starts again after the end of the job
        with Job(cluster, mpirun, tmp_path, *STAY) as job:
            job.wait_for_output("started", RANKS)
            stack.enter_context(cluster.stopped("h3"))
            for pid in pids(cluster, "h3"):
                if cmdline(pid) and "sshd" in cmdline(pid)[0]:
                    os.kill(pid, signal.SIGKILL)
            code, out, err = job.end()
    assert (code, out.count("started")) == (3, 4), (code, out, err)
    assert "host h3 was lost: the connection to its agent ended" in err, err


@pytest.mark.extra
@pytest.mark.parametrize("chatty", [pytest.param(False, marks=ONLY_5), pytest.param(True, marks=ONLY_4)])
def test_a_cut_network(cluster: Cluster, mpirun: str, tmp_path: Path, *, chatty: bool) -> None:
    words = ("sh", "-c", "echo started; while :; do echo text; sleep 0.1; done") if chatty else STAY
    with Job(cluster, mpirun, tmp_path, *words, options=("--heartbeat", "4")) as job:
        job.wait_for_output("started", RANKS)
        with cluster.cut("h3"):
            code, _, err = job.end()
    assert code == 3, err
    assert "no sign of life from h3 for 4 s: down, or cut off from the network" in err


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_a_host_that_receives_nothing(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY, options=("--heartbeat", "4")) as job:
        job.wait_for_output("started", RANKS)
        with cluster.deaf("h3"):
            code, _, err = job.end()
    assert code == 3, err
    # Its keeper notices first. The packets that TCP repeats decide whether its message or the end of its daemon, which
    # it ends as well, arrives first.
    assert re.search("no sign of life from (h3|ddlrun) for 4 s|(mpirun lost host h3|host h3 was lost)", err), err


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_a_reader_that_stops(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "output")
    shown = tmp_path / "shown"
    reader = subprocess.Popen(["sh", "-c", f"{{ head -c 99; sleep 3; cat; }} <{tmp_path}/output >{shown}"])
    with Job(
        cluster,
        mpirun,
        tmp_path,
        "seq",
        "300000",
        options=(
            "--output",
            "no-tag",
        ),
    ) as job:
        job.output = shown
        reader.wait()
        code, out, err = job.end()
    assert (code, len(out)) == (0, RANKS * sum(len(f"{number}\n") for number in range(1, 300_001))), err


SPAWN = """
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 2:
    MPI.COMM_SELF.Spawn("/bin/true", maxprocs=1)
MPI.COMM_WORLD.barrier()
"""


@pytest.mark.extra
def test_a_spawn_without_slots(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    need_mpi(mpirun)
    (tmp_path / "train.py").write_text(SPAWN)
    with Job(cluster, mpirun, tmp_path, "train.py") as job:
        code, _, err = job.end()
    own = mpirun in OWN_MANAGERS.values()
    text = "does not offer MPI_Comm_spawn" if own else "--spawn-slots N lets the job start N more"
    assert (code, text in err) == (1 if own else 4, True), err


AGENT = """#!/bin/sh
case "$*" in *{host}\\ *)
    touch {folder}/calling; until test -e {folder}/cut; do sleep 0.1; done;;
esac
exec /usr/bin/ssh "$@"
"""


class SlowSsh(NamedTuple):
    """An ssh that starts the daemon or agent of a host only when FOLDER/cut exists."""

    options: tuple[str, ...]
    prefix: tuple[str, ...]


def write_ssh(mpirun: str, folder: Path, host: str) -> SlowSsh:
    """Write an ssh that waits for FOLDER/cut; return the options of ddlrun, and the words before its command line."""
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    own = mpirun in OWN_MANAGERS.values()
    ssh.write_text(AGENT.format(folder=folder, host=host))
    ssh.chmod(0o755)
    if own:
        return SlowSsh((), ("env", f"PATH={folder}/bin:{os.environ['PATH']}"))
    return SlowSsh(("--mpi-args", f"--mca plm_rsh_agent {ssh}"), ())


@pytest.mark.extra
@pytest.mark.openmpi(4)
def test_a_network_that_is_cut_while_mpirun_starts(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    ssh, own = write_ssh(mpirun, tmp_path, "h3"), mpirun in OWN_MANAGERS.values()
    # With ddlrun's own process manager, the link to the host begins with it.
    seconds = "30" if own else "5"
    heartbeat = () if own else ("--heartbeat", "8")  # after some of them an agent ends that is cut off
    options = ("--checks", "none", "--start-timeout", seconds, *heartbeat, *ssh.options)
    with Job(cluster, mpirun, tmp_path, *STAY, options=options, prefix=ssh.prefix) as job:
        wait_until((tmp_path / "calling").exists, job.show)
        with cluster.cut("h3"):
            (tmp_path / "cut").touch()
            code, _, err = job.end()
    assert code == 3, err
    late = f"did not start in {seconds} s (--start-timeout): no daemon on h3 has connected to mpirun"
    assert ("host h3: ssh: connect to host h3 port 22: Connection timed out" if own else late) in err


@pytest.mark.extra
@pytest.mark.openmpi(4)
def test_a_host_that_is_cut_off_before_its_first_keeper(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    """The daemon of h3 has connected to mpirun, which waits for that of h4; TCP keepalive ends it."""
    ssh = write_ssh(mpirun, tmp_path, "h4")
    options = ("--checks", "none", "--heartbeat", "4", *ssh.options)
    established = ["ss", "-Htn", "state", "established", "not", "sport", "=", ":22"]
    own = mpirun in OWN_MANAGERS.values()
    with Job(cluster, mpirun, tmp_path, *STAY, options=options, prefix=ssh.prefix) as job:
        wait_until(lambda: agent_of(job) if own else cluster.run("h3", established).stdout, job.show)
        with cluster.cut("h3"):
            os.kill(job.ddlrun(), signal.SIGINT)
            (tmp_path / "cut").touch()
            code, _, err = job.end()
    assert code == 130, err


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_a_keeper_that_is_killed_after_its_guard(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    """Its program has failed, so that it waits for ddlrun; a stopped daemon has no watcher then."""
    fail = "until test -e go; do sleep 0.1; done; test $OMPI_COMM_WORLD_RANK != 2 || exit 7"
    script = f"trap 'echo told' TERM; echo started; {fail}; until test -e end; do sleep 0.1; done"
    # Not in MPI, where the others would wait in MPI_Finalize for the failed one, until the grace is over.
    with Job(cluster, mpirun, tmp_path, "/bin/sh", "-c", script, options=("--grace", "300")) as job:
        job.wait_for_output("started", RANKS)
        keeper, _ = job.started("h3")
        (tmp_path / "go").touch()
        wait_until(lambda: not children(keeper), job.show)
        job.wait_for_output("told")  # ddlrun knows of the failure
        os.kill(parent(keeper), signal.SIGSTOP)
        os.kill(keeper, signal.SIGKILL)
        (tmp_path / "end").touch()
        code, _, err = job.end()
    assert code == 7, err


@pytest.mark.extra
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        pytest.param("0", 0, "", marks=ONLY_5),
        ("7", 7, "failed: rank 2 on h3 (local rank 0): exit code 7"),
        pytest.param("exception", 1, "ValueError: no such thing", marks=ONLY_5),
        pytest.param("text", 1, "some text", marks=ONLY_5),
        ("abort", 9, "rank 2"),
        pytest.param("segv", 139, "rank 2 on h3 (local rank 0): killed by SIGSEGV (Segmentation fault)", marks=ONLY_5),
        pytest.param("kill", 137, "rank 2 on h3 (local rank 0): killed by SIGKILL (Killed)", marks=ONLY_5),
        ("unfinished", None, "rank 2"),
    ],
)
def test_how_a_rank_ends(cluster: Cluster, mpirun: str, tmp_path: Path, how: str, code: int | None, said: str) -> None:
    if how == "abort":
        need_mpi(mpirun)
    (tmp_path / "train.py").write_text(SCRIPT if how != "0" else "print('started')")
    library = "gloo" if mpirun == OWN else "mpi"
    with Job(cluster, mpirun, tmp_path, "train.py", how, str(tmp_path / "output"), library) as job:
        ended, out, err = job.end()
    assert ended == code if code is not None else ended > 0, err
    report = "".join(line for line in err.splitlines(keepends=True) if line.startswith("ddlrun: "))
    assert said in (report if code != 1 else err), err  # the last lines are not repeated where they are in view
    assert out.count("started") == RANKS
    if code and "failed: rank" in report:
        assert json.loads((tmp_path / "run" / "outcome.json").read_text())["root"]["rank"] == 2
        quoted = ("ddlrun:   last lines", "ddlrun:     ")
        stored = (tmp_path / "run" / "report.txt").read_text().splitlines()
        assert {line for line in stored if not line.startswith(quoted)} <= set(err.splitlines()), err


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("checks", marks=[EXTRA, ONLY_5]),
        *(pytest.param(moment, marks=EXTRA) for moment in ("start", "ending")),
        "run",
    ],
)
def test_ctrl_c(cluster: Cluster, mpirun: str, tmp_path: Path, moment: str) -> None:
    words = ("sh", "-c", "trap 'echo terminated' TERM; echo started; while :; do sleep 3600 & wait; done")
    with ExitStack() as stack:
        if moment == "checks":
            stack.enter_context(cluster.cut("h3"))
        job = stack.enter_context(Job(cluster, mpirun, tmp_path, *words))
        ours = job.ddlrun()
        if moment == "checks":
            job.process_on_h1(lambda words: words[:1] == ["ssh"] and "h3" in words)
        elif moment == "start":
            job.process_on_h1(lambda words: is_process_manager(words, mpirun))
        else:
            job.wait_for_output("started", RANKS)
        os.kill(ours, signal.SIGINT)
        if moment == "ending":
            job.wait_for_output("terminated")
            os.kill(ours, signal.SIGINT)
        code, _, err = job.end()
    assert code in (130, -2), err  # Python dies of SIGINT itself where that has hit an eval(), however it was handled


@pytest.mark.extra
@ONLY_5
def test_a_time_limit(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    with Job(cluster, mpirun, tmp_path, *STAY, options=("--timeout", "2")) as job:
        code, _, err = job.end()
    assert (code, "the time limit of 2 s (--timeout)" in err) == (124, True), err


@pytest.mark.extra
@ONLY_5
def test_a_full_disk(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    cluster.administer("h1", ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)])
    try:
        with Job(cluster, mpirun, tmp_path, "seq", "100000", options=("--run-dir", str(small / "run"))) as job:
            code, out, err = job.end()
    finally:
        cluster.administer("h1", ["umount", str(small)])
    assert (code, len(out.splitlines())) == (0, 400_000), err
    assert "no more output is stored" in err


@pytest.mark.extra
@pytest.mark.parametrize("major", [4], indirect=True)  # no MPI carries it
def test_more_output_from_a_rank_elsewhere_than_memory(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    argv = launch_line(mpirun, cluster.folder, "--quiet", "-H", "h3:1")
    argv += ["sh", "-c", "head -c 400000000 /dev/zero | tr '\\0' x | fold -w 99; echo; echo end"]
    counted = f"{' '.join(map(repr, argv))} | tail -c 5; rm -rf {cluster.folder}/run"
    measured = cluster.run("h1", ["sh", "-c", f"ulimit -v 400000; {counted}"], cwd=tmp_path)
    assert measured.stdout == "\nend\n", measured.stderr


@pytest.mark.extra
@ONLY_5
@pytest.mark.own
def test_restarts_tell_the_script(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    script = f'echo "try $DDLRUN_RESTART" >>{tmp_path}/tries; test $DDLRUN_RESTART = 2 || exit 7'
    with Job(cluster, mpirun, tmp_path, "sh", "-c", script, options=("--restarts", "3")) as job:
        code, _, err = job.end()
    assert (code, sorted({*(tmp_path / "tries").read_text().splitlines()})) == (0, ["try 0", "try 1", "try 2"]), err
    assert (tmp_path / "run" / "restart-2" / "outcome.json").exists()


@pytest.mark.extra
@pytest.mark.own
def test_a_spare_host_takes_the_place_of_a_lost_one(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    script = "echo started; hostname; test $DDLRUN_RESTART != 0 || sleep 3600"
    options = ("-H", "h1,h2", "-np", "2", "--restarts", "1", "--spare-hosts", "h3,h4", "--output", "no-tag")
    with Job(cluster, mpirun, tmp_path, "sh", "-c", script, options=options) as job:
        job.started("h1")
        keeper, _ = job.started("h2")
        os.kill(parent(keeper), signal.SIGKILL)
        code, out, err = job.end()
    assert (code, "h3" in out.split()) == (0, True), err
    assert "h3 takes the place of h2: it was lost" in err


@pytest.mark.extra
@ONLY_5
@pytest.mark.parametrize("options", [("--spare-hosts", "h4"), ("--min-topology", "1x1")])
def test_a_host_that_fails_its_check_is_replaced_or_left_out(
    cluster: Cluster, mpirun: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    more = ("-H", "h1,h2,h3", "-np", "3", "--output", "no-tag", *options)
    with cluster.stopped("h3"), Job(cluster, mpirun, tmp_path, "hostname", options=more) as job:
        code, out, err = job.end()
    assert (code, sorted(out.split())) == (0, ["h1", "h2", "h4"] if "h4" in options else ["h1", "h2"]), err
    assert "Connection refused" in err or "refuses" in err
