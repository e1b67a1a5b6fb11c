"""The only module that starts processes."""

import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import IO, Any, NamedTuple

from ddlrun.plan import Outcome

# After the first TERM, mpirun gets this long to take its ranks down.
GRACE_SECONDS = 10
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Finished(NamedTuple):
    """A process that ended: its exit code (None: no answer in time) and what it printed."""

    code: int | None
    out: str
    err: str


def begin(argv: Sequence[str], stdin: str = "", timeout: float = 20.0) -> Callable[[], Finished]:
    """Start a short command on this machine; return what waits for it and says what it said.

    Neither raises for what the command does; `timeout` is in seconds.
    """
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
            argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace"
        )
    except OSError as error:
        failed = Finished(127, "", str(error))
        return lambda: failed

    def finish() -> Finished:
        with process:
            try:
                out, err = process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                return Finished(None, "", "")
        return Finished(process.returncode, out, err)

    return finish


def run_on_hosts(scripts: Mapping[str, str], ssh: Sequence[str], timeout: float) -> dict[str, Finished]:
    """Run each host's sh script by ssh, all at once, within one deadline in seconds; never asks for a password."""
    from ClusterShell.Task import task_self  # noqa: PLC0415 - 40 ms, for jobs over several hosts alone

    task = task_self()
    task.set_info("fanout", 128)
    task.set_info("ssh_options", " ".join(ssh))
    task.set_info("connect_timeout", min(10.0, timeout))
    task.set_default("stderr", True)
    alike: dict[str, list[str]] = {}
    for name, script in scripts.items():
        alike.setdefault(script, []).append(name)
    workers: dict[str, Any] = {}  # ClusterShell has no types
    for script, names in alike.items():
        worker = task.shell("exec sh -s", nodes=_node_set(names), timeout=timeout, stdin=True)
        worker.write(script.encode())
        worker.set_write_eof()
        workers |= dict.fromkeys(names, worker)
    task.resume()
    codes: dict[str, int] = {}
    for code, nodes in task.iter_retcodes():
        codes.update(dict.fromkeys(nodes, code))
    return {
        name: Finished(codes.get(name), _text(worker.node_buffer(name)), _text(worker.node_error(name)))
        for name, worker in workers.items()
    }


def _node_set(names: Sequence[str]) -> object:
    from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415 - see run_on_hosts

    return NodeSet.fromlist(list(names))


def _text(buffer: bytes | None) -> str:
    return bytes(buffer or b"").decode(errors="replace")


def run_job(
    argv: Sequence[str],
    environ: Mapping[str, str],
    logs: tuple[IO[bytes], IO[bytes]],
    through: Callable[[], Callable[[bytes], bytes]],
    *,
    stdin: bool,
) -> Outcome:
    """Run mpirun: pass on what it prints as it comes, forward signals, return how it ended.

    mpirun gets our standard input where `stdin` is true. `logs` get a copy of standard output and
    standard error; `through()` makes what each of the two passes through, chunk by chunk (an empty one at
    the end). SIGINT, SIGTERM and SIGHUP become one SIGTERM to mpirun, which ends its ranks;
    after GRACE_SECONDS, or at the second signal, all that is left of the job on this host is killed.
    Where ddlrun itself is killed, the kernel sends mpirun the SIGTERM.
    The Outcome's exit code is mpirun's own, or 128 + the signal that ended the job. Raises OSError
    where mpirun cannot be started.
    """
    started = time.monotonic()
    with _Signals() as signals:
        # A session of its own: a Ctrl-C at the terminal reaches mpirun once, from here, and not twice,
        # and whatever is left of the job can be found by its session.
        process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
            argv,
            env=environ,
            stdin=None if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_term_with(os.getpid()),  # noqa: PLW1509 - there are no threads here
        )
        with process:
            signals.watch(process)
            _pump(
                process,
                zip(_pipes(process), (_Tee(1, logs[0], through()), _Tee(2, logs[1], through())), strict=True),
                signals,
            )
        code = process.returncode
    if signals.first is not None or code < 0:
        _end_session(process.pid)
    ended_by = signals.first if signals.first is not None else (-code if code < 0 else None)
    return Outcome(code if ended_by is None else 128 + ended_by, ended_by, time.monotonic() - started)


