"""The keeper of one rank: starts the user's program, passes on what it writes, and leaves nothing of it behind.

mpirun starts the keeper, which is the parent of the program and, as a subreaper (prctl(2)), of whatever
that leaves. It is connected to ddlrun by TCP: output goes there, orders come from there. Whatever
dies - ddlrun, mpirun, its daemon, the network - the keeper notices and ends the program.
"""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os
import select
import signal
import sys
import time

from ddlrun.rank import protocol
from ddlrun.rank.binding import settle
from ddlrun.rank.framework_environment import introduce
from ddlrun.rank.processes import (
    end_daemon,
    exiting,
    explain_kill,
    has_children,
    kill_run,
    look_at,
    oom_kills,
    strays,
    targets,
)

PREFLIGHT = 5  # the exit code of errors.PreflightError
UNREACHABLE = 3  # that of errors.UnreachableError
CHUNK = 1 << 16
MOST_UNSENT = 4 * CHUNK
TAIL = 16 << 10
CONNECT_SECONDS = 5.0
# So many keepers a second ddlrun lets in at the least, where all come at once.
WELCOMES = 2000
# What the program left behind may go on for this long, and as long again after a TERM.
STRAY_SECONDS = 1.0
UNKILLABLE_SECONDS = 10.0
HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")


def main(program: list[str]) -> None:
    """Set up this rank and run the program; exit as it did, or with 127 or 126 where it cannot start."""
    prctl = _prctl()
    parent = os.getppid()
    rank, local_rank, size = (_number(f"OMPI_COMM_WORLD_{name}") for name in ("RANK", "LOCAL_RANK", "SIZE"))
    # Open MPI 4 puts the folder of its mpirun before the user's.
    os.environ["PATH"] = os.environ.pop("DDLRUN_PATH", os.environ.get("PATH", os.defpath))
    if rank == 0 and "DDLRUN_STDIN" in os.environ:
        _read_from(os.environ["DDLRUN_STDIN"])
    report, problems = settle(rank, local_rank, size)
    strict = bool(problems) and "DDLRUN_STRICT_BINDING" in os.environ
    problems += [f"rank {rank} on {os.uname().nodename}: {problem}" for problem in introduce(rank, local_rank, size)]
    channel = os.environ.pop(protocol.ADDRESSES, "")
    where = f"rank {rank} on {os.uname().nodename}"
    if not channel:  # started by hand
        for problem in problems:
            _say(problem)
        if strict:
            os._exit(PREFLIGHT)
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; it outlasts exec
        _become(program, where)
    grace, heartbeat = (float(os.environ.pop(f"DDLRUN_{name}", "10")) for name in ("GRACE", "HEARTBEAT"))
    try:
        link = _connect(channel, CONNECT_SECONDS + max(size, 0) / WELCOMES)
    except OSError as error:
        _say(f"{where} cannot reach ddlrun: {error}")
        os._exit(UNREACHABLE)
    keeper = Keeper(link, where, grace, heartbeat, parent)
    keeper.send(protocol.HELLO, "\t".join(map(str, (rank, os.uname().nodename, local_rank, os.getpid()))))
    if report:
        keeper.send(protocol.BOUND, report)
    for problem in problems:
        keeper.send(protocol.SAYS, problem)
    keeper.run(None if strict else program, prctl)


