"""Forks of this process: their files, the programs that they become, and those that help a keeper."""

from __future__ import annotations

import _ctypes  # once per host, before keepers are forked; ctypes itself takes 3 ms
import os
import sys

from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.signals import IGNORED, restore_defaults

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

# The settings of a Linux process that tie its life to its parent's (prctl(2)).
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61


def load_prctl() -> Callable[[int, int], object]:
    """Return prctl as a function of an option and its argument."""
    address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    return lambda option, argument: _ctypes.call_function(address, (option, int(argument), 0, 0, 0))


def close_files(*needed: int) -> None:
    """Close all files of this process but the given ones."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in needed:
            try:
                os.close(int(name))
            except OSError:  # the folder that was listed
                continue


def become(argv: list[str], label: str) -> NoReturn:
    """Replace this process by a program; exit with 127 if there is none, with 126 if it cannot be run."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is the point
    except OSError as error:
        # An unreadable folder in PATH hides that the program is in none of the others.
        missing = isinstance(error, FileNotFoundError) or not _may_exist(argv[0])
        complain(f"{label}: cannot start {argv[0]!r}: {'No such file or directory' if missing else error.strerror}")
        os._exit(127 if missing else 126)


def _may_exist(program: str) -> bool:
    return "/" in program or any(os.path.lexists(os.path.join(folder, program)) for folder in os.get_exec_path())


def complain(text: str) -> None:
    """Print a message of ddlrun's to standard error."""
    sys.stderr.write(f"ddlrun: {text}\n")
    sys.stderr.flush()


class HelperProcess:
    """A child of the keeper for work that may block. It has a process group of its own, and ends with the keeper."""

    def __init__(self, work: Callable[[int], object]) -> None:
        """Start it. `work` takes the descriptor to which it writes. Raises OSError if there can be no process."""
        self.fd, output = os.pipe2(os.O_CLOEXEC)
        keeper = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(output)
            raise
        if self._pid == 0:
            _work(work, keeper, output)
        os.close(output)
        try:
            os.setpgid(self._pid, self._pid)  # as it does itself: the first of them is the one that counts
        except OSError:  # it has ended
            return

    def stop(self) -> None:
        """End it and what it has started, and close the pipe."""
        os.close(self.fd)
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except OSError:  # it has ended
            return


def _work(work: Callable[[int], object], keeper: int, output: int) -> None:
    try:
        os.setpgid(0, 0)
        load_prctl()(PR_SET_PDEATHSIG, signal.SIGKILL)
        restore_defaults()
        if os.getppid() == keeper:
            work(output)
    finally:
        os._exit(1)
