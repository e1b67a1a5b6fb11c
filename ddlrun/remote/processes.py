"""Commands on this machine, several at the same time: their exit codes and their output."""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from ddlrun.errors import EXIT_SIGNAL
from ddlrun.wire.loop import READ, Loop

CHUNK = 1 << 16
# The interval at which the end of a command is awaited that has closed its output.
MOMENT = 1e-3
# The time from SIGTERM to SIGKILL. srun ends its step on SIGTERM alone.
GRACE_SECONDS = 3.0
# The signals that Python ignores, which an exec would not change.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
# Those whose handlers raise exceptions (see cli/signals.py).
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)
# The exit code of a command that could not be started.
EXIT_NOT_STARTED = 127


class FinishedProcess(NamedTuple):
    """A process that has ended."""

    code: int | None
    """The exit code; None: it did not end in time."""
    out: str
    err: str


class ProgramReply:
    """The output of a program so far, and its end."""

    def __init__(self) -> None:
        self.out, self.err = bytearray(), bytearray()
        self.code: int | None = None
        """The exit code as a shell reports it; None if the program did not end in time."""
        self.too_long = False
        """Whether it was ended because it wrote too much."""


class CapturedCommand(ProgramReply):
    """A command on this machine. It has a process group of its own: a Ctrl-C reaches ddlrun alone."""

    def __init__(self, argv: list[str], script: bytes) -> None:
        """Take the command line, and the text of standard input."""
        super().__init__()
        self.argv, self.script = argv, script
        self.pid = 0
        self.pipes: set[int] = set()
        """The descriptors of its output, until their end."""
        self.end_at, self.stopped = 0.0, False

    def start(self) -> tuple[int, int]:
        """Start the command; return the descriptors of its output and errors. Raises OSError."""
        with open(os.memfd_create("script"), "w+b") as stdin:
            stdin.write(self.script)
            stdin.seek(0)
            (out, out_end), (err, err_end) = os.pipe(), os.pipe()
            self.pipes = {out, err}
            files = [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate((stdin.fileno(), out_end, err_end))]
            # The process would not be killed if an exception came before its number is known.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            try:
                self.pid = os.posix_spawnp(
                    self.argv[0], self.argv, os.environ, file_actions=files, setpgroup=0, setsigmask=mask,
                    setsigdef=IGNORED,
                )  # fmt: skip
            finally:
                os.close(out_end)
                os.close(err_end)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return out, err

    def has_ended(self) -> bool:
        """Return True if the process has ended, and take its exit code unless its time was over."""
        if self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == 0:
                return False
            self.pid, code = 0, os.waitstatus_to_exitcode(status)
            if self.too_long or not self.stopped:
                self.code = code if code >= 0 else EXIT_SIGNAL - code
        return True

    def result(self, errors: str = "replace") -> FinishedProcess:
        """Return the exit code and the output; `errors` decides about what is not UTF-8."""
        out, err = (data.decode(errors=errors).replace("\r\n", "\n") for data in (self.out, self.err))
        return FinishedProcess(self.code, out, err)


class CommandRunner:
    """The commands that run, and the loop that reads their output."""

    def __init__(self, seconds: float, most_bytes: int = sys.maxsize) -> None:
        """Take the limits of each command, beyond which it is ended."""
        self._seconds, self._most_bytes = seconds, most_bytes
        self._loop = Loop()
        self._running: list[CapturedCommand] = []

    def run(self, commands: Iterable[CapturedCommand] = (), at_once: int = 1) -> None:
        """Run commands, and those that run, to their ends; an exception, such as that of a Ctrl-C, ends them all.

        Raises OSError (see start).
        """
        try:
            for command in self._running:
                command.end_at = time.monotonic() + self._seconds
            for command in commands:
                self.start(command)
                self._wait(at_once - 1)
            self._wait(0)
        except BaseException:
            for command in self._running:
                self._stop(command)
            self._wait(0)
            raise
        finally:
            self._loop.close()

    def start(self, command: CapturedCommand) -> None:
        """Start a command.

        Raises OSError where this process may not open more files, or its environment is too long for any program to
        start.
        """
        self._running.append(command)
        command.end_at = time.monotonic() + self._seconds
        try:
            out, err = command.start()
        except OSError as error:
            command.code, command.err[:] = EXIT_NOT_STARTED, explain_start(command.argv[0], error).encode()
            self._close(command, *command.pipes)
        else:
            self._loop.watch(out, READ, partial(self._read, command, out, command.out))
            self._loop.watch(err, READ, partial(self._read, command, err, command.err))

    def _wait(self, most: int) -> None:
        """Wait until at most so many commands run."""
        while len(self._running) > most:
            now = time.monotonic()
            until = min(command.end_at if command.pipes else now + MOMENT for command in self._running)
            self._loop.wait(until - now)
            for command in self._running:
                if time.monotonic() > command.end_at:
                    self._stop(command)
            self._running = [command for command in self._running if command.pipes or not command.has_ended()]

    def _read(self, command: CapturedCommand, fd: int, buffer: bytearray, _events: int) -> None:
        data = os.read(fd, CHUNK)
        if not command.stopped:
            buffer += data
        if not data:
            self._close(command, fd)
        elif len(command.out) + len(command.err) > self._most_bytes and not command.too_long:
            command.too_long = True
            self._stop(command)

    def _stop(self, command: CapturedCommand) -> None:
        """Send SIGTERM, and SIGKILL the next time; then its output may be held open by others."""
        if command.pid:
            os.killpg(command.pid, signal.SIGKILL if command.stopped else signal.SIGTERM)
        if command.stopped:
            self._close(command, *command.pipes)
        command.stopped = True
        command.end_at = time.monotonic() + GRACE_SECONDS

    def _close(self, command: CapturedCommand, *pipes: int) -> None:
        for fd in pipes:
            self._loop.forget(fd)
            os.close(fd)
        command.pipes.difference_update(pipes)


def start_command(
    argv: Sequence[str], stdin: str = "", timeout: float = 20.0, errors: str = "replace"
) -> Callable[[], FinishedProcess]:
    """Start a command; return a function that waits for its end, up to some seconds.

    Neither raises an error of the command; `errors` decides about output that is not UTF-8. Raises OSError (see
    CommandRunner.start).
    """
    command, runner = CapturedCommand(list(argv), os.fsencode(stdin)), CommandRunner(timeout)
    runner.start(command)

    def finish() -> FinishedProcess:
        runner.run()
        return command.result(errors)

    return finish


def explain_start(program: str, error: OSError) -> str:
    """Return the reason why a program could not be started; raise the error if no program can be started here."""
    if error.errno in (errno.EMFILE, errno.E2BIG):
        raise error
    missing = isinstance(error, FileNotFoundError) and "/" not in program
    return f"{program}: {'not on PATH' if missing else error.strerror}"
