"""A host of the test cluster: its names, its files, and the script that sets it up."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Open MPI refuses to run as root without these; no variable is needed by an ordinary user.
ENVIRONMENT = {f"{name}_ALLOW_RUN_AS_ROOT{suffix}": "1" for name in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")}

# $1 is the host's name, $2 its folder, $3 the user's home.
# reno: the default may be bbr, which is bursty and unfair at the rates of the tests.
# port_start: an ordinary user's sshd listens on port 22.
# ~/.ssh and ~/.bashrc: those of the user must have no effect. /run: sshd needs /run/sshd, and nscd
# must not answer. /dev/shm: files that MPI leaves behind disappear with the host.
SET_UP = """hostname "$1"
mount -t sysfs sysfs /sys
echo reno >/proc/sys/net/ipv4/tcp_congestion_control
echo 0 >/proc/sys/net/ipv4/tcp_slow_start_after_idle
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
if [ -d "$2/ssh" ]; then mount --bind "$2/ssh" /etc/ssh; fi
mount --bind "$2/hosts" /etc/hosts
if [ -e /etc/resolv.conf ]; then mount --bind /dev/null /etc/resolv.conf; fi
if [ -e "$3/.bashrc" ]; then mount --bind /dev/null "$3/.bashrc"; fi
if [ -d "$3/.ssh" ]; then mount -t tmpfs tmpfs "$3/.ssh"; fi
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount -t tmpfs tmpfs /dev/shm
"""
SSH_CONFIG = """Host *
  IdentityFile /etc/ssh/id
  IdentitiesOnly yes
  UserKnownHostsFile /etc/ssh/known_hosts
"""
SSHD_CONFIG = """HostKey /etc/ssh/hostkey
AuthorizedKeysFile /etc/ssh/id.pub
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
KexAlgorithms curve25519-sha256
MaxStartups 200
PidFile {pid_file}
SetEnv {environment}
"""


@dataclass(frozen=True)
class ClusterHost:
    """A host: its name, rack (from 0), place in the rack (from 1), and folder."""

    name: str
    rack: int
    place: int
    folder: Path
    ipv6: bool = False

    @property
    def address(self) -> str:
        """Return the host's only address."""
        return f"fd77::{self.rack + 1}:{self.place}" if self.ipv6 else f"10.77.{self.rack}.{self.place}"

    @property
    def ip_arguments(self) -> str:
        """Return the arguments of `ip addr add`."""
        return f"{self.address}/64 dev eth0 nodad" if self.ipv6 else f"{self.address}/16 dev eth0"

    @property
    def mac(self) -> str:
        """Return the hardware address of eth0."""
        return f"02:77:00:00:{self.rack:02x}:{self.place:02x}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of every program on the host, set by `Cluster.argv` and by sshd."""
        return {"TMPDIR": str(self.folder / "tmp"), **ENVIRONMENT}

    @property
    def pid_file(self) -> Path:
        """Return the file that exists while sshd listens."""
        return self.folder / "sshd.pid"

    @property
    def ssh_folder(self) -> Path:
        """Return the folder that is /etc/ssh on the host."""
        return self.folder / "ssh"


def write_names(host: ClusterHost, hosts: Sequence[ClusterHost]) -> None:
    """Create the host's folder, with its /etc/hosts and the folder of its temporary files."""
    (host.folder / "tmp").mkdir(parents=True)
    names = "".join(f"{other.address} {other.name}\n" for other in hosts)
    (host.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")


def write_ssh(host: ClusterHost, *, user_key: Path, host_key: Path, known_hosts: str) -> None:
    """Write the host's /etc/ssh; the keys are paths of private keys."""
    host.ssh_folder.mkdir()
    for source, target in ((user_key, "id"), (host_key, "hostkey")):
        for suffix in ("", ".pub"):
            path = host.ssh_folder / f"{target}{suffix}"
            path.touch(mode=0o600)
            path.write_text(Path(f"{source}{suffix}").read_text())
    variables = " ".join(f"{key}={value}" for key, value in host.environment.items())
    (host.ssh_folder / "known_hosts").write_text(known_hosts)
    (host.ssh_folder / "ssh_config").write_text(SSH_CONFIG)
    (host.ssh_folder / "sshd_config").write_text(SSHD_CONFIG.format(pid_file=host.pid_file, environment=variables))
