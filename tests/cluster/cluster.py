"""Several hosts on one machine: namespaces and a real sshd per host, a bridge per rack.

    with Cluster(hosts_per_rack=2, racks=2, uplink="100mbit", nic="2gbit") as cluster:
        cluster.run("h1", ["ssh", "h3", "hostname"], check=True)

Each host is a network, a UTS and a mount namespace. The mount namespace gives it its own /etc/hosts
and /etc/ssh, so a plain `ssh h2` inside h1 (Open MPI's launcher) finds the cluster's keys and known
hosts while the machine's own files stay as they are. Disk (/tmp too), processes and cores are shared.
Neither root nor anything that outlives the Python which made the cluster is needed: see namespaces.py.
"""

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.cluster import links, namespaces
from tests.cluster.host import SET_UP, ClusterHost, write_names, write_ssh
from tests.cluster.host_group import HostGroup
from tests.cluster.namespaces import SWITCH, ClusterError, missing, output, program

PATIENCE = 300.0
# An address that no host has, and a table of routes by way of it.
NOBODY, NOWHERE = "10.77.255.254", 77
PROGRAMS = {
    "ip": "iproute2", "tc": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}  # fmt: skip


def why_not() -> str:
    """Return the reason why there can be no cluster, and the command that remedies it; empty if there can be one."""
    return namespaces.why_not() or missing(PROGRAMS)


