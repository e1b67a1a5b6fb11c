"""The process manager's session: its start, and the end of the processes of a job on the launcher's host."""

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ddlrun.keeper.proc_files import STOPPED, read_stat

POLL_SECONDS = 0.1
# The interval at which it is checked whether ddlrun was stopped.
CHECK_SECONDS = 1.0
OVER = b"x"
Process = subprocess.Popen[bytes]
TimeoutExpired = subprocess.TimeoutExpired


def start_manager(
    argv: Sequence[str], environ: Mapping[str, str], stdin: int = subprocess.DEVNULL, stdout: int = subprocess.PIPE
) -> Process:
    """Start one, its output in pipes that do not block. Raises OSError if it cannot be started."""
    # A session of its own: a Ctrl-C at the terminal does not reach it, and whatever is left of the job
    # on this host can be found by its session.
    process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
        argv,
        env=environ,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
    return process


def copy_stdin() -> int:
    """Return the read end of a pipe with a copy of our standard input, for one without a path, such as a socket."""
    read, write = os.pipe()
    subprocess.Popen(["cat"], stdout=write, start_new_session=True)  # noqa: S607 - ends with its input, or its reader
    os.close(write)
    return read


@contextmanager
def guard_session(seconds: float, folder: str) -> Iterator[Callable[[int], None]]:
    """Keep a process that ends the process manager's session, and removes its folder, if this process is killed.

    It also ends what is left of a session whose process manager has ended while this process is stopped.
    The keepers end the ranks within their grace then. PR_SET_PDEATHSIG would make the process manager kill the keepers
    at once, and no process would be left to end the ranks' own children.

    Args:
        seconds: The time that the session has after this process was killed.
        folder: The folder of the session's files, which need not exist yet, or ever.

    Yields:
        The function that takes the session, once the process manager was started.
    """
    watched, alive = os.pipe()
    guard = os.fork()
    if guard == 0:
        try:
            session = _outlive_launcher(watched, seconds)
            if session is not None:
                _end_later(session, seconds)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os._exit(0)
    os.close(watched)
    try:
        yield lambda session: _write_session(alive, session)
    finally:
        with suppress(BrokenPipeError):  # the guard itself was killed
            os.write(alive, OVER)
        os.close(alive)
        os.kill(guard, signal.SIGCONT)  # it may have been stopped
        os.waitpid(guard, 0)


def _write_session(alive: int, session: int) -> None:
    with suppress(BrokenPipeError):
        os.write(alive, b"%d" % session)


def _outlive_launcher(watched: int, seconds: float) -> int | None:
    """Wait until the launcher ends; return its session, 0 if it has started none, None if all is over."""
    launcher = os.getppid()
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(watched, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    session = checks = 0
    while True:
        if select.select([3], [], [], CHECK_SECONDS)[0]:
            message = os.read(3, 32)
            if not message:
                return session
            if message.endswith(OVER):
                return None
            session = int(message)
        checks = checks + 1 if session and _is_left(session, launcher) else 0
        if checks * CHECK_SECONDS > seconds:
            end_session(session)


def _is_left(manager: int, launcher: int) -> bool:
    """Return True if a process manager has ended, and the launcher is stopped."""
    ended, stopped = read_stat(manager), read_stat(launcher)
    return (ended is None or ended.exiting) and stopped is not None and stopped.state == STOPPED


def _end_later(session: int, seconds: float) -> None:
    """End a session after some seconds; 0: one that was perhaps just started, whose ranks do not find the launcher."""
    if not session:
        time.sleep(seconds)
        return
    end = time.monotonic() + seconds
    while _members(session) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    end_session(session)


def end_session(session: int) -> None:
    """Kill every process of a session on this host."""
    for pid in _members(session):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _members(session: int) -> list[int]:
    """Return the processes of a session on this host."""
    members = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == session:
                members.append(pid)
    return members
