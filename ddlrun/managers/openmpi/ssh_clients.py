"""The ssh clients that mpirun has started, one per host: the first of them that ends while the job runs."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ddlrun.managers.openmpi.missing_daemons import MOST_HOSTS
from ddlrun.wire.loop import READ, Loop


class SshClients:
    """mpirun's ssh clients. Open MPI 4.1 does not print which of them was killed."""

    def __init__(self, loop: Loop, mpirun: int, host_names: Iterable[str]) -> None:
        """Prepare to watch the ssh clients of a job's hosts, but of no more than 64."""
        self._loop, self._mpirun = loop, mpirun
        names = frozenset(host_names)
        self._names = names if len(names) <= MOST_HOSTS else frozenset()
        self._hosts: dict[int, str] = {}
        self.first_ended: str | None = None
        """The host of the client that was the first to end; None while all run."""

    def watch(self) -> None:
        """Begin to watch the clients among mpirun's children. Before Linux 5.3 nothing is watched."""
        for pid in _children(self._mpirun):
            host = self._host_of(_command_line(pid))
            if host is not None:
                with suppress(OSError):
                    fd = os.pidfd_open(pid)
                    self._hosts[fd] = host
                    self._loop.watch(fd, READ, lambda _, fd=fd: self._end(fd))  # type: ignore[misc]

    def _host_of(self, words: Sequence[str]) -> str | None:
        """Return the host to which a command line of ssh leads; None for other programs."""
        if os.path.basename(words[0]) != "ssh":
            return None
        return next((word for word in words if word in self._names), None)

    def _end(self, fd: int) -> None:
        """Record the end of a client."""
        host = self._hosts.pop(fd)
        self.first_ended = self.first_ended or host
        self._loop.forget(fd)
        os.close(fd)

    def close(self) -> None:
        """Close all descriptors."""
        for fd in self._hosts:
            os.close(fd)
        self._hosts.clear()


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    children: list[int] = []
    with suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:  # the thread
                children += map(int, file.read().split())
    return children


def _command_line(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().split("\0")
    except OSError:
        return [""]
