"""Hosts in namespaces: their lifetime, and command lines that run programs on them."""

import os
import pwd
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.cluster.host import ClusterHost
from tests.cluster.namespaces import ClusterError, Namespaces, program

Entered = TypeVar("Entered", bound="HostGroup")


class HostGroup:
    """Hosts by name, up inside `with`; a subclass makes them in `_up`."""

    def __init__(self) -> None:
        self._namespaces: Namespaces | None = None
        self._folder: Path | None = None
        self._hosts: dict[str, ClusterHost] = {}

    def __enter__(self: Entered) -> Entered:  # noqa: PYI019 - typing.Self came with 3.11
        """Make the hosts; at an error or Ctrl-C those that are unfinished are removed."""
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="ddl"))
            self._namespaces = Namespaces(self._folder)
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Remove the hosts."""
        self.down()

    def _up(self) -> None:
        raise NotImplementedError

    @property
    def hosts(self) -> tuple[ClusterHost, ...]:
        """Return the hosts, rack by rack."""
        return tuple(self._hosts.values())

    @property
    def folder(self) -> Path:
        """Return the private folder of the hosts."""
        if self._folder is None:
            raise ClusterError("the cluster is not up")
        return self._folder

    @property
    def namespaces(self) -> Namespaces:
        """Return the namespaces of the hosts, and of the switch between them if there is one."""
        if self._namespaces is None:
            raise ClusterError("the cluster is not up")
        return self._namespaces

    def down(self) -> None:
        """Kill everything inside and remove every trace, with Ctrl-C held back; harmless at any time, even twice."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._remove()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _remove(self) -> None:
        if self._namespaces:
            self._namespaces.close()
        self._folder = self._namespaces = None
        self._hosts = {}

    def processes(self, *hosts: str) -> set[int]:
        """Return the ids of the processes on hosts, by default on all."""
        return self.namespaces.processes(*(hosts or self._hosts))

    def _hold(self, script: str) -> None:
        """Make the namespaces of all hosts, and set them up by a script."""
        home = pwd.getpwuid(os.geteuid()).pw_dir
        for host in self.hosts:
            self.namespaces.hold(host.name, script, host.name, str(host.folder), home)

    def _argv(self, enter: Sequence[str], host: str, command: Sequence[str], cwd: Path | None = None) -> list[str]:
        folder = cwd or Path.cwd()
        variables = {"PWD": str(folder), **self._hosts[host].environment}
        setting = [f"{key}={value}" for key, value in variables.items()]
        return [*enter, program("env"), "-C", str(folder), *setting, *command]
