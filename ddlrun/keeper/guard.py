"""The guard of a rank: the process between its keeper and its program.

The guard is the parent of the program, and a subreaper (prctl(2)): whatever the program leaves behind becomes its
child, even in another session and without the environment of the run. It reports the end of the program to the
keeper, and ends once it has no child. If the keeper is killed, it kills all its descendants. Then the guard of local
rank 0 sees to the end of the process manager's daemon on its host.

If the guard itself is killed, the kernel kills the program, and the keeper adopts what is left.
"""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os
import time

from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.daemon import open_daemon, watch_daemon
from ddlrun.keeper.escalation import Escalation
from ddlrun.keeper.forks import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, PR_SET_PTRACER, close_files
from ddlrun.keeper.leftovers import remove_leftovers
from ddlrun.keeper.processes import has_children
from ddlrun.keeper.signals import SignalQueue
from ddlrun.wire.loop import READ, Loop, reap_children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ddlrun.keeper.settings import KeeperSettings

LONGEST_REPORT = 256


def fork_program(
    prctl: Callable[[int, int], object], settings: KeeperSettings
) -> tuple[int, int, _socket.socket | None]:
    """Fork a guard, and from it the process that will be the program; both have the signals blocked that are now.

    Returns the guard, the program (0: this process is the program) and the socket to which the guard reports the
    program's end. Raises OSError where the user may have no further process.
    """
    keeper = os.getpid()
    link, guards_link = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    guard = os.fork()
    if guard:
        guards_link.close()
        program = int(link.recv(LONGEST_REPORT) or 0)
        if program < 0:
            raise OSError(-program, os.strerror(-program))
        link.setblocking(False)  # it stays open: its end means to the guard that the keeper ended
        return guard, program, link
    os.setpgid(0, 0)  # MPI_Abort makes mpirun kill the group of the keeper
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    own_pid = os.getpid()
    try:
        program = os.fork()
    except OSError as error:
        guards_link.send(b"-%d" % (error.errno or 1))
        os._exit(1)
    if program:
        _stay(program, guards_link, settings)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_PTRACER, keeper)  # with ptrace_scope 1, its descendants may then read the stacks of the program
    if os.getppid() != own_pid:
        os._exit(1)
    return 0, 0, None


def _stay(program: int, link: _socket.socket, settings: KeeperSettings) -> NoReturn:
    """Run until no child is left, or until the keeper is gone, and exit."""
    try:
        link.send(b"%d" % program)
        close_files(link.fileno())
        loop = Loop()
        signals = SignalQueue(loop)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        daemon = open_daemon(settings.parent) if settings.local_rank == 0 else None
        if _outlives_keeper(program, link, loop, signals):
            loop.forget(link.fileno())
            _clear(settings, loop, signals)  # a runtime that is killed leaves its container behind
            remove_leftovers()
            _clear(settings, loop, signals)
            # ddlrun ends the job when a keeper was killed: after the grace no other keeper needs the daemon.
            watch_daemon(daemon, None, over_at=time.monotonic() + settings.grace)
    finally:
        os._exit(0)


def _outlives_keeper(program: int, link: _socket.socket, loop: Loop, signals: SignalQueue) -> bool:
    """Reap children until none is left, and return False; return True if the keeper ends before that."""
    keeper_ends: list[int] = []
    loop.watch(link.fileno(), READ, keeper_ends.append)
    while _report_end(program, link):
        loop.wait()
        signals.take()  # orders to end are for the keeper
        if keeper_ends:
            return True
    return False


def _report_end(program: int, link: _socket.socket) -> bool:
    """Reap every child that has ended, and report the end of the program; return True if a child is left."""
    for pid, status, usage in reap_children():
        if pid == program:
            try:
                link.send(b"%d %f %d" % (status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss))
            except OSError:  # the keeper was killed
                continue
    return has_children()


def _clear(settings: KeeperSettings, loop: Loop, signals: SignalQueue) -> None:
    """Remove the container of the program, unless there is none, and kill all descendants."""
    escalation = Escalation()
    escalation.hold(settings.container.remove() if settings.container is not None else 0)
    escalation.kill_by(time.monotonic())
    escalation.join(loop)
    while has_children() and time.monotonic() < escalation.overdue():
        loop.wait(escalation.overdue() - time.monotonic())
        signals.take()
        for _ in reap_children():
            pass
    escalation.leave()
