"""The process group of the programs that lead to other hosts, such as ssh."""

from __future__ import annotations

import os

from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import close_files, complain
from ddlrun.keeper.signals import HANDLED, restore_defaults
from ddlrun.wire.connection import Connection, Pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""The signals that Python ignores, which an exec would not change."""
EXIT_NOT_FOUND = 127


class ClientGroup:
    """A process group that gets SIGTERM when this process ends, even if it is killed.

    Where the network is cut, the programs would not notice that for minutes. The leader of the group waits for the end
    of a pipe that only this process holds. A program does not arrange that itself, by prctl(2) after a fork: to fork
    Python takes 2 ms more for each program than posix_spawn.
    """

    def __init__(self) -> None:
        """Start the leader."""
        end, self._held = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        self._leader = os.fork()
        if self._leader == 0:
            _lead(end)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setpgid(self._leader, self._leader)
        os.close(end)

    def start(self, words: list[str]) -> tuple[int, Connection]:
        """Start a program with pipes as its standard input and output; return its process id and the pipes."""
        stdin, stdout = os.pipe(), os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, stdin[0], 0), (os.POSIX_SPAWN_DUP2, stdout[1], 1)]
        try:
            pid = os.posix_spawnp(
                words[0], words, os.environ, file_actions=actions, setpgroup=self._leader, setsigdef=IGNORED
            )
        except OSError as error:
            complain(f"{os.uname().nodename}: {words[0]}: {error.strerror}")
            pid = _start_failed_program()
        for fd in (stdin[0], stdout[1]):
            os.close(fd)
        return pid, Connection(Pipes(stdout[0], stdin[1]))


def _lead(end: int) -> NoReturn:
    """Wait for the end of a pipe, and end the group."""
    try:
        os.setpgid(0, 0)
        close_files(end)
        restore_defaults()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.read(end, 1)
        os.kill(0, signal.SIGTERM)
    finally:
        os._exit(0)


def _start_failed_program() -> int:
    """Return the process id of a program that ends as a shell does where there is no such program."""
    pid = os.fork()
    if pid == 0:
        os._exit(EXIT_NOT_FOUND)
    return pid
