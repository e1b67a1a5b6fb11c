"""mpirun's session: the processes of a job that the launcher's host runs, and their end."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

POLL_SECONDS = 0.1


@contextmanager
def guard_session(session: int, seconds: float, folder: str | None) -> Iterator[None]:
    """Keep a process that ends a session, and removes its folder, if this process is killed.

    The keepers end the ranks within their grace then. PR_SET_PDEATHSIG would make mpirun kill the keepers
    at once, and no process would be left to end the ranks' own children.

    Args:
        session: mpirun's session.
        seconds: The time that the session has after this process was killed.
        folder: The folder of the session's files, if it has one of its own.
    """
    watched, alive = os.pipe()
    guard = os.fork()
    if guard == 0:
        try:
            if _outlives_launcher(watched):
                _end_later(session, seconds)
                _remove(folder)
        finally:
            os._exit(0)
    os.close(watched)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # the guard itself was killed
            os.write(alive, b"x")
        os.close(alive)
        os.waitpid(guard, 0)


def _outlives_launcher(watched: int) -> bool:
    """Wait until the other end of a pipe is closed; return False if a byte was written before."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(watched, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    return not os.read(3, 1)


def _remove(folder: str | None) -> None:
    if folder is not None:
        import shutil  # noqa: PLC0415 - after a SIGKILL alone

        shutil.rmtree(folder, ignore_errors=True)


def _end_later(session: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if os.getsid(session) != session:
                return
        except ProcessLookupError:
            return
        time.sleep(POLL_SECONDS)
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