def _term_with(parent: int) -> Callable[[], None]:
    """Return what lets the kernel send mpirun a SIGTERM when ddlrun is gone, however that ended (prctl(2))."""
    import ctypes  # noqa: PLC0415 - 3 ms

    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it

    def prepare() -> None:
        if prctl is not None:
            prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG
            if os.getppid() != parent:  # it was gone before
                os._exit(128 + signal.SIGTERM)

    return prepare


class _Signals:
    """While it lasts, signals to end ddlrun go to mpirun instead; `wake` is readable after any signal."""

    def __init__(self) -> None:
        self.first: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, object] = {}

    def __enter__(self) -> "_Signals":  # noqa: PYI034 - Self is not in Python 3.10
        self._fd_before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and `&` in a script ignore some
                self._before[number] = signal.signal(number, self._end)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._kill)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._fd_before)
        os.close(self.wake)
        os.close(self._woken)

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Take charge of the process, to which a signal may have been meant already."""
        self._process = process
        if self.first is not None:
            process.terminate()

    def end(self, number: int) -> None:
        """End the job as if the signal `number` had come."""
        self._end(number, None)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        if self.first is not None:
            self._kill(number, None)
            return
        self.first = number
        if self._process is not None:
            self._process.terminate()
        signal.alarm(GRACE_SECONDS)

    def _kill(self, _number: int, _frame: FrameType | None) -> None:
        if self._process is not None:
            _end_session(self._process.pid)


class _Tee:
    """Writes chunks to one of our own streams and to a log; a log that fails is dropped with a word."""

    def __init__(self, fd: int, log: IO[bytes], through: Callable[[bytes], bytes]) -> None:
        self._fd = fd
        self._through = through
        self._log: IO[bytes] | None = log

    def write(self, chunk: bytes) -> None:
        """Write to both; an empty chunk is the end. Raises OSError where our own stream is closed."""
        chunk = self._through(chunk)
        if self._log is not None:
            try:
                self._log.write(chunk)
            except OSError as error:
                os.write(2, f"ddlrun: no more log in {self._log.name}: {error.strerror}\n".encode())
                self._log = None
        while chunk:
            try:
                chunk = chunk[os.write(self._fd, chunk) :]
            except BlockingIOError:  # somebody who shares our stream made it non-blocking
                select.select([], [self._fd], [])


def _pipes(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    pipes = [stream.fileno() for stream in (process.stdout, process.stderr) if stream is not None]
    for fd in pipes:
        os.set_blocking(fd, False)
    return pipes[0], pipes[1]


def _pump(process: subprocess.Popen[bytes], streams: Iterable[tuple[int, _Tee]], signals: _Signals) -> None:
    """Pass on output until mpirun has ended and what it wrote is read; a pipe that others hold does not matter."""
    tees = dict(streams)
    with selectors.DefaultSelector() as selector:
        selector.register(signals.wake, selectors.EVENT_READ)
        for fd in tees:
            selector.register(fd, selectors.EVENT_READ)
        while process.poll() is None:
            for key, _ in selector.select():
                if key.fd == signals.wake:
                    _read(signals.wake)
                elif not _pass_on(key.fd, tees[key.fd], signals):
                    selector.unregister(key.fd)
    for fd, tee in tees.items():
        while _pass_on(fd, tee, signals):
            pass


def _pass_on(fd: int, tee: _Tee, signals: _Signals) -> bool:
    """Pass on one chunk; return False at the end, or where nothing is there."""
    chunk = _read(fd)
    try:
        tee.write(chunk)
    except OSError:  # nobody reads us any more, as after `| head`
        if signals.first is None:
            signals.end(signal.SIGPIPE)
    return bool(chunk)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""


def _end_session(session: int) -> None:
    """Kill every process of a session on this host."""
    import psutil  # noqa: PLC0415 - 20 ms that only a broken job pays

    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
