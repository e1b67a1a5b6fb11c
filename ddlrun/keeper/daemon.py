"""Process managers and their daemons, which may outlive their job: a process on each host ends them."""

from __future__ import annotations

import os
import time

from ddlrun.keeper import protocol, record
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import close_files
from ddlrun.keeper.proc_files import STOPPED, StopDetector, read_stat
from ddlrun.keeper.processes import LAUNCHERS, list_processes, plain_name, send_signal
from ddlrun.keeper.signals import ENDING
from ddlrun.keeper.task import Task
from ddlrun.wire.loop import NEVER, READ, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import NoReturn

    from ddlrun.keeper.connection import LauncherConnection
    from ddlrun.keeper.settings import KeeperSettings

# The names of mpirun where ddlrun does not run, and of ddlrun's own agents there.
AGENT = "ddlrun-agent"
DAEMONS = frozenset(("orted", "prted", AGENT))
# The names of session folders, up to the first dot: of mpirun and its daemons. Open MPI 4 puts those of all jobs of a
# user into another one.
SESSION_FOLDERS = ("pid", "jf", "ompi", "prted")
USER_FOLDER = "ompi"
INTERVAL = 1.0
LONGEST_WAIT = 60.0
# Once the job is over, a stopped daemon is resumed after the first time, and any daemon is killed after the second.
RESUME_SECONDS = 2.0
KILL_SECONDS = 8.0
# The last message is waited for no longer than this.
FAREWELL_SECONDS = 5.0


def end_daemon(pid: int) -> None:
    """End the parent of this process if it is a manager's daemon, which may miss a cut network for minutes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        stat = read_stat(pid)
        if os.getppid() != pid or stat is None or plain_name(stat.name) not in LAUNCHERS:
            return
        os.kill(pid, number)
        time.sleep(1)


def remove_session_folder() -> None:
    """Remove the folder that a process manager or a daemon that was killed leaves in /tmp."""
    folder = find_session_folder()
    if folder and os.path.lexists(folder):
        import shutil  # noqa: PLC0415 - 6 ms on each host, at the end of the job

        shutil.rmtree(folder, ignore_errors=True)
    above = os.path.dirname(folder)
    if _first_word(above) == USER_FOLDER:
        try:
            os.rmdir(above)
        except OSError:  # another job uses it
            return


def find_session_folder() -> str:
    """Return the session folder of the manager or daemon that has started this process; empty if there is none."""
    folder = os.environ.get("PMIX_SERVER_TMPDIR", "")
    return folder if _first_word(folder) in SESSION_FOLDERS else ""


def _first_word(path: str) -> str:
    return os.path.basename(path).partition(".")[0]


def watch_daemon(daemon: Daemon | None, connection: LauncherConnection | None, *, over_at: float) -> None:
    """Start a process that ends a manager or its daemon, unless there is none, if it stays when the job is over.

    A daemon may have been stopped, may wait for a host that was lost, or hang: PMIx_server_finalize of PMIx 5 may
    wait for a thread that waits for a mutex, which no other thread holds.

    Args:
        daemon: The process.
        connection: The connection to ddlrun, which the new process takes over; None: there is none.
        over_at: The time at which the job is over; NEVER: when ddlrun reports that, or the connection is lost.
    """
    if daemon is None or os.fork():
        return
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        close_files(daemon.pidfd, -1 if connection is None else connection.fileno())
        DaemonWatcher(daemon, connection, over_at=over_at).run()
    finally:
        os._exit(0)


def open_daemon(pid: int, names: Container[str] = DAEMONS) -> Daemon | None:
    """Return a process if it has one of some names, so that its number stays its own.

    None before Linux 5.3, and before Python 3.9.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
    stat = read_stat(pid)
    return Daemon(pid=pid, pidfd=pidfd, name=stat.name) if stat is not None and plain_name(stat.name) in names else None


@record
class Daemon:
    """A process manager or its daemon: the process, its descriptor (see pidfd_open(2)) and its name."""

    pid: int
    pidfd: int
    name: str


