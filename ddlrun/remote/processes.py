"""The only module that starts processes."""

import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from ddlrun.errors import InputError
from ddlrun.hosts import fold, parse_hosts
from ddlrun.remote.agent import PARTS, AgentLauncher, join_scripts, split_labels

Process = subprocess.Popen[bytes]
TimeoutExpired = subprocess.TimeoutExpired
Result = TypeVar("Result")
# Seconds; the kernel knows no better when a process began.
CLOCK_TICK = 1 / os.sysconf("SC_CLK_TCK")


class FinishedProcess(NamedTuple):
    """A process that ended: its exit code (None: no answer in time) and what it printed."""

    code: int | None
    out: str
    err: str


def begin(argv: Sequence[str], stdin: str = "", timeout: float = 20.0) -> Callable[[], FinishedProcess]:
    """Start a short command on this machine; return what waits for it and says what it said.

    Neither raises for what the command does; `timeout` is in seconds.
    """
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
            argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace"
        )
    except OSError as error:
        failed = FinishedProcess(127, "", str(error))
        return lambda: failed

    def finish() -> FinishedProcess:
        with process:
            try:
                out, err = process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                return FinishedProcess(None, "", "")
        return FinishedProcess(process.returncode, out, err)

    return finish


def run_on_hosts(scripts: Mapping[str, str], way: AgentLauncher, timeout: float) -> dict[str, FinishedProcess]:
    """Run each host's sh script there, all at once, within one deadline in seconds; never asks for a password."""
    return _run_by_srun(scripts, way, timeout) if way.launcher == "srun" else _run_one_by_one(scripts, way, timeout)


def _run_one_by_one(scripts: Mapping[str, str], way: AgentLauncher, timeout: float) -> dict[str, FinishedProcess]:
    """Start ssh, or what the way says, once a host."""
    from ClusterShell.Task import task_self  # noqa: PLC0415 - 40 ms, for jobs over several hosts alone

    task = task_self()
    task.set_info("fanout", 128)
    task.set_info("ssh_options", " ".join(way.words))
    task.set_info("connect_timeout", min(10.0, timeout))
    task.set_default("stderr", True)
    alike: dict[str, list[str]] = {}
    for name, script in scripts.items():
        alike.setdefault(script, []).append(name)
    workers: dict[str, Any] = {}  # ClusterShell has no types
    for script, names in alike.items():
        nodes = _node_set(names)
        if way.launcher == "ssh":
            worker = task.shell("exec sh -s", nodes=nodes, timeout=timeout, stdin=True)
        else:
            # As an argument: Kubernetes' agent passes no standard input on.
            told = script if way.launcher == "agent" else ""
            what = shlex.join([f"exec sh -c {shlex.quote(script)}"]) if told else "sh -s"
            command = f"exec {shlex.join(way.shown)} @host {what}".replace("%", "%%").replace("@host", "%h", 1)
            worker = task.shell(command, nodes=nodes, timeout=timeout, stdin=True, remote=False)
        worker.write(script.encode())
        worker.set_write_eof()
        workers |= dict.fromkeys(names, worker)
    _resume(task)
    codes: dict[str, int] = {}
    for code, nodes in task.iter_retcodes():
        codes.update(dict.fromkeys(nodes, code))
    return {
        name: FinishedProcess(codes.get(name), _text(worker.node_buffer(name)), _text(worker.node_error(name)))
        for name, worker in workers.items()
    }


def _resume(task: Any) -> None:  # noqa: ANN401 - as above
    """Let a task run to its end; a Ctrl-C or TERM leaves no ssh behind."""
    begun = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        task.resume()
    except BaseException as error:  # noqa: BLE001 - another one may be raised
        with suppress(Exception):  # it may come where ClusterShell's own books are open
            task.abort(kill=True)
        _kill_children(begun)  # those that it has not in its books yet
        raise _interrupt(error) from None


