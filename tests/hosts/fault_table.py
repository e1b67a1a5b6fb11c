"""Faults of four hosts, one per row: what fails, and the exit code and first line that ddlrun answers with."""

import os
import signal
import sys
import time
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from ddlrun.preflight.tcp import HIGHEST, LOWEST, TRIES
from tests.cluster import links
from tests.cluster.cluster import Cluster
from tests.cluster.namespaces import SWITCH
from tests.hosts.test_faults import (
    HIDDEN,
    RANKS,
    Job,
    agent_of,
    children,
    cmdline,
    is_process_manager,
    parent,
    pids,
)

RANK_2 = "echo started; test $OMPI_COMM_WORLD_RANK = 2 || exec sleep 3600; "
GO = "echo started; until test -e go; do sleep 0.1; done"
WAIT = ("sh", "-c", f"setsid sleep 3600 & {GO}")
PYTHON = """
import atexit, os, signal, sys, time
def meet():
    if "DDLRUN_RANK" in os.environ and "MPI4PY_LIBMPI" not in os.environ:  # ddlrun starts ranks without an MPI
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        return lambda: dist.recv(torch.zeros(1))
    from mpi4py import MPI
    return MPI.COMM_WORLD.recv
{first}
print("started", flush=True)
while open(sys.argv[1]).read().count("started") < 4:  # Open MPI 4.1 may drop what ranks write while the job ends
    time.sleep(0.02)
if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
    {on_rank_2}
{on_others}
"""
LARGE = """
import os, sys
for number in range({count}):
    os.environ[f"LARGE_{{number}}"] = "x" * {length}
os.execvp(sys.argv[1], sys.argv[1:])
"""
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SLEEP = "time.sleep(3600)"
# Under ddlrun's own process manager with an MPI, ranks are in MPI when a fault happens.
IN_MPI = 'if "MPI4PY_LIBMPI" in os.environ: meet()'
NO_LINE = "^$"
LISTENING = "0A"


class Scene(NamedTuple):
    """A job that runs, the hosts, and the stack that undoes what a fault does to them."""

    cluster: Cluster
    folder: Path
    job: Job
    stack: ExitStack

    def pids(self, victim: str) -> list[int]:
        """Return the processes of a kind."""
        keeper, rank = self.job.started("h3")
        mpirun = parent(self.job.started("h1")[0])
        ddlrun = self.job.process.pid
        started = [*children(ddlrun), *children(mpirun)]
        clients = [pid for pid in started if "ssh" in "".join(cmdline(pid)[:1]) and "h3" in cmdline(pid)]
        victims = {
            "ddlrun": [ddlrun],
            "ddlrun's guard": [pid for pid in children(ddlrun) if cmdline(pid) == cmdline(ddlrun)],
            "mpirun": [mpirun],
            "daemon": [parent(keeper)],
            "daemon of h2": [parent(self.job.started("h2")[0])],
            "ssh client": clients,
            "keeper": [keeper],
            "guard": children(keeper)[:1],
            "rank": [rank],
        }
        assert victims[victim], self.job.show()
        return victims[victim]

    def all(self, place: int) -> list[int]:
        """Return the keepers (0) or programs (1) of all ranks."""
        return [self.job.started(f"h{number}")[place] for number in range(1, RANKS + 1)]


def unchanged(_cluster: Cluster, _folder: Path) -> AbstractContextManager[object]:
    """Return a context in which nothing is changed."""
    return nullcontext()


class Fault(NamedTuple):
    """A row of the table of faults."""

    name: str
    code: int
    line: str
    """A pattern of the first line."""
    words: tuple[str, ...] = WAIT
    options: tuple[str, ...] = ()
    """FOLDER is the job's folder."""
    prefix: tuple[str, ...] = ()
    """Words before the command line of ddlrun."""
    before: Callable[[Cluster, Path], AbstractContextManager[object]] = unchanged
    after: Callable[[Scene], object] | None = None
    """What happens once all ranks have started."""
    during: Callable[[Scene], object] | None = None
    """What happens from the start of ddlrun on."""
    own: tuple[int, str] | None = None
    """Exit code and pattern under ddlrun's own process manager, where they are others."""
    only_own: bool = False
    """Whether it is a fault of ddlrun's own process manager."""

    def __str__(self) -> str:
        """Return the name, pytest's id of the test."""
        return self.name


