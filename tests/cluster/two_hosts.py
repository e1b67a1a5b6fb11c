"""Two hosts on a machine without sshd, ssh and iproute2: namespaces, a pair of interfaces and a stand-in of ssh.

    with TwoHosts() as hosts:
        subprocess.run(hosts.argv("h1", ["ssh", "h2", "hostname"]))

Programs run as root on the hosts, as the stand-in of ssh enters the namespaces of the other host. An ordinary user is
root in these namespaces alone.
"""

import os
import pwd
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.cluster.host import SET_UP, ClusterHost, write_names
from tests.cluster.namespaces import Namespaces, output, program

JOIN = Path(__file__).with_name("join.py")
# Options with a value in the next word, among those that Open MPI and ClusterShell give to ssh.
SSH = """#!/bin/sh
while :; do
  case $1 in
    -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
host=$1; shift
case $host in
{cases}
  *) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255 ;;
esac
"""


class TwoHosts:
    """Hosts h1 and h2, 10.77.0.1/16 and 10.77.0.2/16, up inside `with`."""

    def __enter__(self) -> "TwoHosts":  # noqa: PYI034 - typing.Self came with 3.11
        """Make the hosts; at an error or Ctrl-C nothing is left."""
        self._folder = Path(tempfile.mkdtemp(prefix="ddl"))
        self._hosts = {name: ClusterHost(name, 0, place, self._folder / name) for place, name in ((1, "h1"), (2, "h2"))}
        self._namespaces: Namespaces | None = None
        try:
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

    def down(self) -> None:
        """Kill everything on the hosts and remove them, with Ctrl-C held back."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            if self._namespaces:
                self._namespaces.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def argv(self, host: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs `command` on a host, in the current folder."""
        path = f"{self._folder}:{os.environ['PATH']}"
        return self._argv(self._up_namespaces.as_root(host), host, ["env", f"PATH={path}", *command])

    def processes(self) -> set[int]:
        """Return the ids of the processes on both hosts."""
        return self._up_namespaces.processes(*self._hosts)

    @property
    def _up_namespaces(self) -> Namespaces:
        assert self._namespaces is not None
        return self._namespaces

    def _argv(self, enter: Sequence[str], host: str, command: Sequence[str]) -> list[str]:
        variables = {"PWD": str(Path.cwd()), **self._hosts[host].environment}
        setting = [f"{name}={value}" for name, value in variables.items()]
        return [*enter, program("env"), "-C", str(Path.cwd()), *setting, *command]

    def _up(self) -> None:
        namespaces = self._namespaces = Namespaces(self._folder)
        home = pwd.getpwuid(os.geteuid()).pw_dir
        for host in self._hosts.values():
            write_names(host, [*self._hosts.values()])
            namespaces.hold(host.name, SET_UP, host.name, str(host.folder), home)
        join = [sys.executable, str(JOIN)]
        output([*namespaces.as_root("h1"), *join, "10.77.0.1/16", str(namespaces.pid("h2"))])
        output([*namespaces.as_root("h2"), *join, "10.77.0.2/16"])
        self._write_ssh()

    def _write_ssh(self) -> None:
        cases = []
        for name in self._hosts:
            command = self._argv(self._up_namespaces.from_root(name), name, ["sh", "-c"])
            cases.append(f'  {name}) exec {shlex.join(command)} "$*" ;;')
        ssh = self._folder / "ssh"
        ssh.write_text(SSH.format(cases="\n".join(cases)))
        ssh.chmod(0o755)
