"""The program of a rank that is in MPI while a command runs, whose end is its own: python rank_in_mpi.py WORD ..."""

import os
import signal
import sys
from types import FrameType

from mpi4py import MPI

IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""The signals that Python ignores, and the command should not."""


def main() -> None:
    """Meet the other ranks, run the command, pass SIGTERM on to it, and end as it does."""
    MPI.COMM_WORLD.barrier()
    pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, setsigdef=IGNORED)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    _, status = os.waitpid(pid, 0)
    for number in (signal.SIGTERM, *IGNORED):
        signal.signal(number, signal.SIG_DFL)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
