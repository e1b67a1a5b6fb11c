"""Commands that run at the same time, each with a script as its input; their output is kept up to a limit."""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from ddlrun.remote.processes import EXIT_NOT_STARTED, explain_start
from ddlrun.wire.loop import READ, Loop

CHUNK = 1 << 16
# The interval at which the end of a command is awaited that has closed its output.
MOMENT = 5e-3
# The signals that Python ignores, which an exec would not change.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
EXIT_SIGNAL = 128


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """The limits of each command, beyond which it is killed, and the number of those that run at the same time.

    With a `grace`, a command is a process group of its own, and gets SIGTERM that many seconds before SIGKILL.
    """

    seconds: float
    most_bytes: int
    grace: float = 0.0
    at_once: int = 1


class CapturedCommand:
    """A command: its output so far, and its end."""

    def __init__(self, argv: list[str], script: bytes) -> None:
        self.argv, self.script = argv, script
        self.out, self.err = bytearray(), bytearray()
        self.too_long = False
        """Whether it was ended because it wrote too much."""
        self.code: int | None = None
        """The exit code as a shell reports it; None if it was killed, as its time was over."""
        self.pid = 0
        self.pipes: set[int] = set()
        """The descriptors of its output, until their end."""
        self.kill_at, self.terminated = 0.0, False

    def start(self, *, own_group: bool) -> tuple[int, int]:
        """Start the command; return the descriptors of its output and errors. Raises OSError."""
        with open(os.memfd_create("script"), "w+b") as stdin:
            stdin.write(self.script)
            stdin.seek(0)
            (out, out_end), (err, err_end) = os.pipe(), os.pipe()
            self.pipes = {out, err}
            files = [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate((stdin.fileno(), out_end, err_end))]
            # Signal handlers raise exceptions: the process would not be killed before its number is known.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                self.pid = os.posix_spawnp(
                    self.argv[0], self.argv, os.environ, file_actions=files,
                    setpgroup=0 if own_group else os.getpgrp(), setsigmask=mask, setsigdef=IGNORED,
                )  # fmt: skip
            finally:
                os.close(out_end)
                os.close(err_end)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return out, err

    def has_ended(self, options: int = os.WNOHANG) -> bool:
        """Return True if the process has ended, and take its exit code."""
        if self.pid:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.pid, self.code = 0, code if code >= 0 else EXIT_SIGNAL - code
        return not self.pid

    def send_signal(self, number: int) -> None:
        """Send a signal to the process unless it is known that it has ended."""
        if self.pid:
            os.kill(self.pid, number)


def run_commands(commands: Iterable[CapturedCommand], limits: CommandLimits) -> None:
    """Run commands to their ends, or to their limits; what they leave is in them.

    An exception, such as that of a Ctrl-C, ends them all. Raises OSError where this process may not open more files, or
    its environment is too long for any program to start.
    """
    runner = _Runner(limits)
    try:
        for command in commands:
            runner.start(command)
            while len(runner.running) >= limits.at_once:
                runner.wait()
        while runner.running:
            runner.wait()
    except BaseException:
        runner.end()
        raise
    finally:
        runner.loop.close()


class _Runner:
    """The commands that run, and the loop that reads their output."""

    def __init__(self, limits: CommandLimits) -> None:
        self._limits = limits
        self.loop = Loop()
        self.running: list[CapturedCommand] = []

    def start(self, command: CapturedCommand) -> None:
        """Start a command, and begin to read its output."""
        self.running.append(command)
        command.kill_at = time.monotonic() + self._limits.seconds
        try:
            pipes = command.start(own_group=self._limits.grace > 0)
        except OSError as error:
            command.code, command.err[:] = EXIT_NOT_STARTED, explain_start(command.argv[0], error).encode()
            self._finish(command)
            return
        for fd, buffer in zip(pipes, (command.out, command.err), strict=True):
            self.loop.watch(fd, READ, partial(self._read, command, fd, buffer))

    def wait(self) -> None:
        """Wait for output, for the end of a command, or until its time is over."""
        now = time.monotonic()
        until = min(command.kill_at if command.pipes else now + MOMENT for command in self.running)
        self.loop.wait(until - now)
        now = time.monotonic()
        for command in tuple(self.running):
            if not command.pipes and command.has_ended():
                self._finish(command)
            elif now > command.kill_at:
                self._stop(command)

    def end(self) -> None:
        """End all commands."""
        for command in tuple(self.running):
            self._stop(command)
        while self.running:
            self.wait()

    def _read(self, command: CapturedCommand, fd: int, buffer: bytearray, _events: int) -> None:
        data = os.read(fd, CHUNK)
        buffer += data
        if not data:
            self._close(command, fd)
        elif len(command.out) + len(command.err) > self._limits.most_bytes:
            command.too_long = True
            self._stop(command)

    def _stop(self, command: CapturedCommand) -> None:
        """Send SIGTERM if a command has a grace, else SIGKILL: then its output may be held open by others."""
        if self._limits.grace and not command.terminated:
            command.terminated = True
            command.kill_at = time.monotonic() + self._limits.grace
            command.send_signal(signal.SIGTERM)
            return
        command.send_signal(signal.SIGKILL)
        command.has_ended(0)
        if not command.too_long:
            command.code = None
        self._finish(command)

    def _finish(self, command: CapturedCommand) -> None:
        for fd in tuple(command.pipes):
            self._close(command, fd)
        self.running.remove(command)

    def _close(self, command: CapturedCommand, fd: int) -> None:
        self.loop.forget(fd)
        os.close(fd)
        command.pipes.discard(fd)