class Keeper:
    """One program and the connection to ddlrun."""

    def __init__(self, link: _socket.socket, where: str, grace: float, heartbeat: float, parent: int) -> None:
        self._link: _socket.socket | None = link
        self._where, self._grace, self._heartbeat, self._parent = where, grace, heartbeat, parent
        self._unsent = bytearray()
        self._unpack = protocol.Unpacker()
        self._poll = select.poll()
        self._pipes: dict[int, bytes] = {}
        self._pid = 0
        self._status: int | None = None
        self._tail = b""
        self._why = ""
        self._ordered = False
        self._asked: list[int] = []
        self._dying = False
        self._term_at: float | None = None
        self._kill_at: float | None = None
        self._ended_at = self._last = 0.0
        self._shut = False
        self._max_rss = 0
        self._leave = False
        self._cut_off = False
        self._started = self._heard = self._beaten = time.monotonic()

    def send(self, kind: bytes, text: str | bytes = b"") -> None:
        """Queue one message."""
        self._unsent += protocol.pack(kind, text if isinstance(text, bytes) else text.encode(errors="replace"))

    def run(self, program: list[str] | None, prctl: Prctl) -> None:
        """Run the program (None: refuse to) to its end and exit as it did."""
        prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, self._signalled)
        self._poll.register(wake, select.POLLIN)
        if self._link is not None:
            self._link.setblocking(False)
        kills = oom_kills()
        if program is None:
            self._status = PREFLIGHT << 8
            self._ended_at = time.monotonic()
        else:
            self._start(program, prctl)
        if os.getppid() != self._parent:  # it was gone before
            self._signalled(signal.SIGTERM, None)
        while self._status is None or self._pipes or has_children():
            self._turn(wake)
            if self._status is not None and time.monotonic() > max(self._ended_at, self._last) + UNKILLABLE_SECONDS:
                self.send(protocol.SAYS, f"{self._where}: cannot end processes {strays()}")
                break
        self._tell_end(oom_kills() - kills)
        while self._link is not None and (self._unsent or (self._status != 0 and not self._leave)):
            self._turn(wake)  # as long as it takes: ddlrun may wait for a slow reader
        self._shut_down()
        while self._link is not None:
            self._turn(wake)
        if self._cut_off:
            end_daemon(self._parent)
        _exit_as(self._status or 0)

    def _start(self, program: list[str], prctl: Prctl) -> None:
        out, err = os.pipe(), os.pipe()
        keeper = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.setpgid(0, 0)  # what mpirun does to its children's groups is ours to do
            prctl(1, signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(1)
            os.dup2(out[1], 1)
            os.dup2(err[1], 2)
            signal.set_wakeup_fd(-1)
            for number in (
                signal.SIGTERM,
                signal.SIGINT,
                signal.SIGHUP,
                signal.SIGUSR1,
                signal.SIGUSR2,
                signal.SIGCHLD,
            ):
                signal.signal(number, signal.SIG_DFL)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (HOOK, os.environ.get("PYTHONPATH"))))
            _become(program, self._where)
        for kind, (read, write) in ((protocol.OUT, out), (protocol.ERR, err)):
            os.close(write)
            os.set_blocking(read, False)
            self._pipes[read] = kind

    def _turn(self, wake: int) -> None:
        """Wait for something to happen, and deal with it."""
        self._watch()
        for fd, event in self._poll.poll(self._until()):
            if fd == wake:
                _read(fd)
            elif fd in self._pipes:
                self._pass_on(fd)
            elif self._link is not None and fd == self._link.fileno():
                if event & ~select.POLLOUT:
                    self._receive()
                if event & select.POLLOUT:
                    self._flush()
        self._reap()
        self._in_time()

    def _watch(self) -> None:
        """Tell poll what is worth waiting for: no output while much of it is unsent."""
        for fd in self._pipes:
            if len(self._unsent) < MOST_UNSENT:
                self._poll.register(fd, select.POLLIN)
            else:
                self._unregister(fd)
        if self._link is not None:
            self._poll.register(self._link.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0))

    def _unregister(self, fd: int) -> None:
        try:  # contextlib would be one more import
            self._poll.unregister(fd)
        except KeyError:
            return

    def _until(self) -> float:
        """Return the milliseconds to wait at most."""
        now = time.monotonic()
        times = [now + 5.0]
        if self._heartbeat and self._link is not None:
            times += [self._heard + self._heartbeat, *([] if self._shut else [self._beaten + self._heartbeat / 4])]
        times += [at for at in (self._term_at, self._kill_at) if at is not None]
        if self._status is not None and (self._pipes or has_children()):
            times.append(now + 0.05)
        return max(0.0, (min(times) - now) * 1000 + 1)

    def _in_time(self) -> None:
        now = time.monotonic()
        if self._heartbeat and self._link is not None:
            if now > self._heard + self._heartbeat:
                self._cut_off = True
                self._lose(f"no sign of life from ddlrun for {self._heartbeat:g} s")
            elif now > self._beaten + self._heartbeat / 4 and not self._shut:
                self._beaten = now
                self.send(protocol.BEAT)
        self._end_strays(now)
        if self._status is not None and not has_children():  # nobody is left to write more
            for fd in list(self._pipes):
                while fd in self._pipes and self._pass_on(fd):
                    pass
                self._close(fd)

    def _end_strays(self, now: float) -> None:
        """Send the TERM or the KILL that is due to whatever lives."""
        for at, number in ((self._term_at, signal.SIGTERM), (self._kill_at, signal.SIGKILL)):
            if at is not None and now >= at:
                for pid in strays():
                    if number == signal.SIGKILL or pid not in self._asked:
                        _kill(pid, number)
        if self._term_at is not None and now >= self._term_at:
            self._term_at = None
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + 0.2

    def _tell_end(self, kills: int) -> None:
        status = self._status or 0
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        why = self._why
        if number == signal.SIGKILL and not self._ordered:
            why = explain_kill(self._pid, kills) or why
        ended = protocol.ProgramEnd(
            code=os.WEXITSTATUS(status) if not number else 128 + number, signal=number,
            seconds=round(time.monotonic() - self._started, 3), max_rss_kib=self._max_rss, oom_kills=kills,
            ordered=int(self._ordered), why=why, tail=self._tail if status else b"",
        )  # fmt: skip
        self.send(protocol.ENDED, ended.pack())

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._max_rss = max(self._max_rss, usage.ru_maxrss)
            if pid == self._pid:
                self._status = status
                self._ended_at = now = time.monotonic()
                self._term_at = now if self._ordered else now + STRAY_SECONDS
                if not self._ordered:  # else what a shell ran has the rest of the grace
                    self._kill_at = now + 2 * STRAY_SECONDS

    def _pass_on(self, fd: int) -> bool:
        """Queue what a pipe has; return False where it has nothing."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close(fd)
            return False
        kind = self._pipes[fd]
        if kind == protocol.ERR:
            self._tail = (self._tail + data)[-TAIL:]
        if self._link is not None:
            self.send(kind, data)
            self._flush()
        return True

    def _close(self, fd: int) -> None:
        if self._pipes.pop(fd, None) is not None:
            self._unregister(fd)
            os.close(fd)

    def _flush(self) -> None:
        try:
            while self._link is not None and self._unsent:
                del self._unsent[: self._link.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"the connection to ddlrun was lost: {error.strerror}")

    def _receive(self) -> None:
        try:
            data = self._link.recv(CHUNK) if self._link is not None else b""
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"the connection to ddlrun was lost: {error.strerror}")
            return
        if not data:
            self._lose("ddlrun is gone")
            return
        self._heard = time.monotonic()
        for kind, text in self._unpack.feed(data):
            self._obey(kind, text)

    def _obey(self, kind: bytes, text: bytes) -> None:
        if kind == protocol.SIGNAL:
            for pid in targets(self._pid, int(text)) if self._status is None else ():
                _kill(pid, int(text))
        elif kind == protocol.FINISH:
            self._finish(float(text))
        elif kind == protocol.LEAVE:
            self._leave = True
        elif kind == protocol.LOOK:
            self.send(protocol.WHERE, look_at(self._pid, self._heartbeat / 3 or 15))
        elif kind == protocol.SWEEP:
            kill_run(os.environ.get("DDLRUN_RUN", ""))

    def _finish(self, grace: float) -> None:
        """End the program: TERM now, KILL after the grace, which a second order can only make shorter."""
        if self._status is None and not self._ordered and not self._dying:
            dying = exiting(self._pid)  # then it ends by itself, and may be the reason for the order
            if not self._ordered:  # a signal may have called this again meanwhile, and its TERM is why it dies
                self._dying, self._ordered = dying, not dying
            self._asked = targets(self._pid, signal.SIGTERM)
            for pid in self._asked:
                _kill(pid, signal.SIGTERM)
                _kill(pid, signal.SIGCONT)
        until = time.monotonic() + grace
        self._kill_at = self._last = until if self._kill_at is None else min(self._kill_at, until)

    def _lose(self, why: str) -> None:
        """Go on without ddlrun: end the program."""
        if self._link is not None:
            self._unregister(self._link.fileno())
            self._link.close()
            self._link = None
        self._unsent.clear()
        self._why = self._why or why
        self._finish(self._grace)

    def _signalled(self, number: int, _frame: object) -> None:
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            if not os.environ.get("SLURM_STEP_ID", "").isdecimal():  # Slurm signals every process of its step
                for pid in targets(self._pid, number) if self._pid and self._status is None else ():
                    _kill(pid, number)
            self.send(protocol.TAKEN, b"%d" % number)
        elif number != signal.SIGCHLD:
            if os.getppid() != self._parent:
                self._why = self._why or "mpirun, or its daemon on this host, is gone"
            self._finish(self._grace)

    def _shut_down(self) -> None:
        """Say that nothing more comes; ddlrun closes when it has read it all, so nothing is lost."""
        self._shut = True
        if self._link is not None:
            try:
                self._link.shutdown(_socket.SHUT_WR)
            except OSError:
                self._lose("the connection to ddlrun was lost")


class Prctl:
    """prctl(2), where there is one: Linux."""

    def __init__(self, call: object) -> None:
        self._call = call

    def __call__(self, option: int, value: int) -> None:
        """Call it; where it is not there, nothing happens."""
        if callable(self._call):
            self._call(option, int(value), 0, 0, 0)


def _prctl() -> Prctl:
    import ctypes  # noqa: PLC0415 - 3 ms

    return Prctl(getattr(ctypes.CDLL(None), "prctl", None))


def _connect(channel: str, seconds: float) -> _socket.socket:
    """Return a connection to the ddlrun that knows the token. Raises OSError with each address and why not."""
    token, host, addresses = channel.split("@")
    tries = addresses.split(",")
    if host == os.uname().nodename:
        tries.insert(0, "127.0.0.1:" + tries[0].rpartition(":")[2])
    failed = []
    for address in dict.fromkeys(tries):
        ip, _, port = address.rpartition(":")
        link = _socket.socket(_socket.AF_INET6 if ":" in ip else _socket.AF_INET, _socket.SOCK_STREAM)
        link.settimeout(seconds)
        try:
            link.connect((ip, int(port)))
            link.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            link.sendall(protocol.pack(protocol.HELLO, token.encode()))
            answer = b""
            while len(answer) < protocol.HEAD and (data := link.recv(protocol.HEAD - len(answer))):
                answer += data
            if answer == protocol.pack(protocol.WELCOME):
                return link
            failed.append(f"{address} (somebody else answers)")
        except OSError as error:
            failed.append(f"{address} ({error.strerror or error})")
        link.close()
    raise OSError(f"tried {', '.join(failed)}; open these ports, or name the network: --network")


def _become(program: list[str], where: str) -> None:
    """Become the program; exit 127 or 126 where it cannot start."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would outlast exec
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is the point
    except OSError as error:
        _say(f"{where}: cannot start {program[0]!r}: {error.strerror}")
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _exit_as(status: int) -> None:
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, CHUNK)
    except BlockingIOError:
        return b""


def _read_from(source: str) -> None:
    """Make `PATH@OFFSET` the standard input: Open MPI 5's mpirun never passes on that its own has ended."""
    path, _, offset = source.partition("@")
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        file = os.open(os.devnull, os.O_RDONLY)
    if offset:
        os.lseek(file, int(offset), os.SEEK_SET)
    os.dup2(file, 0)


def _number(name: str) -> int:
    return int(os.environ.get(name, "-1"))


def _say(text: str) -> None:
    sys.stderr.write(f"ddlrun: {text}\n")
    sys.stderr.flush()
