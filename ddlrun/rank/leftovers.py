"""Shared memory that MPI and NCCL leave behind when ranks are killed, or exit without MPI_Finalize.

A file of it is left behind if no process has it open or mapped: what uses it maps it as long as it lives.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

FOLDER: Final = "/dev/shm"  # noqa: S108 - the libraries' own choice
# The beginnings of names: of MPICH, Intel MPI, Open MPI 5.0 and 4.1, and NCCL.
NAMES: Final = ("mpich_shm_", "Intel_MPI_", "sm_segment.", "vader_segment.", "nccl-")
# Files are listed before their users, so that none that was made meanwhile counts as unused. Where a container has the
# host's shared memory, but sees its own processes alone, nothing is removed.
SCRIPT: Final = r"""
set -- FILES
in_use=$({ cat /proc/[0-9]*/maps; ls -l /proc/[0-9]*/fd; } 2>/dev/null |
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
""".replace("FILES", " ".join(f"{FOLDER}/{name}*" for name in NAMES))


def remove_leftovers() -> None:
    """Remove what is left on this host, of any job of this user; a shell is started only if there may be something."""
    try:
        present = any(name.startswith(NAMES) for name in os.listdir(FOLDER))
    except OSError:
        return
    if present:
        files = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
        os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", SCRIPT], os.environ, file_actions=files), 0)
