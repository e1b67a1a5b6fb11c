"""Two hosts on a machine without sshd, ssh and iproute2: namespaces, a pair of interfaces and a stand-in of ssh.

    with TwoHosts() as hosts:
        subprocess.run(hosts.argv("h1", ["ssh", "h2", "hostname"]))

Programs run as root on the hosts, as the stand-in of ssh enters the namespaces of the other host. An ordinary user is
root in these namespaces alone.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.host import SET_UP, ClusterHost, write_names
from tests.cluster.host_group import HostGroup
from tests.cluster.namespaces import output

JOIN = Path(__file__).with_name("join.py")
# Options with a value in the next word, among those that Open MPI and ddlrun give to ssh.
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


class TwoHosts(HostGroup):
    """Hosts h1 and h2, 10.77.0.1/16 and 10.77.0.2/16, up inside `with`."""

    def argv(self, host: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs `command` on a host, in the current folder."""
        path = f"{self.folder}:{os.environ['PATH']}"
        return self._argv(self.namespaces.as_root(host), host, ["env", f"PATH={path}", *command])

    def _up(self) -> None:
        self._hosts = {name: ClusterHost(name, 0, place, self.folder / name) for place, name in ((1, "h1"), (2, "h2"))}
        for host in self.hosts:
            write_names(host, self.hosts)
        self._hold(SET_UP)
        join = [sys.executable, str(JOIN)]
        output([*self.namespaces.as_root("h1"), *join, "10.77.0.1/16", str(self.namespaces.pid("h2"))])
        output([*self.namespaces.as_root("h2"), *join, "10.77.0.2/16"])
        self._write_ssh()

    def _write_ssh(self) -> None:
        cases = []
        path = f"{self.folder}:{os.environ['PATH']}"  # daemons look for ssh, too
        for name in self._hosts:
            hidden = ["env", "-i", f"PATH={path}", f"HOME={self.folder / name}"]  # as sshd does
            command = self._argv([*hidden, *self.namespaces.from_root(name)], name, ["sh", "-c"])
            cases.append(f'  {name}) exec {shlex.join(command)} "$*" ;;')
        ssh = self.folder / "ssh"
        ssh.write_text(SSH.format(cases="\n".join(cases)))
        ssh.chmod(0o755)