class HostDuties(Task):
    """The duties of the keeper of local rank 0 towards the process manager's daemon, or agent, on its host."""

    def __init__(self, settings: KeeperSettings, connection: LauncherConnection) -> None:
        """Take the settings of a keeper, of any local rank, and its connection."""
        self._settings, self._connection = settings, connection
        self._detector = StopDetector(settings.parent)

    @property
    def has_daemon(self) -> bool:
        """Whether the parent of this process is a daemon, on a host where ddlrun does not run."""
        stat = read_stat(self._settings.parent) if self._settings.local_rank == 0 else None
        return stat is not None and plain_name(stat.name) in DAEMONS and os.getppid() == self._settings.parent

    def begin(self, loop: Loop) -> None:
        """Report the daemon's session folder, and check the daemon from now on."""
        if self.has_daemon:
            if find_session_folder():
                self._connection.send(protocol.SESSION_FOLDER, os.fsencode(find_session_folder()))
            self.join(loop)

    def deadline(self) -> float:
        """Return the time of the next check."""
        return self._detector.next_check

    def on_time(self, now: float) -> None:
        """Resume a daemon that stays stopped: MPI waits for it without a limit, in MPI_Init for example."""
        if self._detector.stays_stopped(now):
            daemon = "a daemon of the process manager" if self._settings.orders is None else "ddlrun's agent"
            text = f"{daemon} on {os.uname().nodename} was stopped, and was resumed"
            self._connection.send(protocol.NOTE, text.encode(errors="replace"))
            send_signal(self._settings.parent, signal.SIGCONT)

    def leave_host(self, *, watch: bool, over: bool) -> None:
        """See to the end of the daemon, or of the process manager.

        Args:
            watch: Let a process do that when the job is over.
            over: The job is over already.
        """
        parent, connection = self._settings.parent, self._connection
        if self._settings.local_rank == 0:
            daemon = open_daemon(parent, LAUNCHERS)
            if os.getppid() != parent:
                remove_session_folder()
            elif watch or connection.timed_out:
                over_at = time.monotonic() if over or not connection.open else NEVER
                watch_daemon(daemon, connection if connection.open else None, over_at=over_at)
        if connection.timed_out:
            end_daemon(parent)  # which may kill this process in turn


class DaemonWatcher:
    """A process that outlives the keeper of local rank 0, and the manager's daemon on its host."""

    def __init__(self, daemon: Daemon, connection: LauncherConnection | None, *, over_at: float) -> None:
        """Take charge of a daemon.

        Args:
            daemon: The daemon.
            connection: The connection to ddlrun, if there is one that is open.
            over_at: The time at which the job is over, infinity until ddlrun reports it.
        """
        self._daemon, self._connection = daemon, connection
        self._over_at = over_at
        self._is_agent = daemon.name == AGENT
        self._dismissed = self._is_agent and connection is not None and over_at < NEVER
        """Whether the daemon stays: an agent does so when ddlrun reports that the job is over."""
        self._reported = ""
        self._loop = Loop()
        if connection is not None:
            connection.run_in(self._loop, self._on_message)

    def run(self) -> NoReturn:
        """Run until the daemon has ended, and exit."""
        # The first process of Open MPI 5's daemon waits for the second one. If it was stopped, it stays. An agent that
        # has started the daemon stays, too.
        stat = read_stat(self._daemon.pid)
        outer = None if stat is None else open_daemon(stat.parent, DAEMONS - {AGENT})
        self._watch()
        remove_session_folder()
        if outer is not None:
            self._daemon = outer
            self._watch()
        self._take_leave()
        os._exit(0)

    def _watch(self) -> None:
        """End the daemon when it is due, until it has ended."""
        ends: list[int] = []
        self._loop.watch(self._daemon.pidfd, READ, ends.append)
        while not (ends or self._dismissed):
            self._loop.wait(INTERVAL if self._over_at < NEVER else LONGEST_WAIT)
            if self._connection is not None and not self._connection.open:
                self._connection = None
                self._over_at = min(self._over_at, time.monotonic())
            if not ends:
                self._end_if_due(time.monotonic())
        if self._dismissed:
            self._resume_stopped()
        self._loop.forget(self._daemon.pidfd)

    def _on_message(self, kind: bytes, _text: bytes) -> None:
        if kind == protocol.OVER:
            self._over_at = min(self._over_at, time.monotonic())
            self._dismissed = self._is_agent

    def _end_if_due(self, now: float) -> None:
        if now > self._over_at + KILL_SECONDS:
            self._report(f"did not end within {KILL_SECONDS:g} s after the job, and was killed")
            self._kill()
        elif now > self._over_at + RESUME_SECONDS:
            self._resume_stopped()

    def _resume_stopped(self) -> None:
        stat = read_stat(self._daemon.pid)
        if stat is not None and stat.state == STOPPED:
            self._report("was stopped when the job was over, and was resumed")
            signal.pidfd_send_signal(self._daemon.pidfd, signal.SIGCONT)

    def _kill(self) -> None:
        """Kill the daemon, and its session if it is the manager, as its ssh would outlive it."""
        others = {} if plain_name(self._daemon.name) in DAEMONS else list_processes()
        session = [other for other, stat in others.items() if stat.session == self._daemon.pid]
        signal.pidfd_send_signal(self._daemon.pidfd, signal.SIGKILL)
        for other in session:
            send_signal(other, signal.SIGKILL)

    def _report(self, text: str) -> None:
        """Send a text about the daemon, unless it was the last one, too."""
        if text == self._reported or self._connection is None:
            return
        self._reported = text
        label = f"{self._daemon.name} on {os.uname().nodename} (process {self._daemon.pid})"
        self._connection.send(protocol.NOTE, f"{label} {text}".encode(errors="replace"))

    def _take_leave(self) -> None:
        """Wait until ddlrun has read everything."""
        if self._connection is None:
            return
        self._connection.finish_sending()
        until = time.monotonic() + FAREWELL_SECONDS
        while self._connection.open and time.monotonic() < until:
            self._loop.wait(until - time.monotonic())