# -- programs -------------------------------------------------------------------------------------


def python(on_rank_2: str, on_others: str = SLEEP, *, first: str = IN_MPI) -> tuple[str, ...]:
    """Return a Python program whose rank 2 does something else than the others, once all have started."""
    return (sys.executable, "-c", PYTHON.format(first=first, on_rank_2=on_rank_2, on_others=on_others), "output")


def shell(script: str) -> tuple[str, ...]:
    """Return a program of which rank 2 runs a script, while the others stay."""
    return ("sh", "-c", RANK_2 + script)


def redirected(redirections: str) -> tuple[str, ...]:
    """Return a prefix that redirects the standard streams of ddlrun."""
    return ("sh", "-c", f'exec "$@" {redirections}', "sh")


def limited(limit: str) -> tuple[str, ...]:
    """Return a prefix that sets a limit of the shell's ulimit for ddlrun."""
    return ("sh", "-c", f'ulimit {limit}; exec "$@"', "sh")


def large_environment(count: int, length: int) -> tuple[str, ...]:
    """Return a prefix that adds variables of a length to the environment of ddlrun."""
    return (*limited("-Ss 8192"), sys.executable, "-c", LARGE.format(count=count, length=length))


# -- what fails before the start ------------------------------------------------------------------


def mounted(host: str, *words: str) -> Callable[[Cluster, Path], AbstractContextManager[object]]:
    """Return a context in which something is mounted on a host; the last word is the place, FOLDER the job's folder."""

    @contextmanager
    def mount(cluster: Cluster, folder: Path) -> Iterator[None]:
        places = {"FOLDER": str(folder), "PARENT": str(folder.parent), "TMP": str(cluster.folder / host / "tmp")}
        argv = [places.get(word, word) for word in words]
        cluster.administer(host, ["mount", *argv])
        try:
            yield
        finally:
            cluster.administer(host, ["umount", "--lazy", argv[-1]])

    return mount


def read_only(host: str, place: str) -> Callable[[Cluster, Path], AbstractContextManager[object]]:
    """Return a context in which a folder is read-only on a host."""

    @contextmanager
    def mount(cluster: Cluster, folder: Path) -> Iterator[None]:
        path = {"FOLDER": str(folder / "sub"), "TMP": str(cluster.folder / host / "tmp")}[place]
        Path(path).mkdir(exist_ok=True)
        cluster.administer(host, ["mount", "--bind", path, path])
        cluster.administer(host, ["mount", "-o", "remount,bind,ro", path])
        try:
            yield
        finally:
            cluster.administer(host, ["umount", "--lazy", path])

    return mount


def replaced(file: str, old: str, new: str) -> Callable[[Cluster, Path], AbstractContextManager[object]]:
    """Return a context in which a text is replaced in a file of h1, by its path in the cluster's folder."""

    @contextmanager
    def edit(cluster: Cluster, _folder: Path) -> Iterator[None]:
        path = cluster.folder / "h1" / file
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new))
        try:
            yield
        finally:
            path.write_text(text)

    return edit


