"""Several hosts on one machine: a namespace and a real sshd per host, a bridge per rack.

    with Cluster(hosts_per_rack=2, racks=2, uplink="100mbit", nic="2gbit") as cluster:
        cluster.run("h1", ["ssh", "h3", "hostname"], check=True)

Each host is a network, a UTS and a mount namespace. The mount namespace gives it its own /etc/hosts
and /etc/ssh, so a plain `ssh h2` inside h1 (Open MPI's launcher) finds the cluster's keys and known
hosts while the machine's own files stay as they are. Disk (/tmp too), processes and cores are shared.
"""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.cluster import namespaces
from tests.cluster.host import HOLD, ClusterHost, write_files
from tests.cluster.namespaces import NO_IPV6, PATIENCE, ClusterError, output, program

Entered = TypeVar("Entered", bound="Cluster")
PROGRAMS = ("ip", "tc", "sshd", "ssh", "ssh-keygen", "nsenter", "unshare", "mount")


def why_not() -> str:
    """Return the reason why this machine cannot run a cluster; empty if it can."""
    if os.geteuid() != 0:
        return "the test cluster needs root"
    missing = [name for name in PROGRAMS if program(name) == name]
    return f"the test cluster needs {', '.join(missing)}" if missing else ""


class Cluster:
    """Hosts h1, h2, ... rack by rack, 10.77.RACK.PLACE/16, up inside `with`.

    `uplink` (per rack) and `nic` (per host) are tc rates such as "100mbit"; None is no limit. With `ipv6`
    the hosts have IPv6 only: fd77::RACK:PLACE/64, racks counted from 1.
    """

    def __init__(
        self, hosts_per_rack: int, racks: int, *, uplink: str | None = None, nic: str | None = None, ipv6: bool = False
    ) -> None:
        self._shape = hosts_per_rack, racks
        self._ipv6 = ipv6
        self._uplink, self._nic = uplink, nic
        self._folder: Path | None = None
        self._hosts: dict[str, ClusterHost] = {}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self: Entered) -> Entered:  # noqa: PYI019 - typing.Self came with 3.11
        """Build the cluster; at an error or Ctrl-C the unfinished cluster is removed."""
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Remove the cluster."""
        self.down()

    @property
    def hosts(self) -> tuple[ClusterHost, ...]:
        """Return the hosts, rack by rack."""
        return tuple(self._hosts.values())

    @property
    def folder(self) -> Path:
        """Return the cluster's private folder; its name is the prefix of each namespace's name."""
        if self._folder is None:
            raise ClusterError("the cluster is not up")
        return self._folder

    def down(self) -> None:
        """Kill everything inside and remove every trace, with Ctrl-C held back; harmless at any time, even twice."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for process in (*self._servers.values(), *self._holders.values()):
                process.kill()
                process.wait()
            if self._folder:
                namespaces.remove(self._folder)
            self._folder = None
            self._hosts, self._holders, self._servers = {}, {}, {}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def argv(self, host: str, command: Sequence[str], *, cwd: Path | None = None) -> list[str]:
        """Return the command line that runs `command` on `host`, in `cwd` (default: the current folder)."""
        folder = cwd or Path.cwd()
        variables = {"PWD": str(folder), **self._hosts[host].environment}
        enter = [program("nsenter"), "-t", str(self._holders[host].pid), "-n", "-u", "-m", "--"]
        setting = [f"{key}={value}" for key, value in variables.items()]
        return [*enter, program("env"), "-C", str(folder), *setting, *command]

    def run(
        self,
        host: str,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        stdin: str = "",
        check: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` on `host` to its end; `options` go to subprocess.run, with a timeout of 60 s by default."""
        options.setdefault("timeout", 60)
        argv = self.argv(host, command, cwd=cwd)
        return subprocess.run(argv, input=stdin, check=check, capture_output=True, text=True, **options)

    def known_hosts(self, host: str) -> Path:
        """Return the file in which ssh on `host` looks up host keys; a test may edit it."""
        return self._hosts[host].ssh_folder / "known_hosts"

    def stop(self, host: str) -> None:
        """Stop the host's sshd: new connections are refused, and open sessions continue."""
        server = self._servers.pop(host)
        server.kill()
        server.wait()
        self._hosts[host].pid_file.unlink(missing_ok=True)

    def start(self, host: str) -> None:
        """Start a stopped host's sshd again."""
        self._serve(self._hosts[host])
        self._await_server(self._hosts[host])

    def cut(self, host: str) -> None:
        """Take the host's link down: connections to it time out.

        The other hosts keep its hardware address, as behind a router. Without that the kernel reports
        "No route to host" after 3 s.
        """
        lost = self._hosts[host]
        for other in set(self.hosts) - {lost}:
            neighbour = f"neigh replace {lost.address} lladdr {lost.mac} dev eth0 nud permanent"
            namespaces.ip(other.namespace, [neighbour])
        namespaces.ip(self._switch, [f"link set {host} down"])

    def mend(self, host: str) -> None:
        """Bring the link of a host up again after `cut`."""
        namespaces.ip(self._switch, [f"link set {host} up"])

    def uplink_bytes(self, rack: int) -> tuple[int, int]:
        """Return the bytes that left and that entered the rack, including Ethernet headers."""
        counters = [f"/sys/class/net/up{rack}/statistics/{direction}_bytes" for direction in ("tx", "rx")]
        sent, received = output(["ip", "netns", "exec", self._switch, "cat", *counters]).split()
        return int(sent), int(received)

    def namespace(self, host: str) -> str:
        """Return the host's network namespace, for `namespaces.ip`."""
        return self._hosts[host].namespace

    @property
    def _switch(self) -> str:
        return f"{self.folder.name}-sw"

    def _up(self) -> None:
        for leftover in namespaces.leftovers():
            namespaces.remove(leftover)
        self._folder = namespaces.claim()
        per_rack, racks = self._shape
        for number, (rack, place) in enumerate(itertools.product(range(racks), range(1, per_rack + 1)), 1):
            name = f"h{number}"
            self._hosts[name] = ClusterHost(
                name, rack, place, f"{self.folder.name}-{name}", self.folder / name, self._ipv6
            )
        namespaces.wire(self._switch, self.hosts)
        self._limit()
        self._write_files()
        for step in (self._hold, self._serve, self._await_server):
            for host in self.hosts:
                step(host)

    def _limit(self) -> None:
        uplinks = [f"{end}{rack}" for rack in range(self._shape[1]) for end in ("up", "dn")]
        namespaces.limit(self._switch, uplinks, self._uplink, "128kb")
        namespaces.limit(self._switch, self._hosts, self._nic, "512kb")
        for host in self.hosts:
            namespaces.limit(host.namespace, ["eth0"], self._nic, "512kb")

    def _write_files(self) -> None:
        keys = {name: self.folder / f"{name}.key" for name in ("user", *self._hosts)}
        for key in keys.values():
            output(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)])
        public = {name: Path(f"{key}.pub").read_text() for name, key in keys.items()}
        known = "".join(f"{host.name},{host.address} {public[host.name]}" for host in self.hosts)
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        for host in self.hosts:
            etc_hosts = f"127.0.0.1 localhost\n{names}"
            write_files(host, etc_hosts=etc_hosts, user_key=keys["user"], host_key=keys[host.name], known_hosts=known)

    def _hold(self, host: ClusterHost) -> None:
        """Start the process that keeps the host's namespaces alive; like sshd, it does not get Ctrl-C."""
        enter = [program("ip"), "netns", "exec", host.namespace, program("unshare"), "--uts", "sh", "-c"]
        log = host.folder / "hold.log"
        with log.open("w") as errors:
            holder = self._holders[host.name] = subprocess.Popen(
                [*enter, HOLD if self._ipv6 else f"{NO_IPV6}\n{HOLD}", "hold", host.name, str(host.folder)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
        assert holder.stdout is not None
        with holder.stdout as lines:
            if lines.readline() != b"ready\n":
                raise ClusterError(log.read_text())

    def _serve(self, host: ClusterHost) -> None:
        with (host.folder / "sshd.log").open("a") as log:
            self._servers[host.name] = subprocess.Popen(
                self.argv(host.name, [program("sshd"), "-D", "-e"], cwd=Path("/")),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _await_server(self, host: ClusterHost) -> None:
        deadline = time.monotonic() + PATIENCE
        while not host.pid_file.exists():
            if self._servers[host.name].poll() is not None or time.monotonic() > deadline:
                raise ClusterError((host.folder / "sshd.log").read_text())
            time.sleep(0.005)