def _interrupt(error: BaseException) -> BaseException:
    """Return the Ctrl-C or TERM that made ClusterShell stumble over its own clearing up, else the error itself."""
    one: BaseException | None = error
    while one is not None:
        if not isinstance(one, Exception):
            return one
        one = one.__context__
    return error


def _kill_children(since: float) -> None:
    """Kill what this process started since then (CLOCK_BOOTTIME); mpirun and its guard, where they run, are older."""
    import psutil  # noqa: PLC0415 - 20 ms, where nothing else helps

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError), open(f"/proc/{child.pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])  # psutil's own is up to a second too early
            if ticks * CLOCK_TICK >= since - CLOCK_TICK:
                child.kill()


def _run_by_srun(scripts: Mapping[str, str], way: AgentLauncher, timeout: float) -> dict[str, FinishedProcess]:
    """Start one step over all hosts; a step a host would keep Slurm's controller busy.

    One host that is down fails the whole step: then it is told of that, and the others are asked again.
    """
    end = time.monotonic() + timeout
    answers: dict[str, FinishedProcess] = {}
    while left := {name: script for name, script in scripts.items() if name not in answers}:
        code, out, err = _srun(left, way, end - time.monotonic())
        answers |= {
            name: FinishedProcess(done, said, more) for name, (said, more, done) in split_labels(out, err).items()
        }
        failed = {name: why for name, why in _failed_nodes(err, left).items() if name in left}
        answers |= {name: FinishedProcess(code, "", why) for name, why in failed.items()}
        if not failed or time.monotonic() > end - 1:
            said = "\n".join(line for line in err.splitlines() if line.startswith("srun: "))
            return {name: answers.get(name, FinishedProcess(code if said else None, "", said)) for name in scripts}
    return answers


def _srun(scripts: Mapping[str, str], way: AgentLauncher, timeout: float) -> tuple[int, str, str]:
    count = str(len(scripts))
    argv = [
        "env", *(word for name in PARTS for word in ("-u", name)),
        "srun", *way.words, "--overlap", "--immediate=5", "--label", "--quiet", "--mpi=none", "--cpu-bind=none",
        "--export=ALL", "--kill-on-bad-exit=0", "--wait=0", "--distribution=block", f"--nodelist={fold(scripts)}",
        "--nodes", count, "--ntasks", count, "--ntasks-per-node=1", "sh", "-s",
    ]  # fmt: skip
    try:
        process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return 127, "", f"srun: {error.strerror}"
    try:
        out, err = process.communicate(join_scripts(scripts), max(0.1, timeout))
    except subprocess.TimeoutExpired:
        out, err = _cancel(process)
    except BaseException:
        _cancel(process)
        raise
    return process.returncode, out, err


def _failed_nodes(said: str, names: Iterable[str]) -> dict[str, str]:
    """Return the hosts for which a step could not start, and why: as srun says, or Slurm of those down or lost.

    A host that was down and is up again is idle for Slurm, and a job that goes on has lost it all the same.
    """
    found = dict(re.findall(r"srun: error: Task launch for \S+ failed on node (\S+?): (.*)", said))
    if step := re.search(r"Unable to create step for job (\d+)", said):
        states = begin(["sinfo", "--noheader", "--Node", f"--nodes={fold(names)}", "--format=%N %T"])
        listed = begin(["squeue", "--noheader", f"--jobs={step[1]}", "--format=%A %N"])().out.splitlines()
        own = [words[1] for words in map(str.split, listed) if len(words) == 2 and words[0] == step[1]]
        with suppress(InputError):  # of a list that only Slurm reads nothing is known
            lost = set(names) - set(parse_hosts(own[0]).names) if own else ()
            found |= dict.fromkeys(lost, "it is not in the Slurm job any more")
        said_of = (line.split() for line in states().out.splitlines())
        down = {words[0]: words[1] for words in said_of if len(words) == 2}
        found |= {name: f"Slurm says: {state}" for name, state in down.items() if re.match(r"down|fail|.*\*$", state)}
    return found


def _cancel(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End srun by a TERM, which ends its step; a KILL would leave that."""
    process.terminate()
    try:
        return process.communicate(timeout=3)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def _node_set(names: Sequence[str]) -> object:
    from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415 - see run_on_hosts

    return NodeSet.fromlist(list(names))


def _text(buffer: bytes | None) -> str:
    return bytes(buffer or b"").decode(errors="replace")


def start_mpirun(argv: Sequence[str], environ: Mapping[str, str], *, stdin: bool) -> Process:
    """Start mpirun, its output in pipes that do not block; it gets our standard input where `stdin` is true.

    Raises OSError where it cannot be started.
    """
    # A session of its own: a Ctrl-C at the terminal does not reach it, and whatever is left of the job
    # on this host can be found by its session.
    process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
        argv,
        env=environ,
        stdin=None if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
    return process


class ShownCommand(NamedTuple):
    """A command that prints to our standard output.

    `wait` waits so many seconds at most and returns its exit code, None where it goes on; `end` kills it.
    """

    wait: Callable[[float], int | None]
    end: Callable[[], None]


def show(argv: Sequence[str]) -> ShownCommand | None:
    """Start a command that prints to our standard output; None where it cannot be started."""
    try:
        process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
            argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None

    def wait(seconds: float) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end() -> None:
        process.kill()
        process.wait()

    return ShownCommand(wait, end)


@contextmanager
def guarded(session: int, seconds: float) -> Iterator[None]:
    """End mpirun's session so many seconds after this process was killed, if it has not ended by itself.

    The keepers end the ranks in their grace then. The kernel's own way (PR_SET_PDEATHSIG) would make
    mpirun kill the keepers at once, and nobody would end what the ranks have left behind.
    """
    watch, alive = os.pipe()
    guard = os.fork()
    if guard == 0:
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            signal.set_wakeup_fd(-1)
            quiet = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(quiet, fd)
            os.dup2(watch, 3)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            if not os.read(3, 1):
                _end_later(session, seconds)
        finally:
            os._exit(0)
    os.close(watch)
    try:
        yield
    finally:
        os.write(alive, b"x")
        os.close(alive)
        os.waitpid(guard, 0)


def _end_later(session: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if os.getsid(session) != session:
                return
        except ProcessLookupError:
            return
        time.sleep(0.1)
    end_session(session)


def end_session(session: int) -> None:
    """Kill every process of a session on this host."""
    import psutil  # noqa: PLC0415 - 20 ms that only a broken job pays

    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def copied_stdin() -> int:
    """Return a pipe to read that gets what our standard input gets, which cannot be opened by its path (a socket)."""
    read, write = os.pipe()
    subprocess.Popen(["cat"], stdout=write, start_new_session=True)  # noqa: S607 - ends with its input, or its reader
    os.close(write)
    return read


def read_lines(
    argv: Sequence[str], read: Callable[[Iterator[str]], Result], complain: Callable[[str], None]
) -> tuple[int, Result]:
    """Start a command and hand on what it prints, line by line; return its exit code and what `read` returns.

    Each line of its errors goes to `complain`, in a thread. Whatever ends us ends it: with INT or TERM, and we wait;
    what it says of that nobody hears.
    """
    process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    ended = False

    def hear() -> None:
        try:
            for line in process.stderr or ():
                if not ended:
                    complain(line)
        except (OSError, ValueError):
            if process.stderr is not None:
                process.stderr.close()  # so that it learns that nobody reads it

    errors = threading.Thread(target=hear, daemon=True)
    try:
        errors.start()
        result = read(iter(process.stdout or ()))
        code = process.wait()
    except BaseException as error:
        ended = True
        process.send_signal(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        try:
            process.wait()
        except KeyboardInterrupt:  # at once, then
            process.send_signal(signal.SIGINT)
            process.wait()
        raise
    errors.join(1)  # an ssh that stays may have it open
    return code, result