class Cluster(HostGroup):
    """Hosts h1, h2, ... rack by rack, 10.77.RACK.PLACE/16, up inside `with`.

    `uplink` (per rack) and `nic` (per host) are tc rates such as "100mbit"; None is no limit. `nics` has the hosts
    whose rate is another one, `bucket` is the size of the bursts that NICs let pass, `rack_sizes` the hosts of each
    rack if these differ, `flow` is the rate of each connection of a host. With `ipv6` the hosts have IPv6 only:
    fd77::RACK:PLACE/64, racks counted from 1.
    """

    def __init__(
        self,
        hosts_per_rack: int,
        racks: int,
        *,
        uplink: str | None = None,
        nic: str | None = None,
        nics: Mapping[str, str] = MappingProxyType({}),
        bucket: str = "512kb",
        rack_sizes: Sequence[int] = (),
        flow: str | None = None,
        ipv6: bool = False,
    ) -> None:
        super().__init__()
        self._rack_sizes = tuple(rack_sizes) or (hosts_per_rack,) * racks
        self._nics = dict(nics)
        self._ipv6 = ipv6
        self._uplink, self._nic, self._bucket, self._flow = uplink, nic, bucket, flow
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def _remove(self) -> None:
        super()._remove()
        for process in self._servers.values():
            process.wait()
        self._servers = {}

    def argv(self, host: str, command: Sequence[str], *, cwd: Path | None = None) -> list[str]:
        """Return the command line that runs `command` on `host`, in `cwd` (default: the current folder)."""
        return self._argv(self.namespaces.as_user(host), host, command, cwd)

    def root_argv(self, host: str, command: Sequence[str], *, cwd: Path | None = None) -> list[str]:
        """Return the command line that runs `command` as the root of a host, as `argv` does for the user."""
        return self._argv(self.namespaces.as_root(host), host, command, cwd)

    def login_argv(self, host: str, command: Sequence[str], *, cwd: Path | None = None) -> list[str]:
        """Return the command line by which a process of `root_argv` runs `command` on another host."""
        return self._argv(self.namespaces.from_root(host), host, command, cwd)

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
        """Run `command` on `host` to its end; `options` go to subprocess.run, with a timeout of 120 s by default."""
        options.setdefault("timeout", 2 * PATIENCE)
        argv = self.argv(host, command, cwd=cwd)
        return subprocess.run(argv, input=stdin, check=check, capture_output=True, text=True, **options)

    def administer(self, host: str, command: Sequence[str]) -> None:
        """Run a command such as mount as the root of a host. Raises ClusterError if it fails."""
        output([*self.namespaces.as_root(host), program(command[0]), *command[1:]])

    def known_hosts(self, host: str) -> Path:
        """Return the file in which ssh on `host` looks up host keys; a test may edit it."""
        return self._hosts[host].ssh_folder / "known_hosts"

    def connections(self, host: str) -> int:
        """Return the number of connections that the host's sshd has accepted so far."""
        return (self._hosts[host].folder / "sshd.log").read_text().count("Accepted publickey")

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

    @contextmanager
    def stopped(self, *hosts: str) -> Iterator[None]:
        """Stop the sshd of hosts, and start it again at the end."""
        for host in hosts:
            self.stop(host)
        try:
            yield
        finally:
            for host in hosts:
                self.start(host)

    @contextmanager
    def cut(self, host: str) -> Iterator[None]:
        """Take the host's link down, so that connections to it time out; bring it up again at the end.

        The other hosts keep its hardware address, as behind a router. Without that the kernel reports
        "No route to host" after 3 s.
        """
        lost = self._hosts[host]
        for other in set(self.hosts) - {lost}:
            neighbour = f"neigh replace {lost.address} lladdr {lost.mac} dev eth0 nud permanent"
            links.ip(self.namespaces, other.name, [neighbour])
        links.ip(self.namespaces, SWITCH, [f"link set {host} down"])
        try:
            yield
        finally:
            links.ip(self.namespaces, SWITCH, [f"link set {host} up"])
            self.forget_neighbours(host)

    def forget_neighbours(self, *hosts: str) -> None:
        """Let hosts, by default all, find the others' hardware addresses anew after their network was cut.

        For up to 3 s, the kernel would report "No route to host" for those that it could not find.
        """
        for name in hosts or [host.name for host in self.hosts]:
            links.ip(self.namespaces, name, ["neigh flush dev eth0"])

    @contextmanager
    def blocked(self, host: str, ports: str) -> Iterator[None]:
        """Drop what a host sends to TCP ports (`FIRST-LAST` or one) of other hosts, as a firewall does, until the end.

        The packets take a route to a hardware address that no host has. Those of the host's own sshd arrive.
        """
        add = [
            f"neigh replace {NOBODY} lladdr 02:00:00:00:00:01 dev eth0 nud permanent",
            f"route replace default via {NOBODY} dev eth0 onlink table {NOWHERE}",
            "rule add ipproto tcp sport 22 lookup main pref 1",
            f"rule add ipproto tcp dport {ports} lookup {NOWHERE} pref 2",
        ]
        links.ip(self.namespaces, host, add)
        try:
            yield
        finally:
            links.ip(self.namespaces, host, ["rule del pref 1", "rule del pref 2"])

    @contextmanager
    def deaf(self, host: str) -> Iterator[None]:
        """Lose all packets to a host, while those from it arrive."""
        links.limit(self.namespaces, SWITCH, [host], "8bit", "1")  # no packet is as small as the bucket
        try:
            yield
        finally:
            output([*self.namespaces.as_root(SWITCH), program("tc"), "qdisc", "del", "dev", host, "root"])

    def uplink_bytes(self, rack: int) -> tuple[int, int]:
        """Return the bytes that left and that entered the rack, including Ethernet headers."""
        table = output([*self.namespaces.as_root(SWITCH), "cat", "/proc/net/dev"])
        row = re.search(rf"^ *up{rack}:(.*)", table, re.MULTILINE)
        assert row is not None
        received, *_, sent, _, _, _, _, _, _, _ = row[1].split()
        return int(sent), int(received)

    def uplink_delays(self, rack: int) -> int:
        """Return the number of times that the shaped uplink of a rack held packets back."""
        text = output([*self.namespaces.as_root(SWITCH), "tc", "-s", "qdisc", "show", "dev", f"up{rack}"])
        return int(re.findall(r"overlimits (\d+)", text)[0])

    def _up(self) -> None:
        places = [(rack, place) for rack, size in enumerate(self._rack_sizes) for place in range(1, size + 1)]
        for number, (rack, place) in enumerate(places, 1):
            name = f"h{number}"
            self._hosts[name] = ClusterHost(name, rack, place, self.folder / name, self._ipv6)
        self._write_files()
        self._hold(SET_UP if self._ipv6 else f"{links.NO_IPV6}\n{SET_UP}")
        links.wire(self.namespaces, self.hosts)
        self._limit()
        for step in (self._serve, self._await_server):
            for host in self.hosts:
                step(host)

    def _limit(self) -> None:
        uplinks = [f"{end}{rack}" for rack in range(len(self._rack_sizes)) for end in ("up", "dn")]
        links.limit(self.namespaces, SWITCH, uplinks, self._uplink, "128kb")
        for host in self.hosts:
            rate = self._nics.get(host.name, self._nic)
            links.limit(self.namespaces, SWITCH, [host.name], rate, self._bucket)
            if self._flow:
                links.limit_flows(self.namespaces, host.name, "eth0", rate, self._flow)
            else:
                links.limit(self.namespaces, host.name, ["eth0"], rate, self._bucket)

    def _write_files(self) -> None:
        keys = {name: self.folder / f"{name}.key" for name in ("user", *self._hosts)}
        for key in keys.values():
            output(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)])
        public = {name: Path(f"{key}.pub").read_text() for name, key in keys.items()}
        known = "".join(f"{host.name},{host.address} {public[host.name]}" for host in self.hosts)
        for host in self.hosts:
            write_names(host, self.hosts)
            write_ssh(host, user_key=keys["user"], host_key=keys[host.name], known_hosts=known)

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
