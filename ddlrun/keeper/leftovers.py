"""Shared memory that MPI and NCCL leave behind when ranks are killed, or exit without MPI_Finalize.

A file is left behind if no process has it open or mapped.
"""

from __future__ import annotations

import os
import time

from ddlrun.keeper.bare_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

FOLDER: Final = "/dev/shm"  # noqa: S108 - the libraries' own choice
# The names: of MPICH, UCX, Intel MPI, Open MPI 5.0 and 4.1, a test of both in MPI_Init, and NCCL.
NAMES: Final = (
    "mpich_shm_*", "ucx_shm_posix_*", "Intel_MPI_*", "sm_segment.*", "vader_segment.*", "open_mpi.*", "nccl-??????",
    "nccl-shm-*",
)  # fmt: skip
# A process that cannot be killed may block whoever reads what it has mapped.
SECONDS: Final = 10.0
MOMENT: Final = 5e-3
# Files are listed before processes, so that a new file never counts as unused; open files before mapped ones, as a
# process maps a file before it closes it. Nothing is removed in a container that has the host's shared memory, but
# cannot see the host's processes.
SCRIPT: Final = r"""
set -- FILES
in_use=$({ ls -l /proc/[0-9]*/fd; cat /proc/[0-9]*/maps; } 2>/dev/null |
  grep -aF -e /dev/shm/ -e /ompi. -e /prted. -e /ddlrun-)
remove() {
  [ -O "$1" ] && [ ! -L "$1" ] && ! printf '%s\n' "$in_use" | grep -qaF -- " $1" || return 0
  echo "@left $1"
  [ -n "$only_list" ] || rm -rf -- "$1"
}
case $(readlink /proc/self/ns/ipc),$(readlink /proc/self/ns/pid) in
  "ipc:[4026531839],pid:[4026531836]") ;;
  "ipc:[4026531839],"*) remove() { :; } ;;
esac
for path; do
  [ ! -f "$path" ] || remove "$path"
done
""".replace("FILES", " ".join(f"{FOLDER}/{name}" for name in NAMES))


def remove_leftovers(seconds: float = SECONDS) -> None:
    """Remove what is left on this host, of any job of this user; a shell is started only if there may be something.

    Args:
        seconds: The time after which the rest is left where it is.
    """
    beginnings = tuple(name.rstrip("*?") for name in NAMES)
    files = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    try:
        if not any(name.startswith(beginnings) for name in os.listdir(FOLDER)):
            return
        shell = os.posix_spawn("/bin/sh", ["sh", "-c", SCRIPT], os.environ, file_actions=files, setpgroup=0)
    except OSError:  # there is no such folder, or the user may have no further process
        return
    until = time.monotonic() + seconds
    while os.waitpid(shell, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.killpg(shell, signal.SIGKILL)
            return
        time.sleep(MOMENT)