@contextmanager
def hanging_sshd(cluster: Cluster, _folder: Path) -> Iterator[None]:
    """Stop the sshd of h3."""
    listener = int((cluster.folder / "h3" / "sshd.pid").read_text())
    os.kill(listener, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(listener, signal.SIGCONT)


# -- what fails while the ranks run ---------------------------------------------------------------


def send(number: signal.Signals, *victims: str, go: bool = False) -> Callable[[Scene], None]:
    """Return a function that sends a signal to processes, and then lets the ranks end if `go`."""

    def act(scene: Scene) -> None:
        for pid in [pid for victim in victims for pid in scene.pids(victim)]:
            os.kill(pid, number)
        if go:
            (scene.folder / "go").touch()

    return act


def act_in_turn(*acts: Callable[[Scene], None]) -> Callable[[Scene], None]:
    """Return a function that calls functions one after the other."""

    def act(scene: Scene) -> None:
        for each in acts:
            each(scene)

    return act


def kill_all(place: int) -> Callable[[Scene], None]:
    """Return a function that kills the keepers (0) or programs (1) of all ranks at once."""

    def act(scene: Scene) -> None:
        for pid in scene.all(place):
            os.kill(pid, signal.SIGKILL)

    return act


def kill_host(scene: Scene) -> None:
    """Kill all processes of the job on h3 at once, also sshd's session.

    The oldest is first. If this test had to pause behind a keeper, ddlrun would report that the keeper was killed.
    """
    job = [psutil.Process(pid) for pid in set(pids(scene.cluster, "h3")) - scene.job.before]
    for process in sorted(job, key=lambda process: (process.create_time(), process.pid)):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def cut(host: str) -> Callable[[Scene], None]:
    """Return a function that cuts a host off until nothing of the job is left."""
    return lambda scene: scene.stack.enter_context(scene.cluster.cut(host))


def blink(scene: Scene) -> None:
    """Cut h3 off for a second, and then let the ranks end."""
    with scene.cluster.cut("h3"):
        time.sleep(1)
    (scene.folder / "go").touch()


def set_link(name: str, link: str, change: str, back: str) -> Callable[[Scene], None]:
    """Return a function that changes a link by ip, and undoes it when nothing of the job is left."""

    def act(scene: Scene) -> None:
        namespaces = scene.cluster.namespaces
        links.ip(namespaces, name, [change.format(link=link)])
        scene.stack.callback(scene.cluster.forget_neighbours)
        scene.stack.callback(links.ip, namespaces, name, [back.format(link=link)])

    return act


def down_and_up(scene: Scene) -> None:
    """Take the interface of h3 down for a second, and then let the ranks end."""
    namespaces = scene.cluster.namespaces
    links.ip(namespaces, "h3", ["link set eth0 down"])
    time.sleep(1)
    links.ip(namespaces, "h3", ["link set eth0 up"])
    (scene.folder / "go").touch()


def stop_sshd(scene: Scene) -> None:
    """End the sshd of h2, h3 and h4, and then let the ranks end."""
    scene.stack.enter_context(scene.cluster.stopped("h2", "h3", "h4"))
    (scene.folder / "go").touch()


def remove_run_folder(scene: Scene) -> None:
    """Remove the run folder, and then let the ranks end."""
    run = scene.folder / "run"
    run.rename(scene.folder / "elsewhere")
    (scene.folder / "go").touch()


# -- what fails on the way to a host ------------------------------------------------------------


def find_link(scene: Scene) -> int:
    """Return the ssh client that leads to h3; 0 if there is none."""
    found = (pid for pid in pids(scene.cluster, "h1") if cmdline(pid)[:1] == ["ssh"] and "h3" in cmdline(pid))
    return next(found, 0)


def always(_scene: Scene) -> bool:
    """Return True."""
    return True


def works(scene: Scene, but: Container[int] = ()) -> bool:
    """Return True while the agent on h3 has a child process, other than some."""
    return any(pid not in but for pid in children(agent_of(scene.job)))


def listens(scene: Scene) -> bool:
    """Return True while h3 takes part in the check of TCP connections."""
    rows = Path(f"/proc/{scene.cluster.namespaces.pid('h3')}/net/tcp").read_text().splitlines()[1:]
    ports = [int(row.split()[1].rpartition(":")[2], 16) for row in rows if row.split()[3] == LISTENING]
    return any(LOWEST <= port <= HIGHEST + TRIES for port in ports)


def starts(scene: Scene) -> bool:
    """Return True once the process manager runs, and what it has started on h3."""
    lines = (cmdline(pid) for pid in pids(scene.cluster, "h1"))
    managers = (line for line in lines if is_process_manager(line, scene.job.mpirun) and "--version" not in line)
    return any(managers) and works(scene)


def exists(pattern: str, host: str = "h1") -> Callable[[Scene], bool]:
    """Return a function that returns True once a host has a file in the job's folder whose name matches a pattern."""
    return lambda scene: any(Path(f"/proc/{scene.cluster.namespaces.pid(host)}/root{scene.folder}").glob(pattern))


@contextmanager
def apart(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Give h3 an own disk for shipped files, of which some are large."""
    (folder / "cache").mkdir(mode=0o700)
    (folder / "large").write_bytes(os.urandom(30 << 20))
    with mounted("h3", "-t", "tmpfs", "-o", "mode=700", "tmpfs", str(folder / "cache"))(cluster, folder):
        yield


def kill(find: Callable[[Scene], int], moment: Callable[[Scene], object]) -> Callable[[Scene], None]:
    """Return a function that kills a process at a moment, which it awaits without a pause, and makes `killed`."""

    def act(scene: Scene) -> None:
        while not (moment(scene) and (pid := find(scene))):
            assert scene.job.process.poll() is None, scene.job.show()
        os.kill(pid, signal.SIGKILL)
        (scene.folder / "killed").touch()

    return act


def kill_in_check(find: Callable[[Scene], int]) -> Callable[[Scene], None]:
    """Return a function that kills a process while h3 cannot connect to other hosts in the check."""

    def act(scene: Scene) -> None:
        with scene.cluster.blocked("h3", f"{LOWEST}-{HIGHEST + TRIES}"):
            kill(find, listens)(scene)

    return act


def break_search(find: Callable[[Scene], int]) -> Callable[[Scene], None]:
    """Return a function that kills the keeper and the guard of h3, and a process while that host is searched."""

    def act(scene: Scene) -> None:
        keeper, _ = scene.job.started("h3")
        victims = (keeper, *children(keeper))
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                os.kill(pid, number)
        before = {keeper, *children(agent_of(scene.job))}
        kill(find, lambda scene: works(scene, before))(scene)

    return act


QUICK = ("--heartbeat", "4")
SHIP = ("--quiet", "-H", "h1,h2,h4,h3", "--ship", "code", "--ship-dir", "FOLDER/cache")
ECHO = ("echo", "started")
RESTART = (
    "trap 'touch told; until test -e killed; do sleep 0.02; done; exit' TERM; echo started; "
    "test $DDLRUN_RESTART = 0 || exit 0; "
    "test $OMPI_COMM_WORLD_RANK != 0 || exit 7; while :; do sleep 0.1; done"
)
RESTARTED = ("sh", "-c", RESTART)
LARGE_RESULT = ("/bin/sh", "-c", "head -c 50000000 /dev/zero >result.$OMPI_COMM_WORLD_RANK; echo started")
FETCH = (*SHIP, "--fetch", "result.*")
LOST = "host h3 was lost: the connection to its agent ended|rank 2 on h3 had to end: ddlrun's agent on that host is"
CLIENT, AGENT = (
    ("ssh", find_link),
    ("agent", lambda scene: agent_of(scene.job)),
)
TREE = ("env", "DDLRUN_FAN_OUT=1")
S = signal.Signals
# fmt: off
FAULTS = (
    # signals
    Fault("SIGTERM to ddlrun", 143, "ended by SIGTERM", after=send(S.SIGTERM, "ddlrun")),
    Fault("SIGHUP to ddlrun", 129, "ended by SIGHUP", after=send(S.SIGHUP, "ddlrun")),
    Fault("SIGQUIT to ddlrun", 131, "ended by SIGQUIT", after=send(S.SIGQUIT, "ddlrun")),
    Fault("SIGALRM to ddlrun", 142, "ended by SIGALRM", after=send(S.SIGALRM, "ddlrun")),
    Fault("SIGPIPE to ddlrun", 141, "ended by SIGPIPE", after=send(S.SIGPIPE, "ddlrun")),
    Fault("SIGTSTP to ddlrun, then all ranks exit with 0", 0, NO_LINE, after=send(S.SIGTSTP, "ddlrun", go=True)),
    Fault("SIGKILL to ddlrun and its guard", -9, NO_LINE, after=send(S.SIGKILL, "ddlrun's guard", "ddlrun")),
    Fault(
        "SIGSTOP to ddlrun's guard, then all ranks exit with 0", 0, NO_LINE,
        after=send(S.SIGSTOP, "ddlrun's guard", go=True),
    ),
    Fault(
        "SIGTERM to mpirun", 1, "mpirun exited with 1, perhaps after SIGTERM, SIGINT or",
        after=send(S.SIGTERM, "mpirun"), own=(143, "the process manager ended with 143"),
    ),
    Fault(
        "SIGINT to mpirun", 1, "mpirun exited with 1, perhaps after SIGTERM, SIGINT or",
        after=send(S.SIGINT, "mpirun"), own=(130, "the process manager ended with 130"),
    ),
    Fault(
        "SIGHUP to mpirun", 1, "mpirun exited with 1, perhaps after SIGTERM, SIGINT or",
        after=send(S.SIGHUP, "mpirun"), own=(129, "the process manager ended with 129"),
    ),
    Fault(
        "SIGKILL to the ssh client that leads to a host", 3, "host h3 was lost: the connection to its agent ended",
        after=send(S.SIGKILL, "ssh client"),
    ),
    Fault(
        "SIGTERM to the ssh client that leads to a host", 3, "host h3 was lost: the connection to its agent ended",
        after=send(S.SIGTERM, "ssh client"),
    ),
    Fault("SIGTERM to mpirun's daemon on a host", 3, "h3", after=send(S.SIGTERM, "daemon")),
    Fault("SIGTERM to a keeper", 143, "rank 2 on h3 had to end: its keeper received", after=send(S.SIGTERM, "keeper")),
    Fault(
        "SIGSTOP to a keeper for longer than `--heartbeat`", 3, "h3 .*reachable, but .* processes there do not run",
        options=QUICK, after=send(S.SIGSTOP, "keeper"),
    ),
    Fault(
        "SIGSTOP to a keeper, then SIGKILL to its daemon", 3, "host h3 was lost|rank 2 on h3 had to end",
        after=act_in_turn(send(S.SIGSTOP, "keeper"), send(S.SIGKILL, "daemon")),
    ),
    Fault("SIGKILL to all keepers at once", 137, "rank . on h. was killed by another process", after=kill_all(0)),
    Fault(
        "SIGKILL to a keeper and its guard", 137, "rank 2 on h3 was killed by another process",
        after=send(S.SIGKILL, "guard", "keeper"),
    ),
    Fault(
        "SIGKILL to all processes of the job on a host", 3, "host h3 was lost", after=kill_host,
    ),
    Fault("SIGKILL to the guard of a rank", 137, "rank 2 on h3 .*SIGKILL", after=send(S.SIGKILL, "guard")),
    Fault(
        "SIGSTOP to the guard of a rank, then all ranks exit with 0", 0, NO_LINE,
        after=send(S.SIGSTOP, "guard", go=True),
    ),
    Fault(
        "SIGTERM to a rank", 143, "failed: rank 2 on h3 .*SIGTERM",
        words=("sh", "-c", "echo started; exec sleep 3600"), after=send(S.SIGTERM, "rank"),
    ),
    Fault(
        "SIGSTOP to a rank, `--timeout 3`", 124, "the time limit of 3 s",
        options=("--timeout", "3"), after=send(S.SIGSTOP, "rank"),
    ),
    Fault("SIGKILL to all ranks at once", 137, "failed: rank . on h. .*killed by SIGKILL", after=kill_all(1)),
    # network
    Fault("a host's network is cut for a second, then all ranks exit with 0", 0, NO_LINE, after=blink),
    Fault("the network of ddlrun's host is cut", 3, "no sign of life", options=QUICK, after=cut("h1")),
    Fault(
        "the link between two racks is cut", 3, "no sign of life from h\\[3-4\\]|no sign of life from h3",
        options=QUICK, after=set_link(SWITCH, "up1", "link set {link} down", "link set {link} up"),
    ),
    Fault("the interface of a host is down for a second, then all ranks exit with 0", 0, NO_LINE, after=down_and_up),
    Fault(
        "a host loses its address", 3, "h3",
        options=QUICK, after=set_link("h3", "eth0", "addr flush dev {link}", "addr add 10.77.1.1/16 dev {link}"),
    ),
    Fault("sshd ends on all other hosts, then all ranks exit with 0", 0, NO_LINE, after=stop_sshd),
    # the way to a host
    *(
        Fault(f"{name} killed {moment}", code, line, words, options, during=kill(find, has_come), before=before)
        for moment, code, line, words, options, before, has_come in (
            ("while the links open", 0, NO_LINE, ECHO, (), unchanged, always),
            ("reading facts", 0, NO_LINE, ECHO, (), unchanged, works),
            ("in `--ship`", 0, NO_LINE, ECHO, SHIP, apart, exists("cache/*", "h3")),
            ("starting ranks", 3, LOST, WAIT, (), unchanged, starts),
            ("before a restart", 0, "failed: rank 0 on h1", RESTARTED, ("--restarts", "1"), unchanged, exists("told")),
            ("in `--fetch`", 0, NO_LINE, LARGE_RESULT, FETCH, apart, exists(".ddlrun-fetch-*/*")),
        )
        for name, find in (CLIENT, AGENT)
    ),
    *(
        Fault(
            f"{name} killed in TCP check", 0, NO_LINE,
            words=ECHO, during=kill_in_check(find),
        )
        for name, find in (CLIENT, AGENT)
    ),
    *(
        Fault(
            f"{name} killed in sweep", 137,
            "rank 2 on h3 was killed by another process", words=HIDDEN, after=break_search(find),
        )
        for name, find in (CLIENT, AGENT)
    ),
    # standard streams
    Fault("standard output of ddlrun is closed", 0, NO_LINE, words=("echo", "started"), prefix=redirected(">&-")),
    Fault("standard error of ddlrun is closed", 0, NO_LINE, words=("echo", "started"), prefix=redirected("2>&-")),
    Fault("standard input of ddlrun is closed", 0, NO_LINE, words=("echo", "started"), prefix=redirected("<&-")),
    Fault(
        "standard output of ddlrun is /dev/full", 1, "No space left",
        words=("seq", "9"), prefix=redirected(">/dev/full"),
    ),
    Fault(
        "the reader of the output ends after a line", 141, "",
        words=("seq", "100000"), prefix=("bash", "-c", 'set -o pipefail; "$@" | head -n 1', "sh"),
    ),
    Fault("a rank closes its standard streams", 0, NO_LINE, words=("sh", "-c", "exec <&- >&- 2>&-; sleep 1")),
    Fault(
        "a rank writes 4 MB of binary data without a newline", 0, NO_LINE,
        words=("head", "-c", "4000000", "/dev/urandom"),
    ),
    # disks
    Fault(
        "the run folder is on a read-only disk", 2, "Read-only",
        options=("--run-dir", "sub/run"), before=read_only("h1", "FOLDER"),
    ),
    Fault("the run folder is moved away while ranks run", 0, "", after=remove_run_folder),
    Fault(
        "the folder for temporary files of a host is full", 5, "h3: .* has 4 KiB free",
        before=mounted("h3", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", "TMP"),
    ),
    Fault(
        "the folder for temporary files of a host is read-only", 5, "h3: the folder .* is missing, read-o",
        before=read_only("h3", "TMP"),
    ),
    Fault(
        "the folder for temporary files is read-only, `--checks none`", 213,
        "cannot make its folder .*h3.*TMPDIR|daemon on h3 ended with 213",
        words=("echo", "started"), options=("--checks", "none"), before=read_only("h3", "TMP"), own=(0, NO_LINE),
    ),
    # limits
    Fault(
        "a rank reaches its CPU time limit (`ulimit -t 1`)", 152, "rank 2 on h3 .*SIGXCPU",
        words=shell("ulimit -St 1; while :; do :; done"),
    ),
    Fault(
        "a rank exceeds its file size limit (`ulimit -f 1`)", 153, "rank 2 on h3 .*SIGXFSZ",
        words=shell("ulimit -f 1; exec head -c 100000 /dev/zero >big"),
    ),
    Fault(
        "a rank exceeds its memory limit (`ulimit -v`)", 1, "rank 2 on h3 .*exception",
        words=python("import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); bytes(1 << 31)"),
    ),
    Fault(
        "a rank opens more files than it may (`ulimit -n`)", 1, "rank 2 on h3 .*exception",
        words=python("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); [*map(os.dup, range(9))]"),
    ),
    Fault("ddlrun may open 16 files (`ulimit -n 16`)", 5, "only 16 files may be open", prefix=limited("-n 16")),
    Fault("an environment of 2 MB", 0, NO_LINE, words=("echo", "started"), prefix=large_environment(20, 100_000)),
    Fault(
        "an environment of 15,000 variables, too many for the command line of mpirun", 5, "too long for a program",
        words=("echo", "started"), prefix=large_environment(15_000, 100), own=(0, NO_LINE),
    ),
    Fault("PATH is unset", 0, NO_LINE, words=("/bin/echo", "started"), prefix=("env", "-u", "PATH")),
    # hosts that differ
    Fault(
        "the script is missing on a host", 5, "h3",
        words=(str(EXAMPLES / "digits.py"),), before=mounted("h3", "-t", "tmpfs", "tmpfs", str(EXAMPLES)),
    ),
    Fault(
        "the working folder is missing on a host", 5, "h3",
        words=("echo", "started"), before=mounted("h3", "-t", "tmpfs", "tmpfs", "PARENT"),
    ),
    Fault(
        "Python is another program on a host", 5, "h3",
        words=python("pass", "pass"), before=mounted("h3", "--bind", "/bin/false", os.path.realpath(sys.executable)),
    ),
    Fault(
        "a program is missing on a host", 126, "rank 2 on h3 .*exit code 126",
        words=("/usr/bin/seq", "1"), before=mounted("h3", "--bind", "/etc/hostname", "/usr/bin/seq"),
    ),
    Fault(
        "a name leads to the address of another host", 3, "host h3: its host key is not the one in known_hosts",
        before=replaced("hosts", "10.77.1.1 h3", "10.77.1.2 h3"),
    ),
    Fault("a host is listed twice, by its name and its address", 5, "h3", options=("-H", "h1,h2,h3,10.77.1.1")),
    Fault("a name that no host has", 3, "h3", before=replaced("hosts", "10.77.1.1 h3", "")),
    Fault("no key of a host is known", 3, "h3", before=replaced("ssh/known_hosts", "h3,10.77.1.1 ", "h9 ")),
    Fault("the sshd of a host is stopped", 3, "h3", before=hanging_sshd),
    # programs
    Fault("a rank calls abort()", 134, "rank 2 on h3 .*SIGABRT", words=python("os.abort()")),
    Fault(
        "a rank exits with 7 while others hang in an atexit function", 7, "rank 2 on h3 .*exit code 7",
        words=python("sys.exit(7)", "atexit.register(time.sleep, 3600)"),
    ),
    Fault(
        "a rank calls os._exit(5) in an atexit function", 5, "rank 2 on h3 .*exit code 5",
        words=python("atexit.register(os._exit, 5); sys.exit(0)"),
    ),
    Fault("a rank kills its process group", 137, "rank 2 on h3 .*SIGKILL", words=python("os.killpg(0, 9)")),
    Fault(
        "a rank exits with 7 while others are in MPI_Init", 7, "rank 2 on h3 .*exit code 7",
        words=python("sys.exit(7)", "meet()", first=""),
    ),
    Fault(
        "a rank waits for a message that nobody sends, `--timeout 3`", 124, "the time limit of 3 s",
        words=python("meet()()", "meet(); time.sleep(3600)", first=""),
        options=("--timeout", "3"),
    ),
    Fault("the program does not exist", 127, r"exit code 127 \(the program does not", words=("/no/such/program",)),
    Fault("the program is not executable", 126, r"exit code 126 \(the program cannot be", words=("/etc/hostname",)),
    Fault(
        "background processes that fork twice and ignore TERM, and all ranks exit with 0", 0, NO_LINE,
        words=("sh", "-c", "(trap '' TERM; setsid sh -c 'setsid sleep 3600 & setsid sleep 3600' &) & exit 0"),
    ),
    Fault(
        "a background process of `env -i setsid`, and all ranks exit with 0", 0, NO_LINE,
        words=("sh", "-c", "env -i /usr/bin/setsid /bin/sleep 3600 & exit 0"),
    ),
    # ddlrun's own process manager
    Fault(
        "SIGKILL to the agent in the middle of a tree of agents (`DDLRUN_FAN_OUT=1`)", 3, "h2",
        prefix=TREE, after=send(S.SIGKILL, "daemon of h2"), only_own=True,
    ),
    Fault(
        "SIGTERM to the agent in the middle of the tree", 3, "h2",
        prefix=TREE, after=send(S.SIGTERM, "daemon of h2"), only_own=True,
    ),
    Fault(
        "SIGSTOP to the agent in the middle of the tree, then all ranks exit with 0", 0, NO_LINE,
        prefix=TREE, after=send(S.SIGSTOP, "daemon of h2", go=True), only_own=True,
    ),
    Fault(
        "the network of the host in the middle of the tree is cut", 3, "no sign of life from h2",
        options=QUICK, prefix=TREE, after=cut("h2"), only_own=True,
    ),
    Fault(
        "SIGSTOP to the ssh client that leads to an agent, then all ranks exit with 0", 0, NO_LINE,
        after=send(S.SIGSTOP, "ssh client", go=True), only_own=True,
    ),
    Fault(
        "SIGSTOP to the ssh client that leads to an agent, then SIGINT to ddlrun", 130, "ended by SIGINT",
        after=act_in_turn(send(S.SIGSTOP, "ssh client"), send(S.SIGINT, "ddlrun")), only_own=True,
    ),
)
# fmt: on
